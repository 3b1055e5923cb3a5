"""Counters as `perf stat` prints them, as text or with separators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.sources import Input
    from stepscope.store.writer import StoreWriter

__all__ = ["looks_like_stat", "read_stat"]

_TITLE = re.compile(rb"^ ?Performance counter stats for ", re.MULTILINE)
_NOT = r"<not (?:counted|supported)>"
_TEXT = re.compile(
    rf"^\s*(?:(\S+?)\s+)??({_NOT}|[\d,.]+)\s+(?:(msec|ns|Joules|MiB|Bytes) )?\s*"
    r"([A-Za-z_][^\s#]*)\s*(?:#.*?)?(?:\(([\d.]+)%\))?\s*$"
)
_TIME = re.compile(r"^\s*([\d.]+)(?: \+-.*)? seconds (time elapsed|user|sys)")


def _row_of(mark: str) -> re.Pattern[bytes]:
    """A row with this separator: value, unit, event, running, share, with scopes in front.

    If it is no comma, a comma is the decimal point of the user's language, or part of an event.
    """
    comma = "" if mark == "," else ","
    number, event = rf"\d+(?:[.{comma}]\d+)?", rf"[a-zA-Z_][\w.:/\-={comma}]*"
    scopes = rf"(?:[^{mark}\n]{{1,60}}{mark}){{0,3}}"
    cells = (rf"(?:{_NOT}|{number})", "(?:msec|Joules|ns)?", event, r"\d+", number)
    return re.compile(f"^{scopes}{mark.join(cells)}".encode(), re.MULTILINE)


_SEPARATED = {mark: _row_of(mark) for mark in (";", "\t", ",")}
_LONGEST = 4096


def looks_like_stat(head: bytes) -> bool:
    """Whether it is of perf stat, in one of its forms."""
    return bool(_TITLE.search(head) or _separator(head))


def _separator(head: bytes) -> str | None:
    """What is between the cells, all over the file."""
    return next((mark for mark, row in _SEPARATED.items() if row.search(head)), None)


def read_stat(given: Input, writer: StoreWriter) -> int:
    """Writes the counters; how many there are."""
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    run, rest, mark = -1, b"", _separator(given.head)
    for piece in given.stream:
        *lines, rest = (rest + piece).split(b"\n")
        rest = rest[:_LONGEST]
        run = _read(lines, rows, run, mark)
    _read([rest], rows, run, mark)
    if rows:
        kinds = {"run": pa.int64(), "value": pa.float64(), "counted_share": pa.float64()}
        names = ("run", "scope", "event", "unit", "value", "counted_share")
        columns = {
            name: pa.array([row[name] for row in rows], kinds.get(name, pa.string())) for name in names
        }
        writer.add_rows("cpu_counters", pa.table(columns))
    return len(rows)


def _read(lines: list[bytes], rows: list[dict[str, Any]], run: int, mark: str | None) -> int:
    for raw in lines:
        line = raw[:_LONGEST].decode("utf-8", "replace").rstrip()
        if _TITLE.match(raw):
            run += 1
        elif row := (_separated(line, mark) if mark else _text(line)):
            rows.append({"run": max(run, 0), **row})
    return run


def _text(line: str) -> dict[str, Any] | None:
    if found := _TIME.match(line):
        return _row(None, f"time {found[2].removeprefix('time ')}", "s", found[1], None)
    found = _TEXT.match(line)
    if not found or found[4] == "seconds":
        return None
    return _row(found[1], found[4], found[3], found[2], found[5])


def _separated(line: str, mark: str) -> dict[str, Any] | None:
    """value,unit,event,running,share,… with the scope before it, if there is one."""
    if not _SEPARATED[mark].match(line.encode()):
        return None
    cells = line.split(mark)
    plain = [cell.replace(",", ".") for cell in cells]  # only numbers are looked at in these
    at = next((nth for nth in range(len(cells) - 4) if _is_row(plain[nth : nth + 5])), None)
    if at is None:
        return None
    _, unit, event = cells[at : at + 3]
    return _row(", ".join(cells[:at]) or None, event, unit or None, plain[at], plain[at + 4])


def _is_row(cells: list[str]) -> bool:
    value, unit, event, running, share = cells
    plain = re.fullmatch(rf"{_NOT}|\d+(\.\d+)?", value) and re.fullmatch(r"[A-Za-z]*", unit)
    return bool(
        plain and re.match(r"[A-Za-z_]", event) and running.isdigit() and re.fullmatch(r"[\d.]+", share)
    )


def _row(scope: str | None, event: str, unit: str | None, value: str, share: str | None) -> dict[str, Any]:
    plain = value.replace(",", "")
    number = float(plain) if re.fullmatch(r"\d{1,30}(\.\d{0,30})?", plain) else None
    part = float(share) / 100 if share and re.fullmatch(r"\d{1,4}(\.\d{0,9})?", share) else None
    return {
        "scope": scope,
        "event": event[:200],
        "unit": unit,
        "value": number,
        "counted_share": part if part is not None and part < 1 else None,
    }
