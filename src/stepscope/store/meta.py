"""What a store says of itself: which sources made it, what each told, and how many rows there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, fields
from typing import Any

from stepscope.records import dataclass
from stepscope.schema import FORMAT, SIDE, STORED

__all__ = ["NO_RANK", "Damage", "SourceMeta", "TraceMeta"]

NO_RANK = "nothing says it; taken as 0"
"""What stands for the place of the rank where a source does not know it."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that could not be read, or only after a repair: what, how often, and where it first was."""

    reason: str
    count: int = 1
    bytes: int = 0
    """How many bytes were lost."""
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceMeta:
    """What one source read and found out. Whoever opens it fills in the first five if they are not set."""

    source: str = ""
    """The file, folder or URL, as the user named it."""
    kind: str = ""
    """The reader: the name of its function."""
    compressed_bytes: int = 0
    bytes: int = 0
    events: int = 0
    base_ns: int = 0
    """What `start_ns` counts from, in ns since 1970; that of the first source holds for the trace."""
    taken_off_ns: int = 0
    """The part of `base_ns` that was taken off the times of the file, so that scripts can count with them."""
    rank: int = 0
    rank_source: str = NO_RANK
    damage: tuple[Damage, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the profile says of itself: the header of a Kineto trace. Keys mean what they mean there."""
    joined: str = ""
    """What its rows and those of a trace have in common, such as `by time`; empty if it began the trace."""
    notes: tuple[str, ...] = ()
    """What has to be known to read its figures: what this kind of profile lacks or bends, in sentences."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Figures that only this kind of source has."""
    path: str = ""
    """Where the file or folder lay, from the root of the disk; a URL as it is."""
    version: str = ""
    """What told this version of it from others, see `store/cache.py`; nothing for a pipe."""

    @classmethod
    def of_json(cls, entry: dict[str, Any]) -> SourceMeta:
        """As it was written."""
        damage = (Damage(**{**one, "offsets": tuple(one["offsets"])}) for one in entry["damage"])
        return cls(**{**entry, "damage": tuple(damage), "notes": tuple(entry["notes"])})

    def as_json(self) -> dict[str, Any]:
        """Its entry in `meta.json`."""
        # Not by `asdict` alone, which would go through a header however deep it is nested.
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**plain, "damage": [asdict(one) for one in self.damage]}


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """What a store says of itself. The first source began the trace; others added to it."""

    sources: tuple[SourceMeta, ...]
    rows: Mapping[str, int]
    """How many rows each stored table has; side tables are there if they have any."""

    @classmethod
    def of_json(cls, entry: dict[str, Any]) -> TraceMeta:
        """As it was written."""
        return cls(tuple(SourceMeta.of_json(one) for one in entry["sources"]), entry["rows"])

    def as_json(self) -> dict[str, Any]:
        """The content of `meta.json`."""
        return {"format": FORMAT, "sources": [one.as_json() for one in self.sources], "rows": dict(self.rows)}

    @property
    def stored(self) -> tuple[str, ...]:
        """The tables that have a file: all of events, and the side tables that a source filled."""
        return (*(table.name for table in STORED), *(one.name for one in SIDE if self.rows.get(one.name)))

    @property
    def source(self) -> str:
        """The profile that began the trace."""
        return self.sources[0].source

    @property
    def kind(self) -> str:
        """The reader that began the trace."""
        return self.sources[0].kind

    @property
    def base_ns(self) -> int:
        """What stored times count from, in ns since 1970."""
        return self.sources[0].base_ns

    @property
    def rank(self) -> int:
        """The rank that recorded it."""
        return self.sources[0].rank

    @property
    def rank_source(self) -> str:
        """Where the rank was found."""
        return self.sources[0].rank_source

    @property
    def metadata(self) -> dict[str, Any]:
        """What the profiles say of themselves; where two say the same key, the first is believed."""
        return {key: value for one in reversed(self.sources) for key, value in one.metadata.items()}

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What could not be read, of all sources."""
        return tuple(damage for one in self.sources for damage in one.damage)

    @property
    def events(self) -> int:
        """How many events there are, of all sources."""
        return sum(one.events for one in self.sources)

    @property
    def bytes(self) -> int:
        """How much was read, decompressed."""
        return sum(one.bytes for one in self.sources)

    @property
    def compressed_bytes(self) -> int:
        """How large the files are."""
        return sum(one.compressed_bytes for one in self.sources)
