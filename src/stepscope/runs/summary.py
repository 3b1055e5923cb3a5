"""What the head of a run needs to know of one rank: a few small tables, made once where its profile lies.

Times are nanoseconds since 1970 by the clock of the rank's own host. Whoever reads a summary was perhaps not
the one who wrote it: what does not fit is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any

from stepscope.errors import StepscopeError
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CAUSES",
    "SUMMARY_TABLES",
    "CollectiveCall",
    "ExposedPart",
    "Piece",
    "RankFacts",
    "RankSummary",
    "SummaryStep",
    "WorkShape",
    "read_summary",
    "written_summary",
]

_MAGIC = b"stepscope.summary/1\n"
_MOST_BYTES = 64 << 20
_MOST_HEADER = 1 << 20


@dataclass(frozen=True, slots=True)
class SummaryStep:
    """A step of the rank."""

    step: Annotated[int, "Number of the step, as the profile has it."]
    start_ns: Annotated[int, "When it began, host and device."]
    end_ns: Annotated[int, "When it ended."]


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective, send or receive that the rank took part in."""

    call: Annotated[int, "Its number: in the order of their starts on this rank, from 0."]
    step: Annotated[int | None, "Step in which it began; NULL outside of all."]
    kind: Annotated[str, "As in `collective_kinds`: all-reduce, all-gather, …, send-receive; or unknown."]
    backend: Annotated[
        str, "device (kernels, as of NCCL and RCCL), or where the host does it: gloo, mpi, ucc."
    ]
    group: Annotated[str | None, "Name of the process group; NULL if not recorded."]
    group_ranks: Annotated[str | None, "Ranks of the group, as `0,1,2,3`; NULL if not recorded."]
    group_size: Annotated[int | None, "How many ranks the group has; NULL if not recorded."]
    sequence: Annotated[int | None, "Sequence number in its group; NULL if not recorded."]
    dtype: Annotated[str | None, "Data type of the elements."]
    bytes: Annotated[int | None, "Size of the larger side; NULL if not known."]
    in_bytes: Annotated[int | None, "What this rank gave; NULL if not known."]
    out_bytes: Annotated[int | None, "What this rank got; NULL if not known."]
    in_splits: Annotated[str | None, "Elements for each rank of the group, as `8,8`; NULL for even parts."]
    out_splits: Annotated[str | None, "Elements from each rank of the group; NULL for even parts."]
    source: Annotated[int | None, "Rank that a receive or broadcast takes from; NULL if not known."]
    target: Annotated[int | None, "Rank that a send goes to; NULL if not known."]
    stream: Annotated[str, "Device and stream, or thread, that it ran on: one after the other."]
    asked_ns: Annotated[int | None, "When the host asked for it; NULL if the launch is not known."]
    start_ns: Annotated[int, "When this rank arrived: the start of its kernel or range."]
    dur_ns: Annotated[int, "How long its kernel or range took, with the wait for others."]
    exposed_ns: Annotated[int, "The part of it in which nothing else ran on the device, or on the host."]


@dataclass(frozen=True, slots=True)
class ExposedPart:
    """A stretch of a step in which the rank did nothing but communicate."""

    step: Annotated[int, "The step."]
    call: Annotated[int, "The collective that it waited for: of several at once the last to end."]
    start_ns: Annotated[int, "When it began."]
    dur_ns: Annotated[int, "How long it took."]


CAUSES = (
    "compute",
    "copies",
    "input",
    "memory",
    "collector",
    "compiling",
    "sync",
    "host",
    "other",
)
"""What own time of a rank is spent on; a column `NAME_ns` each, which sum to `dur_ns` of a piece."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Own time of a rank in a step: between two stretches of exposed communication, or arrivals."""

    step: Annotated[int, "The step."]
    start_ns: Annotated[int, "When it began: with the step, at an arrival, or after exposed communication."]
    dur_ns: Annotated[int, "How long it took; pieces and exposed parts together are the step."]
    compute_ns: Annotated[int, "A kernel computed; without a device: an operator ran."]
    copies_ns: Annotated[int, "A copy or fill ran, and none of the above."]
    input_ns: Annotated[int, "The device was idle and the host waited for data."]
    memory_ns: Annotated[int, "It was idle, and the host allocated or freed memory of the driver."]
    collector_ns: Annotated[int, "It was idle, and Python's garbage collector ran."]
    compiling_ns: Annotated[int, "It was idle, and the host compiled, tuned or captured graphs."]
    sync_ns: Annotated[int, "It was idle after a call in which the host waited for it."]
    host_ns: Annotated[int, "It was idle and the host ran Python, operators or launches."]
    other_ns: Annotated[int, "The rest: nothing recorded explains it."]
    kernels: Annotated[int, "Kernels that began in it; without a device: operators at the outermost."]


@dataclass(frozen=True, slots=True)
class WorkShape:
    """Work of one kind in the steps: the same program on another rank does the same."""

    name: Annotated[str, "Name of the kernel; without a device that of the operator."]
    launch_shape: Annotated[str | None, "Its grid and block; for an operator its tensor shapes, if recorded."]
    calls: Annotated[int, "How often it ran in the steps."]
    total_ns: Annotated[int, "Its summed time."]


SUMMARY_TABLES: Mapping[str, type] = {
    "steps": SummaryStep,
    "calls": CollectiveCall,
    "exposed": ExposedPart,
    "pieces": Piece,
    "work": WorkShape,
}
"""The tables of a summary, and what their rows are."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What is known about a rank beside its tables."""

    rank: int
    rank_source: str = ""
    """Where the rank was found: metadata, file name, order."""
    world_size: int | None = None
    host: str = ""
    """Name of its machine; empty if not known."""
    device: str = ""
    """Name of its accelerator, such as NVIDIA H200; empty without one."""
    vendor: str = ""
    torch: str = ""
    source: str = ""
    """The profile that it was made of."""
    measured_ns: tuple[int, int, int] | None = None
    """The step without the profiler, if it was measured: low, mean, high."""
    kernel_ns: int = 0
    """Summed time of the kernels of collectives in the whole profile."""
    notes: tuple[str, ...] = ()
    """What could not be read or was left out, as sentences."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank of a run."""

    facts: RankFacts
    tables: Mapping[str, Table[Any]] = field(default_factory=dict)
    """By name, all of `SUMMARY_TABLES`."""


def written_summary(summary: RankSummary) -> bytes:
    """A summary as bytes: a line of JSON, then its tables in Arrow's format for streams."""
    packed = {name: _packed(summary.tables[name].arrow) for name in SUMMARY_TABLES}
    header = {"facts": asdict(summary.facts), "bytes": {name: len(one) for name, one in packed.items()}}
    return b"".join((_MAGIC, json.dumps(header).encode(), b"\n", *packed.values()))


def read_summary(given: bytes, name: str) -> RankSummary:
    """A summary out of its bytes; `name` says in errors where they came from."""
    try:
        return _read(given)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise StepscopeError(
            f"{name} is not the summary of a rank: {error}", hint="make it again: stepscope summarize PROFILE"
        ) from error


def _packed(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _read(given: bytes) -> RankSummary:
    import pyarrow as pa

    if not given.startswith(_MAGIC) or len(given) > _MOST_BYTES:
        raise ValueError("it does not begin as one, or is too large")
    line_end = given.index(b"\n", len(_MAGIC), len(_MAGIC) + _MOST_HEADER)
    header = json.loads(given[len(_MAGIC) : line_end])
    told, sizes = header["facts"], header["bytes"]
    known = {one.name for one in fields(RankFacts)}
    facts = RankFacts(**{key: _frozen(value) for key, value in told.items() if key in known})
    place = line_end + 1
    tables: dict[str, Table[Any]] = {}
    for name, row in SUMMARY_TABLES.items():
        size = int(sizes[name])
        if size < 0 or place + size > len(given):
            raise ValueError(f"its table {name} is cut short")
        with pa.ipc.open_stream(given[place : place + size]) as reader:
            read = reader.read_all()
        read.validate(full=True)
        tables[name] = Table(row, read)
        place += size
    return RankSummary(facts, tables)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
