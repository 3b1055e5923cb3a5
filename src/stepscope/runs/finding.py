"""Finds the ranks of a run in a folder, a pattern or a bucket, whatever wrote their profiles.

A rank is told by the metadata of its profile, else by the file's name, else by the order of names, and what
it was is said. What is missing or cannot be read is named, and the rest stands.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from glob import has_magic
from pathlib import Path

from stepscope import units
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.runs import FailedRank, Pass, RankRecord, Run
from stepscope.runs._listing import Listed, listed
from stepscope.runs._peeking import Peek, peek, rank_in_name
from stepscope.runs.reading import read_run, run_folder
from stepscope.runs.summary import SUMMARY_ENDING
from stepscope.store.layout import is_store
from stepscope.streams import is_url

__all__ = ["find_run", "is_one_profile", "run_of"]

_SHOWN = 8
"""So many files or stretches of ranks are named in a sentence."""


def is_one_profile(word: str) -> bool:
    """Whether a word names one file, a store or a pipe, and not the folder or pattern of a run."""
    if word == "-":
        return True
    if is_url(word):
        return not word.endswith("/") and listed([word]).files == (word,)
    path = Path(word)
    with suppress(OSError, ValueError):
        return path.exists() and (not path.is_dir() or is_store(path) or _is_read_whole(word))
    return False


def _is_read_whole(folder: str) -> bool:
    """Whether a source takes the folder as one profile, as exports of one table a file are."""
    from stepscope.sources import Input, reader_of

    return reader_of(Input(folder)) is not None


def run_of(words: Sequence[str]) -> Run | None:
    """The run that some words name; None if they name one profile, or nothing that is there."""
    (first, *more) = words
    if not more and run_folder(first) is None:
        there = is_url(first) or has_magic(first) or os.path.lexists(first)
        if not there or is_one_profile(first):
            return None
    return find_run(words)


def find_run(words: Sequence[str], *, summaries: bool = True) -> Run:
    """The run whose profiles words name: a folder, a pattern, an address, or several of any.

    Raises if nothing is left that can be read, or if two files are the same profile of one rank. Files of
    `stepscope summarize` are not looked for if `summaries` is False.
    """
    name = words[0] if len(words) == 1 else f"{words[0]} and {len(words) - 1} more"
    found = listed(words)
    runs = [read_run(folder) for folder in found.recorded]
    peeks = [peek(word) for word in found.files if summaries or not word.endswith(SUMMARY_ENDING)]
    if len(runs) == 1 and all(one.kind in ("none", "summary", "beside") for one in peeks):
        return _with_more(replace(runs[0], name=name), peeks)
    profiles = [one for one in peeks if one.kind == "profile"]
    failed = tuple(
        FailedRank(rank_in_name(one.word), one.word, one.why) for one in peeks if one.kind == "unreadable"
    )
    told = [one for one in peeks if one.kind == "summary"]
    beside = [one for one in peeks if one.kind == "beside"]
    if beside and not profiles and not runs and not told:
        profiles = [beside.pop(0)]  # the first of them stands for the profile
    _check_one_run(name, profiles + told)
    ranks, notes = _ranks(profiles)
    records = _records(profiles, ranks)
    _add_recorded(records, runs)
    records = _summarized(records, told)
    if not records:
        raise _nothing(name, failed, peeks)
    notes += _add_beside(records, beside)
    left_out = [one.name for one in peeks if one.kind == "none" and one.why and _is_meant(one, found)]
    if left_out:
        notes.append(f"Left out, for they are no profiles: {_some(left_out)}.")
    return _run(name, words, records, _Said(profiles + told, runs, failed, tuple(notes)))


def _is_meant(one: Peek, found: Listed) -> bool:
    """Whether somebody could take it for a profile: it was named, or has an ending of profiles."""
    return one.word in found.asked or ".json" in one.name


@dataclass(frozen=True, slots=True)
class _Said:
    """What is known beside the ranks."""

    peeks: Sequence[Peek]
    runs: Sequence[Run]
    failed: tuple[FailedRank, ...]
    notes: tuple[str, ...]


def _run(name: str, words: Sequence[str], records: Mapping[int, RankRecord], said: _Said) -> Run:
    sizes = [one.world_size for one in said.peeks if one.world_size] + [one.world_size for one in said.runs]
    world_size = max([*sizes, max(records) + 1])
    notes = [*said.notes, *_spans(records)]
    missing = [rank for rank in range(world_size) if rank not in records]
    if missing:
        notes.append(f"No profile of {_stretches(missing)} of {units.counted(world_size, 'rank')}.")
    notes += [f"{one.source} cannot be read: {one.reason.rstrip('.')}." for one in said.failed[:_SHOWN]]
    if len(said.failed) > _SHOWN:
        notes.append(f"{units.counted(len(said.failed) - _SHOWN, 'other file')} cannot be read either.")
    first = said.runs[0] if said.runs else None
    return Run(
        folder=_common_folder(words),
        command=first.command if first else (),
        started=min((one.started for one in said.runs), default=""),
        ended=max((one.ended for one in said.runs), default=""),
        exit_code=first.exit_code if first else None,
        world_size=world_size,
        ranks=tuple(records[rank] for rank in sorted(records)),
        name=name,
        failed=said.failed,
        notes=tuple(notes),
    )


# ---------------------------------------------------------------- which rank


def _ranks(profiles: Sequence[Peek]) -> tuple[list[tuple[int, str]], list[str]]:
    """For each profile its rank and where that comes from; and what has to be said of it."""
    names = [rank_in_name(one.word) for one in profiles]
    unknown = [place for place, one in enumerate(profiles) if one.rank is None]
    # The number of a machine is no rank.
    if unknown and all(names[place] is None and not profiles[place].host for place in unknown):
        numbered = _numbered([profiles[place].name for place in unknown])
        for place, number in zip(unknown, numbered, strict=True):
            names[place] = number
    taken = {one.rank if one.rank is not None else name for one, name in zip(profiles, names, strict=True)}
    free = (number for number in range(len(profiles) * 2) if number not in taken)
    order = sorted(unknown, key=lambda place: _natural(profiles[place].word))
    by_order = {place: next(free) for place in order if names[place] is None}
    found: list[tuple[int, str]] = []
    for place, (one, name) in enumerate(zip(profiles, names, strict=True)):
        if one.rank is not None:
            found.append((one.rank, "metadata"))
        elif name is not None:
            found.append((name, "file name"))
        else:
            found.append((by_order[place], "order"))
    return found, _how(profiles, found)


def _how(profiles: Sequence[Peek], found: Sequence[tuple[int, str]]) -> list[str]:
    """Says how ranks were told apart, where their metadata do not."""
    counts = Counter(source for _, source in found)
    notes = []
    if counts["file name"]:
        some, all_of = counts["file name"], len(found)
        who = "The profiles" if some == all_of else f"{units.count(some)} of {units.count(all_of)} profiles"
        verb, names = ("has", "file name") if some == 1 else ("have", "file names")
        notes.append(f"{who} {verb} no rank in the metadata: it is taken from the {names}.")
    if counts["order"] and len(found) > 1:
        named = [
            f"{one.name} is rank {rank}"
            for one, (rank, source) in zip(profiles, found, strict=True)
            if source == "order"
        ]
        notes.append(
            f"Neither metadata nor file name tells the rank of {units.counted(counts['order'], 'profile')}: "
            f"numbered in the order of names ({_some(named)})."
        )
    return notes


def _numbered(names: Sequence[str]) -> list[int | None]:
    """The only small number in which names differ, as in trace_0.json and trace_1.json."""
    pieces = [re.split(r"(\d+)", name) for name in names]
    if len(names) < 2 or len({tuple(one[::2]) for one in pieces}) > 1:
        return [None] * len(names)
    for column in zip(*(one[1::2] for one in pieces), strict=True):
        numbers = [int(text) for text in column if len(text) < 6]
        if len(set(numbers)) == len(names):
            return list(numbers)
    return [None] * len(names)


def _natural(word: str) -> list[tuple[int, str]]:
    """A key for which 2 comes before 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", word)]


# ---------------------------------------------------------------- records


def _records(profiles: Sequence[Peek], ranks: Sequence[tuple[int, str]]) -> dict[int, RankRecord]:
    """The ranks with their profiles, one after the other in time."""
    spans: dict[int, list[tuple[Peek, str]]] = defaultdict(list)
    for one, (rank, source) in zip(profiles, ranks, strict=True):
        spans[rank].append((one, source))
    records = {}
    for rank, found in spans.items():
        found.sort(key=lambda span: (span[0].made, _natural(span[0].word)))
        _check_apart(rank, [one for one, _ in found])
        passes = tuple(_pass(one.word) for one, _ in found)
        host = next((one.host for one, _ in found if one.host), "")
        records[rank] = RankRecord(
            rank=rank, path=None, passes=passes, measured=None, host=host, rank_source=found[0][1]
        )
    return records


def _pass(word: str) -> Pass:
    if is_url(word):
        return Pass("profile", Path(word.rpartition("/")[2]), url=word)
    return Pass("profile", Path(word))


def _check_apart(rank: int, spans: Sequence[Peek]) -> None:
    """Refuses two files that begin alike: one profile of a rank, twice."""
    seen: dict[bytes, str] = {}
    for one in spans:
        if (before := seen.setdefault(one.begin, one.word)) is not one.word:
            raise StepscopeError(
                f"{before} and {one.word} are the same profile of rank {rank}",
                hint="name one of them, or move the other to another folder",
            )


def _add_recorded(records: dict[int, RankRecord], runs: Sequence[Run]) -> None:
    """Adds the ranks of folders that `stepscope run` wrote: one each on several machines."""
    for run in runs:
        for record in run.ranks:
            before = records.get(record.rank)
            if before is not None and before.passes and record.passes:
                raise StepscopeError(
                    f"{before.passes[0].word} and {record.passes[0].word} both are of rank {record.rank}",
                    hint="name the folder of one run",
                )
            if before is None or record.passes:
                records[record.rank] = record


def _summarized(records: dict[int, RankRecord], told: Sequence[Peek]) -> dict[int, RankRecord]:
    """The same with files of `stepscope summarize`, which stand for profiles that may not be there."""
    by_rank: dict[int, list[Peek]] = defaultdict(list)
    for one in told:
        by_rank[one.rank or 0].append(one)
    for rank, found in by_rank.items():
        _check_apart(rank, found)
        words = tuple(one.word for one in sorted(found, key=lambda one: _natural(one.word)))
        record = records.get(rank) or RankRecord(rank, None, (), None, rank_source="metadata")
        host = record.host or found[0].host
        records[rank] = replace(record, summaries=words, host=host)
    return records


def _with_more(run: Run, peeks: Sequence[Peek]) -> Run:
    """A recorded run with the summaries and other files beside its profiles."""
    records = _summarized(
        {one.rank: one for one in run.ranks}, [one for one in peeks if one.kind == "summary"]
    )
    notes = _add_beside(records, [one for one in peeks if one.kind == "beside"])
    return replace(run, ranks=tuple(records[rank] for rank in sorted(records)), notes=(*run.notes, *notes))


def _add_beside(records: dict[int, RankRecord], beside: Sequence[Peek]) -> list[str]:
    """Gives files of other kinds to the rank that their name says; says what was done with others."""
    profiled = [rank for rank, one in sorted(records.items()) if one.passes]
    notes = []
    read: dict[tuple[int, str], Peek] = {}
    known = {word for record in records.values() for word in record.beside}
    for one in sorted(beside, key=lambda one: (one.word not in known, -_size(one))):
        rank = rank_in_name(one.word)
        if len(profiled) == 1 and (rank is None or records[profiled[0]].rank_source == "order"):
            rank = profiled[0]
        elif rank is None and profiled:
            rank = profiled[0]
            notes.append(f"The name of {one.name} says no rank: it is read with rank {rank}.")
        if rank not in profiled:
            notes.append(f"{one.name} is left out: there is no profile of rank {rank} to read it with.")
            continue
        record = records[rank]
        taken = read.setdefault((rank, one.only or one.word), one)
        if taken.word != one.word:
            notes.append(f"{one.name} is left out: one file of its kind can be read, which is {taken.name}.")
        elif one.word not in record.beside:
            records[rank] = replace(record, beside=(*record.beside, one.word))
    return notes


def _size(one: Peek) -> int:
    """Its bytes; 0 if it does not lie on this machine."""
    with suppress(OSError):
        return Path(one.word).stat().st_size
    return 0


def _spans(records: Mapping[int, RankRecord]) -> list[str]:
    """Says which ranks have several profiles."""
    several = [rank for rank, one in sorted(records.items()) if len(one.spans) > 1]
    if not several:
        return []
    subject = f"{_stretches(several).capitalize()} {'has' if len(several) == 1 else 'have'}"
    return [f"{subject} several profiles, which are taken one after the other."]


def _check_one_run(name: str, peeks: Sequence[Peek]) -> None:
    """Refuses profiles of runs with different numbers of ranks."""
    by_size: dict[int, str] = {}
    for one in peeks:
        if one.world_size:
            by_size.setdefault(one.world_size, one.word)
    if len(by_size) > 1:
        found = "; ".join(f"{units.counted(size, 'rank')}: {word}" for size, word in sorted(by_size.items()))
        raise StepscopeError(
            f"{name} holds profiles of several runs ({found})", hint="name the folder or the files of one run"
        )


# ---------------------------------------------------------------- words


def _common_folder(words: Sequence[str]) -> Path:
    """The folder around everything that was named."""
    local = [Path(word) for word in words if not is_url(word)]
    if not local:
        return Path(words[0])
    folders = [str((one if one.is_dir() else one.parent).absolute()) for one in local]
    return Path(words[0]) if len(words) == 1 and local[0].is_dir() else Path(os.path.commonpath(folders))


def _nothing(name: str, failed: Sequence[FailedRank], peeks: Sequence[Peek]) -> StepscopeError:
    if failed:
        reasons = "; ".join(f"{one.source}: {one.reason.rstrip('.')}" for one in failed[:3])
        return StepscopeError(f"no profile in {name} can be read: {reasons}", hint="copy them once more")
    others = [one.name for one in peeks]
    said = f"there is no profile in {name}"
    return StepscopeError(
        f"{said}: {_some(others)} are none" if others else said,
        hint="profiles of the PyTorch profiler end in .json or .json.gz",
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {units.count(len(names) - _SHOWN)} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _stretches(ranks: Sequence[int]) -> str:
    """Ranks in short: rank 3, ranks 1, 4–7."""
    stretches: list[list[int]] = []
    for rank in ranks:
        if stretches and rank == stretches[-1][-1] + 1:
            stretches[-1][1:] = [rank]
        else:
            stretches.append([rank])
    shown = [f"{one[0]}–{one[-1]}" if len(one) > 1 else str(one[0]) for one in stretches]
    return f"rank {shown[0]}" if len(ranks) == 1 else f"ranks {_some(shown)}"
