"""What the capture says while the program runs: lines on standard error, for the output is the program's."""

from __future__ import annotations

import sys

__all__ = ["tell"]


def tell(line: str) -> None:
    """Says a line."""
    sys.stderr.write(f"stepscope: {line}\n")
