"""Pages of Nsight Compute as text: details of each launch, or a summary for each kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from stepscope.records import dataclass

__all__ = ["Launch", "Measured", "TextPage"]

_PROCESS = re.compile(r"^\[(\d{1,10})\] .*@")
_DEVICE = re.compile(r"^\s+Device (\d{1,6}), CC ([\d.]{1,8})\s*$")
_DIMS = re.compile(r"^(\s+)(\S.*?) \((\d+), (\d+), (\d+)\)x\((\d+), (\d+), (\d+)\)(, .*)?$")
_OLD = re.compile(r"^(\s{1,6})(\S.*?), \d{4}-\w{3}-\d\d \d\d:\d\d:\d\d(, .*)?$")
"""How older versions head a launch: with the time, and the shape among the metrics."""
_TOLD = re.compile(r"(Context|Stream|Device|CC|Invocations) ([\d.]+)")
_SECTION = re.compile(r"^\s+Section: (.+?)\s*$")
_RULE = re.compile(r"^(\s+)(-{3,}(?: -{3,})+)\s*$")
_NAMES = ("Metric Name", "Metric Unit")


@dataclass(frozen=True, slots=True)
class Launch:
    """What the head of a launch says."""

    kernel: str
    process: int | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    told: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of a launch: its texts, still with separators and units."""

    section: str | None
    metric: str
    unit: str
    value: str


class TextPage:
    """Goes through the lines of a page."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        """What the profiler says went wrong."""
        self._process: int | None = None
        self._device: dict[str, str] = {}
        self._section: str | None = None
        self._columns: list[tuple[int, int]] = []
        self._head: list[str] = []

    def read(self, lines: Iterable[str]) -> Iterator[Launch | Measured]:
        """Heads of launches, each followed by its metrics."""
        for line in lines:
            if line.startswith("==ERROR==") and len(self.errors) < 16:
                self.errors.append(line[9:].strip()[:200])
            elif found := _PROCESS.match(line):
                self._process = int(found[1])
            elif found := _DEVICE.match(line):
                self._device = {"Device": found[1], "CC": found[2]}
            elif found := _SECTION.match(line):
                self._section, self._columns, self._head = found[1], [], []
            elif launch := self._launch(line):
                yield launch
            elif found := _RULE.match(line):
                self._rule(found)
            elif self._columns and (one := self._row(line)) is not None:
                yield one

    def _launch(self, line: str) -> Launch | None:
        found = _DIMS.match(line)
        old = None if found else _OLD.match(line)
        if not found and not old:
            return None
        self._section, self._columns, self._head = None, [], []
        told = self._device | dict(_TOLD.findall((found[9] if found else old[3] if old else "") or ""))
        if old:
            return Launch(old[2], self._process, told=told)
        assert found is not None  # noqa: S101
        sizes = [int(found[at][:9]) for at in range(3, 9)]
        launch = Launch(found[2], self._process, told=told)
        return replace(launch, grid=(sizes[0], sizes[1], sizes[2]), block=(sizes[3], sizes[4], sizes[5]))

    def _rule(self, found: re.Match[str]) -> None:
        """A line of dashes: the first begins a table, the second ends its head, the third the table."""
        if not self._columns:
            at = len(found[1])
            for dashes in found[2].split(" "):
                self._columns.append((at, at + len(dashes)))
                at += len(dashes) + 1
        elif self._head[:1] == ["read"]:
            self._columns, self._head = [], []
        else:
            self._head = ["read", *self._head]

    def _row(self, line: str) -> Measured | None:
        cells = [
            line[start : end + (1 << 20) * (nth == len(self._columns) - 1)].strip()
            for nth, (start, end) in enumerate(self._columns)
        ]
        if self._head[:1] != ["read"]:
            self._head = cells
            return None
        names = self._head[1:]
        if tuple(names[:2]) != _NAMES or len(cells) < 3 or not cells[0]:
            return None
        return Measured(self._section, cells[0], cells[1], cells[-1])
