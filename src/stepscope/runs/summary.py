"""What the head of a run needs to know of one rank: a few small tables, made once where its profile lies.

Times are nanoseconds since 1970 by the clock of the rank's own host. Whoever reads a summary was perhaps not
the one who wrote it: what does not fit is refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, field, fields
from typing import Annotated, Any

from stepscope.analyses._own_causes import CAUSES
from stepscope.analyses.collective_calls import CollectiveCall
from stepscope.analyses.exposed_parts import ExposedPart
from stepscope.analyses.step_pieces import StepPiece
from stepscope.analyses.work_shapes import WorkShape
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.runs.packing import packed, unpacked
from stepscope.tables import Table

__all__ = [
    "CAUSES",
    "HEAD_BYTES",
    "MOST_BYTES",
    "SUMMARY_ENDING",
    "SUMMARY_TABLES",
    "CollectiveCall",
    "ExposedPart",
    "Piece",
    "RankFacts",
    "RankSummary",
    "SummaryStep",
    "WorkShape",
    "is_summary",
    "read_summary",
    "summary_facts",
    "written_summary",
]

_MAGIC = b"stepscope.summary/2\n"
SUMMARY_ENDING = ".summary"
HEAD_BYTES = 1 << 20
"""So many of its first bytes tell the facts of a summary."""
_SUM = 8
MOST_BYTES = 64 << 20
_MOST_HEADER = HEAD_BYTES - 64
_WRONG = (
    ArithmeticError, AttributeError, LookupError, MemoryError, NotImplementedError, OSError, RecursionError,
    TypeError, ValueError,
)  # fmt: skip
"""What reading the bytes of somebody else can fail with."""


@dataclass(frozen=True, slots=True)
class SummaryStep:
    """A step of the rank."""

    step: Annotated[int, "Number of the step, as the profile has it."]
    start_ns: Annotated[int, "When it began, host and device."]
    end_ns: Annotated[int, "When it ended."]


Piece = StepPiece
"""Own time of a rank between two stretches of exposed communication, or arrivals."""

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
    work_steps: int = 0
    """How many steps the work was counted in: all of the profile, although a summary may have fewer."""
    notes: tuple[str, ...] = ()
    """What could not be read or was left out, as sentences."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank of a run."""

    facts: RankFacts
    tables: Mapping[str, Table[Any]] = field(default_factory=dict)
    """By name, all of `SUMMARY_TABLES`."""


def written_summary(summary: RankSummary) -> bytes:
    """A summary as bytes: a checksum, a line of JSON, then its tables, compressed."""
    import pyarrow as pa

    plain = {name: packed(summary.tables[name]) for name in SUMMARY_TABLES}
    small = {name: pa.compress(one, codec="zstd", asbytes=True) for name, one in plain.items()}
    tables = {
        name: {"rows": len(summary.tables[name]), "plain": len(plain[name]), "packed": len(small[name])}
        for name in SUMMARY_TABLES
    }
    header = {"facts": asdict(summary.facts), "tables": tables}
    content = b"".join((json.dumps(header).encode(), b"\n", *small.values()))
    return b"".join((_MAGIC, _checksum(content), b"\n", content))


def is_summary(head: bytes) -> bool:
    """Whether a file begins as a summary."""
    return head.startswith(_MAGIC)


def summary_facts(head: bytes, name: str) -> RankFacts:
    """The facts of a summary out of its first bytes, without its tables and without its checksum."""
    with _explained(name):
        return _facts(_header(head)[0]["facts"])


def read_summary(given: bytes, name: str) -> RankSummary:
    """A summary out of its bytes; `name` says in errors where they came from."""
    with _explained(name):
        return _read(given)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except _WRONG as error:
        why = str(error).partition("\n")[0][:200] or type(error).__name__
        raise StepscopeError(
            f"{name} is not the summary of a rank: {why}", hint="make it again: stepscope summarize PROFILE"
        ) from error


def _read(given: bytes) -> RankSummary:
    import pyarrow as pa

    header, place = _header(given)
    if given[len(_MAGIC) : len(_MAGIC) + _SUM] != _checksum(memoryview(given)[len(_MAGIC) + _SUM + 1 :]):
        raise ValueError("it is damaged: its checksum differs")
    facts, told = _facts(header["facts"]), header["tables"]
    if sum(_size(told[name]["plain"]) for name in SUMMARY_TABLES) > MOST_BYTES:
        raise ValueError("its tables are too large")
    tables: dict[str, Table[Any]] = {}
    for name, row in SUMMARY_TABLES.items():
        plain, size = _size(told[name]["plain"]), _size(told[name]["packed"])
        if place + size > len(given):
            raise ValueError(f"its table {name} is cut short")
        text = pa.decompress(given[place : place + size], plain, codec="zstd", asbytes=True)
        tables[name] = unpacked(row, _size(told[name]["rows"]), text)
        place += size
    if place != len(given):
        raise ValueError("there is more in it than it says")
    return RankSummary(facts, tables)


def _header(given: bytes) -> tuple[dict[str, Any], int]:
    """What it says of itself, and where its tables begin."""
    if not is_summary(given) or len(given) > MOST_BYTES:
        raise ValueError("it does not begin as one, or is too large")
    begin = len(_MAGIC) + _SUM + 1
    line_end = given.find(b"\n", begin, begin + _MOST_HEADER)
    if line_end < 0 or given[begin - 1 : begin] != b"\n":
        raise ValueError("it is cut short")
    return json.loads(given[begin:line_end]), line_end + 1


def _checksum(content: bytes | memoryview) -> bytes:
    return b"%08x" % zlib.crc32(content)


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_BYTES:
        raise ValueError("a size that cannot be")
    return value


def _facts(told: Mapping[str, Any]) -> RankFacts:
    """The facts, each of the type that it has to have; what another version adds is passed over."""
    known = {one.name for one in fields(RankFacts)}
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in told.items()
    }
    facts = RankFacts(**{key: value for key, value in given.items() if key in known})
    texts = (facts.rank_source, facts.host, facts.device, facts.vendor, facts.torch, facts.source)
    numbers = (facts.rank, facts.kernel_ns, facts.work_steps, *(facts.measured_ns or (0, 0, 0)))
    optional = (facts.world_size,) if facts.world_size is not None else ()
    if (
        not all(isinstance(one, str) for one in (*texts, *facts.notes))
        or not all(type(one) is int and 0 <= one < 1 << 62 for one in (*numbers, *optional))
        or len(numbers) != 6
    ):
        raise ValueError("a fact of the wrong type")
    return facts
