"""Cells of CSV: one line each, and none that a spreadsheet would compute."""

from __future__ import annotations

from stepscope.patterns import late_pattern
from stepscope.present._printable import printable

__all__ = ["ODD", "cell"]

_FORMULA = late_pattern(r"[=+\-@](?!\d*\.?\d+(?:[eE][+-]?\d+)?$)")
ODD = r"^[=+\-@]|[^\p{L}\p{N}\p{P}\p{S} ]"
"""Finds, in Arrow, texts that may differ from their cell; the others need no look from Python."""


def cell(text: str) -> str:
    """A text as a cell. JSON and Parquet hold the exact text.

    CSV has no codes: a control character or a new line in a name would reach the terminal or the log that
    the rows are shown in. And a spreadsheet runs what begins like a formula, so that gets an apostrophe
    before it, which spreadsheets take for "this is text"; numbers with a sign stay as they are.
    """
    shown = printable(text)
    return f"'{shown}" if _FORMULA.match(shown) else shown
