"""The documented SQL views over a store: names instead of numbers, absolute times, arguments as JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.schema import (
    COMMUNICATION_KERNEL,
    COPIES,
    DERIVED,
    KERNELS,
    SIDE,
    STEP_MARK,
    STORED,
    StoredTable,
)

if TYPE_CHECKING:
    from stepscope.store.meta import TraceMeta

__all__ = ["VIEWS", "View"]

_STORED_NAME = late_pattern(r"\bstored\.(\w+)")
_NUMBERED = ("thread", "name", "skeleton", "start_ns", "dur_ns", "event")


@dataclass(frozen=True, slots=True)
class View:
    """One view: its columns as (name, SQL, description), and the tables behind it."""

    name: str
    description: str
    columns: tuple[tuple[str, str, str], ...]
    source: str
    joins: tuple[tuple[str, str], ...] = ()
    """The dictionaries that columns look into: the letter they are called by, and the join."""
    where: str = ""
    derived: str = ""
    """The table behind it that is made at first use."""
    part_of: tuple[str, str] = ("", "")
    """The view that has the same columns and more rows, and which of these are its own."""
    types: tuple[str, ...] = ()
    """Of a side table: the types of its columns, for where no source filled it."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(name for name, _, _ in self.columns)

    def sql(self, meta: TraceMeta, only: tuple[str, ...] | None = None) -> str:
        """The SELECT of the view, or of some of its columns."""
        wanted = [column for column in self.columns if only is None or column[0] in only]
        if self.types and not meta.rows.get(self.name):
            kinds = dict(zip(self.names, self.types, strict=True))
            columns = ", ".join(f'NULL::{kinds[name]} AS "{name}"' for name, _, _ in wanted)
            return f"SELECT {columns} WHERE FALSE"
        columns = ", ".join(f'{expression} AS "{name}"' for name, expression, _ in wanted)
        where = f" WHERE {self.where}" if self.where else ""
        # A join costs something for each row, even where nothing is asked of it.
        needed = [join for letter, join in self.joins if re.search(rf"\b{letter}\.", columns + where)]
        text = f"SELECT {columns} FROM {' LEFT JOIN '.join([self.source, *needed])}{where}"
        return text.format(base=meta.base_ns, rank=meta.rank)


_EVENT = (
    ("event", "t.event", "Place of the event in the profile, from 0."),
    ("name", "n.text", "Its name."),
    ("category", "s.category", "Its category as written; NULL without one."),
    ("phase", "s.phase", "X complete, i instant, M metadata, s and f arrows."),
    ("pid", "h.pid", "Process, or device for device work."),
    ("tid", "h.tid", "Thread, or stream for device work."),
    ("thread", "t.thread", "Number of the process and thread together."),
    ("start_ns", "t.start_ns + {base}", "When it began, in ns since the epoch."),
    ("dur_ns", "t.dur_ns", "How long it took; NULL where the profile gives no duration."),
    ("args", "s.args", "Its arguments as JSON; those with a column of their own are null here."),
    ("name_id", "t.name", "Number of its name, a row of `names`: for millions of events names are slow."),
    ("args_id", "t.skeleton", "A number that events share only if their arguments are the same."),
)


def _dictionaries(of_skeleton: str = "", of_name: str = "") -> tuple[tuple[str, str], ...]:
    """The dictionaries of a stored table; what is asked of a text is worked out once per text."""
    skeletons = f"(SELECT id, phase, category, text->'$.args' AS args{of_skeleton} FROM stored.skeletons)"
    names = f"(SELECT id, text{of_name} FROM stored.names)"
    return (
        ("n", f"{names} n ON n.id = t.name"),
        ("s", f"{skeletons} s ON s.id = t.skeleton"),
        ("h", "stored.threads h ON h.id = t.thread"),
    )


def _own_columns(table: str) -> tuple[tuple[str, str, str], ...]:
    stored = next(one for one in STORED if one.name == table)
    return tuple(
        (column.name, f"t.{column.name}", column.description) for column in (*stored.columns, *stored.linked)
    )


def _of(name: str, *more: tuple[str, str, str]) -> View:
    stored = next(one for one in STORED if one.name == name)
    return View(
        name,
        stored.description,
        _EVENT + _own_columns(name) + more,
        f"stored.{name} t",
        _dictionaries(),
    )


def _argument(key: str, kind: str) -> str:
    return f"TRY_CAST(json_extract_string(text, '$.args.\"{key}\"') AS {kind})"


_LAUNCH_SHAPE = (
    ("grid", "json_extract_string(text, '$.args.grid')", "Blocks in x, y, z, as a JSON list."),
    ("block", "json_extract_string(text, '$.args.block')", "Threads of a block in x, y, z."),
    ("registers", _argument("registers per thread", "BIGINT"), "Registers of a thread."),
    ("shared_bytes", _argument("shared memory", "BIGINT"), "Shared memory of a block."),
    ("blocks_per_sm", _argument("blocks per SM", "DOUBLE"), "Blocks for each multiprocessor."),
    ("warps_per_sm", _argument("warps per SM", "DOUBLE"), "Warps for each multiprocessor."),
    (
        "occupancy_percent",
        _argument("est. achieved occupancy %", "DOUBLE"),
        "Occupancy as the profiler estimates it; 0 may mean unknown.",
    ),
)


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


_KIND = (
    f"CASE WHEN s.category IN ({_quoted(KERNELS)}) THEN 'kernel' "
    f"WHEN s.category IN ({_quoted(COPIES)}) THEN 'memcpy' ELSE 'memset' END"
)
_WORK_DICTIONARIES = _dictionaries(
    "".join(f", {sql} AS {name}" for name, sql, _ in _LAUNCH_SHAPE),
    f", regexp_matches(text, '{COMMUNICATION_KERNEL}', 'i') AS communicates",
)
_WORK_COLUMNS = (
    *_EVENT,
    ("kind", _KIND, "kernel, memcpy or memset."),
    (
        "communicates",
        f"coalesce(n.communicates, FALSE) AND s.category IN ({_quoted(KERNELS)})",
        "Whether it is a kernel whose name says that it moves data between devices.",
    ),
    ("device_name", "coalesce(t.device::VARCHAR, h.pid)", "The device, by its index."),
    *_own_columns("device_work"),
    *((name, f"s.{name}", description) for name, _, description in _LAUNCH_SHAPE),
)


def _made(table: StoredTable) -> View:
    """A table made at first use, with names and absolute times."""
    columns: list[tuple[str, str, str]] = []
    for column in table.columns:
        expression = f"t.{column.name}"
        if column.name in _INSTANTS:
            expression += " + {base}"
        elif column.name == "name" and column.type == "int32":
            expression = "n.text"
        if column.name == "thread":
            columns += _EVENT[4:6]
        columns.append((column.name, expression, column.description))
    return View(
        table.name,
        f"{table.description} Made at first use.",
        tuple(columns),
        f"stored.{table.name} t",
        _dictionaries(),
        derived=table.name,
    )


_SQL_TYPES = {"int64": "BIGINT", "double": "DOUBLE", "string": "VARCHAR"}


def _side(table: StoredTable) -> View:
    """A side table, with absolute times."""
    columns = tuple(
        (
            column.name,
            f"t.{column.name} + {{base}}" if column.name in _INSTANTS else f"t.{column.name}",
            column.description,
        )
        for column in table.columns
    )
    types = tuple(_SQL_TYPES[column.type] for column in table.columns)
    return View(table.name, table.description, columns, f"stored.{table.name} t", types=types)


_REASONS = (
    "reasons",
    "json_extract_string(s.args, '$.reasons')",
    "Why its clock is below the highest, in words with commas between; empty if nothing holds it back.",
)
_INSTANTS = ("start_ns", "end_ns", "host_start_ns", "host_end_ns", "launch_start_ns")

VIEWS = (
    View(
        "events",
        "Every event of the profile.",
        _EVENT,
        "("
        + " UNION ALL ".join(f"SELECT {', '.join(_NUMBERED)} FROM stored.{table.name}" for table in STORED)
        + ") t",
        _dictionaries(),
    ),
    View(
        "kernels",
        "Kernels that ran on a device.",
        _WORK_COLUMNS,
        "stored.device_work t",
        _WORK_DICTIONARIES,
        f"s.category IN ({_quoted(KERNELS)})",
        part_of=("device_work", "kind = 'kernel'"),
    ),
    View(
        "device_work",
        "Everything that ran on a device: kernels, copies, fills.",
        _WORK_COLUMNS,
        "stored.device_work t",
        _WORK_DICTIONARIES,
    ),
    _of("launches"),
    _of("ops"),
    _of("python_frames"),
    _of("annotations"),
    _of("memory_events"),
    _of("flows"),
    _of("gpu_samples", _REASONS),
    _of("collector_pauses"),
    _of("other_events"),
    View(
        "step_marks",
        "The profiler's step marks on the host (ProfilerStep#k).",
        (
            ("step", "CAST(regexp_extract(n.text, '#(\\d+)', 1) AS BIGINT)", "Number in the mark."),
            *_EVENT[:1],
            ("name", "n.text", "Name of the mark."),
            *_EVENT[4:9],
        ),
        "stored.annotations t",
        _dictionaries(),
        f"s.category = 'user_annotation' AND s.phase = 'X' AND regexp_full_match(n.text, '{STEP_MARK}')",
    ),
    View(
        "skeletons",
        "Distinct texts of events with their counts: one row answers for many events.",
        tuple(
            (name, f"t.{name}", description)
            for name, description in (
                ("category", "Category as written; NULL without one."),
                ("phase", "Phase; NULL without one."),
                ("stored_in", "The table its events are in."),
                ("events", "How many events."),
                ("total_ns", "Their summed duration."),
                ("text", "The event as JSON, null for each value that has a column."),
            )
        ),
        "stored.skeletons t",
    ),
    View(
        "names",
        "The distinct names of events.",
        (
            ("id", "t.id", "Number of the name: `name_id` of the other views."),
            ("text", "t.text", "The name."),
        ),
        "stored.names t",
    ),
    *(_side(table) for table in SIDE),
    *(_made(table) for making in DERIVED for table in making.tables),
    View(
        "meta",
        "What the profile and the store say of themselves, a key and its JSON value a row.",
        (("key", "t.key", "Name of the entry."), ("value", "t.value", "Its value as JSON.")),
        "stored.meta t",
    ),
)
"""All views, in the order in which `stepscope query --schema` shows them."""


def tables_of(view: View) -> tuple[str, ...]:
    """The stored tables that a view reads, beside those made at first use."""
    text = " ".join((view.source, view.where, *(join for _, join in view.joins)))
    named = set(_STORED_NAME.findall(text))
    return tuple(table.name for table in (*STORED, *SIDE) if table.name in named)
