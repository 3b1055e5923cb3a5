"""From a profile, wherever it is, to an open trace: finds its store or makes one."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import registry, units
from stepscope.errors import StepscopeError
from stepscope.runs.choosing import ChosenRank, choose_pass, choose_rank
from stepscope.runs.reading import read_run, run_folder
from stepscope.showing import draw_with
from stepscope.sources import RECORD_ONE, Input, reader_of
from stepscope.store import cache
from stepscope.store.layout import build, check_place, is_store, read_meta, restore
from stepscope.store.leftovers import sweep
from stepscope.store.sums import SUMS, DamagedStore, say
from stepscope.store.trace import Trace
from stepscope.streams import files_in, is_url, open_stream
from stepscope.writing import protect

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.findings.build import Judged
    from stepscope.findings.report import Report
    from stepscope.findings.thresholds import Thresholds
    from stepscope.runs import Pass, PassName
    from stepscope.sources import Source
    from stepscope.streams import Progress

__all__ = [
    "check_pipes",
    "judged_passes",
    "open_pass",
    "open_trace",
    "recordings_of",
    "report_on_run",
]

Maker = Callable[[Path], None]
"""Makes a store in a folder."""

_ENDINGS = (".json", *(f".json.{packed}" for packed in ("gz", "zst", "xz", "bz2", "lz4", "zip")))


def open_trace(
    source: str | Path,
    *,
    also: Sequence[str | Path] = (),
    store: str | Path | None = None,
    refresh: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Opens a profile: a path, `-`, a URL, a folder with one trace in it, or a store.

    What other sources read of the same run is added from `also`. The store is kept in the cache, or in the
    folder `store`; `refresh` makes it anew. Of the folder of a run, the light pass of its lowest rank is
    opened.
    """
    text = str(source)
    if (folder := run_folder(text)) is not None:
        chosen = choose_rank(read_run(folder))
        return open_pass(
            chosen, choose_pass(chosen), also=also, store=store, refresh=refresh, progress=progress
        )
    if text != "-" and not is_url(text) and is_store(path := Path(text)):
        if also:
            raise StepscopeError(
                f"the store {text} is finished: nothing can be added to it",
                hint=f"stepscope ingest PROFILE --also {also[0]}",
            )
        cache.touch(path)
        return _opened(path, lambda: _made_of(path), progress)
    words = [_meant(word) for word in (text, *map(str, also))]
    check_pipes(words)
    where = Path(store) if store is not None else cache.root()
    stamps = cache.stamps(words)
    known = _known(words)
    # What cannot be recognised again, as a pipe, is stored once and not found again.
    unknown = where / f"stream-{os.urandom(8).hex()}"
    target = cache.folder_for(words[0], where, known) or unknown
    check_place(target)
    if store is None:
        cache.limit()  # says what is wrong with it before a long reading, not after
    if refresh or not is_store(target):
        if os.path.isdir(target) and not refresh:  # noqa: PTH112  # or not ours to look into
            say(f"the store {target} is damaged: it has no meta.json; it is made again from {words[0]}")
        _ingest(words, progress, lambda make: build(target, make, replace=refresh), known)
        if known and cache.stamps(words) != stamps:
            # It was written to meanwhile: what was read may not be the version that the name tells.
            target, known = target.rename(unknown), None
        if store is None:
            cache.evict(where, keep=target)
    cache.touch(target)
    versions = known or []
    return _opened(
        target, lambda: words if versions and all(map(_is_version, words, versions)) else [], progress
    )


def open_pass(
    chosen: ChosenRank,
    one: Pass,
    *,
    also: Sequence[str | Path] = (),
    store: str | Path | None = None,
    refresh: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Opens a profile of a run, which then knows the step that was measured without the profiler."""
    added = (*chosen.record.also(one), *also)
    trace = open_trace(one.word, also=added, store=store, refresh=refresh, progress=progress)
    trace.measured = chosen.record.measured
    return trace


def report_on_run(
    chosen: ChosenRank,
    passes: Sequence[Pass] = (),
    *,
    thresholds: Thresholds | None = None,
    tables: Sequence[str] = (),
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """The report on a rank of a run, from some of its passes, or from all that it has."""
    from stepscope.runs.merging import merged_report

    found = judged_passes(
        chosen, passes, thresholds=thresholds, tables=tables, store=store, progress=progress
    )
    return merged_report(chosen, found)


def judged_passes(
    chosen: ChosenRank,
    passes: Sequence[Pass] = (),
    *,
    thresholds: Thresholds | None = None,
    tables: Sequence[str] = (),
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[PassName, Judged]:
    """What the rules say of the passes of a rank."""
    from stepscope.findings.build import judged

    found: dict[PassName, Judged] = {}
    for one in passes or filter(None, (chosen.light, chosen.full)):
        trace = open_pass(chosen, one, store=store, progress=progress)
        found[one.name] = judged(trace, thresholds=thresholds, tables=tables, progress=progress)
    return found


def _opened(folder: Path, made_of: Callable[[], list[str]], progress: Progress | None) -> Trace:
    """An open store; where a file of it turns out damaged, it is made again from its profiles.

    Neither it nor the profiles are to be written over.
    """

    def remake(damage: DamagedStore) -> None:
        if not (words := made_of()):
            raise damage
        say(f"{damage.message}; it is made again from {words[0]}")
        try:
            _ingest(words, progress, lambda make: restore(folder, make), cache.versions(words))
        except StepscopeError as error:
            raise damage from error

    try:
        trace = Trace(folder, progress=progress, analyst=_answer, remake=remake)
    except DamagedStore as damage:
        remake(damage)
        trace = Trace(folder, progress=progress, analyst=_answer, remake=remake)
    protect(folder)
    for source in trace.meta.sources:
        if stat.S_ISREG(_mode(Path(source.source))):
            protect(Path(source.source))
    return trace


def _made_of(store: Path) -> list[str]:
    """The profiles that a store was made of, if all of them are still there and unchanged."""
    try:
        sources = read_meta(store).sources
    except StepscopeError:
        return []
    found = [
        next((word for word in (one.source, one.path) if _is_version(word, one.version)), None)
        for one in sources
    ]
    return [] if None in found else [word for word in found if word]


def _is_version(word: str, version: str) -> bool:
    try:
        return bool(word and version) and cache.versions([word]) == [version]
    except (OSError, ValueError):
        return False


def recordings_of(word: str) -> list[str]:
    """The recordings that a word names: one, those of a folder, of a pattern, or of a list with commas."""
    if word == "-" or is_url(word):
        return [word]
    path = Path(word)
    if run_folder(path) is not None:
        return [word]
    if stat.S_ISDIR(_mode(path)) and not is_store(path) and not reader_of(Input(word)):
        return [str(file) for file in _traces_in(path)]
    if not _mode(path) and "," in word:
        return [one for piece in word.split(",") if piece.strip() for one in recordings_of(piece.strip())]
    if not _mode(path) and glob.has_magic(word):
        found = sorted(glob.glob(word))  # noqa: PTH207  # a pattern may begin anywhere
        if not found:
            raise StepscopeError(f"no file fits the pattern {word}", hint="check the name")
        return found
    return [word]


def check_pipes(words: Sequence[str]) -> None:
    """Refuses a pipe that is named twice: what is read from it once is gone."""
    seen: list[tuple[int, int]] = []
    for word in words:
        try:
            status = os.fstat(0) if word == "-" else Path(word).stat()
        except (OSError, ValueError):
            continue  # opening it will say why
        if (stat.S_ISREG(status.st_mode) and word != "-") or stat.S_ISDIR(status.st_mode):
            continue
        if (status.st_dev, status.st_ino) in seen:
            name = "standard input" if word == "-" else word
            raise StepscopeError(
                f"{name} is named twice, and can be read only once",
                hint="write one of the profiles to a file first",
                exit_code=2,
            )
        seen.append((status.st_dev, status.st_ino))


def _drawn(value: Any) -> str:
    from stepscope.notebook import drawn

    return drawn(value)


# Values are drawn far above the layers in which they live.
draw_with(_drawn)


def _answer(trace: Trace, name: str) -> pa.Table:
    """What an analysis finds, as a table for SQL."""
    return registry.load("analyses", name)(trace).arrow


def _known(words: list[str]) -> list[str] | None:
    """What tells these versions of the profiles from others."""
    for word in words:
        local = word != "-" and not is_url(word)
        if local and stat.S_IFMT(_mode(Path(word))) not in (stat.S_IFIFO, stat.S_IFDIR):
            open_stream(word).close()  # says kindly what is missing
        elif local:
            for file in files_in(Path(word)):
                protect(file)
    return cache.versions(words)


def _mode(path: Path) -> int:
    """What kind of file it is; 0 where that cannot be told, and opening it will say why."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def _meant(word: str) -> str:
    """What a word names: a folder that no source reads as a whole stands for the one trace in it."""
    path = Path(word)
    if word == "-" or is_url(word) or not stat.S_ISDIR(_mode(path)) or reader_of(Input(word)):
        return word
    if is_store(path):
        raise StepscopeError(
            f"{word} is a store, which cannot be added to another", hint="name the file that it was made from"
        )
    return _only_trace(path)


def _traces_in(folder: Path) -> list[Path]:
    try:
        found = sorted(file for file in folder.iterdir() if file.name.endswith(_ENDINGS))
    except OSError as error:
        raise StepscopeError(
            f"the folder {folder} cannot be listed: {error.strerror}", hint=f"check it: ls -ld {folder}"
        ) from error
    if not found and (folder / SUMS).is_file():
        raise DamagedStore(folder, "meta.json", "is missing")
    if not found:
        raise StepscopeError(
            f"there is no trace in the folder {folder}", hint=f"traces end in {', '.join(_ENDINGS)}"
        )
    return found


def _only_trace(folder: Path) -> str:
    found = _traces_in(folder)
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:4])
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise StepscopeError(
            f"the folder {folder} holds {len(found)} traces: {names}{more}",
            hint=f"name one: {found[0]}",
        )
    return str(found[0])


def _ingest(
    words: list[str], progress: Progress | None, write: Callable[[Maker], None], known: list[str] | None
) -> None:
    """Reads profiles, whose versions are known, and has what makes a store of them written to its place."""
    from stepscope.store.writer import StoreWriter, TableTaken

    inputs = [Input(word, progress) for word in words]
    versions = known or [""] * len(words)

    def make(folder: Path) -> None:
        sweep(folder.parent)
        writer = StoreWriter(folder, len(inputs))
        for given, (kind, reader), version in zip(inputs, readers, versions, strict=True):
            try:
                meta = given.completed(reader(given, writer), kind)
            except TableTaken as taken:
                raise StepscopeError(
                    f"{given.name} cannot be read together with {taken.by}: both tell of {taken.table}",
                    hint=f"leave one of them out, or read it on its own: stepscope report {given.word}",
                ) from taken
            writer.end_source(replace(meta, path=_place(given.word), version=version))
        writer.finish()

    try:
        readers = [_known_reader(given) for given in inputs]
        write(make)
    finally:
        for given in inputs:
            given.close()
        if progress:
            progress("reading", 1.0, 0, 0)


def _place(word: str) -> str:
    """Where a file lies, from wherever it was named."""
    return word if word == "-" or is_url(word) else str(Path(word).absolute())


def _known_reader(given: Input) -> tuple[str, Source]:
    if found := reader_of(given):
        return found
    if lost := _lost_pages(given):
        raise StepscopeError(
            f"{given.name} is an SQLite file that is cut short: {lost} are missing",
            hint="copy or export it again",
        )
    what = _what_is(given.head, given.stream.broken)
    raise StepscopeError(f"{given.name} is not a trace: {what}", hint=RECORD_ONE)


def _lost_pages(given: Input) -> str:
    """How much less an SQLite file has than its first page says; empty for one that is whole, or no such."""
    head = given.head
    if not head.startswith(b"SQLite format 3\0") or len(head) < 100 or given.path is None:
        return ""
    size = Path(given.path).stat().st_size
    with Path(given.path).open("rb") as file:
        plain = file.read(16) == head[:16]
    page = int.from_bytes(head[16:18], "big")
    pages, changed = (int.from_bytes(head[at : at + 4], "big") for at in (28, 24))
    valid = int.from_bytes(head[92:96], "big") == changed  # else the number of pages is of an older version
    whole = (1 << 16 if page == 1 else page) * pages
    return units.size(whole - size) if plain and valid and whole > size else ""


def _what_is(head: bytes, broken: str) -> str:
    if not head:
        return broken or "it is empty"
    if head.lstrip()[:1] == b"<":
        return "it is a web page or XML; was the download refused?"
    if head[:1] == b"\x80":
        return "it is a Python pickle, but no snapshot of the allocator"
    if head[:15] == b"SQLite format 3":
        return "it is an SQLite file, but of no profiler that is known"
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "it is UTF-16, not UTF-8: iconv -f UTF-16 -t UTF-8 makes it that"
    if head[257:262] == b"ustar":
        return "it is a tar archive: tar xf takes it apart"
    return "no source knows what it is"
