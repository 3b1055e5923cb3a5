"""What holds for every analysis, whatever the profile: new analyses and new samples are in by themselves."""

from __future__ import annotations

import gzip
import importlib
import inspect
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyses.drawn import HOW, Spec, apart, draw_worlds
from tests.analyses.oddities import ODDITIES, open_odd, training
from tests.drawing import Drawing
from tests.faults import REPORTED
from tests.samples import FEW, SAMPLES, open_shared, tiered
from tests.trying import tries

import stepscope
from stepscope import registry
from stepscope.store import database
from stepscope.store.trace import Trace
from stepscope.tables import Table

DATA = Path(__file__).parent.parent / "data"
SMALL = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.json.gz"))
PLANTED = [name for name in SMALL if name.startswith(("faults/", "library/"))]
RECORDED = [name for name in SMALL if name.startswith(("recordings/", "together/"))]
QUICK = {
    *({*SMALL} - {*PLANTED, *RECORDED}),
    *RECORDED[::2],
    *[name for name in PLANTED if DATA / name in REPORTED][::10],
}
"""A report asks most analyses about the others in every run, too."""
REAL = [
    "h200_ddp_gloo_rank0.pt.trace.json.gz",
    "recordings/mlp_loader.pt.trace.json.gz",
    "recordings/cuda_graph.pt.trace.json.gz",
]
"""Profiles that are also shuffled, renamed and shifted."""

TRIED_MORE = (*REAL, "two_devices", "host_alone", "devices_alone", "nothing", "arguments_of_the_wrong_kind")
"""Profiles of which everything is asked twice, and with every choice of every option."""
TRIED_IN_EVERY_RUN = (REAL[0], "two_devices", "arguments_of_the_wrong_kind")

INSTANT = re.compile(r"(^|_)(start|end|peak|at|asked)_ns$")
NUMBERS = ("node", "parent", "event", "longest_event", "thread", "pid", "tid")
"""Columns with numbers that mean something only within one store."""

HOST = (
    "cpu_op",
    "user_annotation",
    "python_function",
    "cuda_runtime",
    "cuda_driver",
    "cpu_instant_event",
    "overhead",
)
Rows = list[dict[str, Any]]


def analyses() -> dict[str, Callable[..., Any]]:
    """All analyses whose files are there, listed in the manifest or not."""
    return {
        name: getattr(importlib.import_module(f"stepscope.analyses.{name}"), name)
        for name in registry.scan()["analyses"]
    }


ANALYSES = analyses()


def choices(analysis: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Every other choice of every option that offers choices, and every switch."""
    function = inspect.unwrap(analysis)
    names = vars(importlib.import_module(function.__module__))
    options = {
        name: option
        for name, option in inspect.signature(function).parameters.items()
        if option.kind is option.KEYWORD_ONLY
    }
    hints = {name: function.__annotations__[name] for name in options}

    def carrier() -> None: ...

    carrier.__annotations__ = hints
    for name, hint in get_type_hints(carrier, globalns=names, include_extras=True).items():
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        offered = get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()
        yield from ({name: one} for one in offered if one != options[name].default)


# ---------------------------------------------------------------- every analysis answers


def checked(name: str, trace: Trace, **options: Any) -> Table[Any]:
    """The table of an analysis; that it is one, with all that belongs to it, is asserted."""
    table = ANALYSES[name](trace, **options)
    assert isinstance(table, Table)
    notes: tuple[Any, ...] = table.notes
    assert all(isinstance(note, str) and note.strip() and "\n" not in note for note in notes), notes
    assert len(table) or notes, "an empty table has to say why"
    json.dumps(table.records(), allow_nan=False)
    return table


def attempt(name: str, trace: Trace, **options: Any) -> tuple[Rows, tuple[str, ...], str]:
    """Rows and notes of an analysis, or what went wrong with it."""
    try:
        table = checked(name, trace, **options)
    except Exception as error:  # noqa: BLE001  # the troubles of all analyses shall be told at once
        return [], (), f"{type(error).__name__}: {error}"
    return table.records(), table.notes, ""


def troubles(trace: Trace) -> dict[str, str]:
    """What goes wrong with any analysis."""
    found = {name: attempt(name, trace)[2] for name in ANALYSES}
    return {name: told for name, told in found.items() if told}


def more_troubles(trace: Trace) -> dict[str, str]:
    """The same with every choice of every option; and asked again in another order, of whole tables."""
    asked: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in ANALYSES]
    asked += [(name, chosen) for name, analysis in ANALYSES.items() for chosen in choices(analysis)]
    first = [attempt(name, trace, **chosen) for name, chosen in asked]
    fresh = stepscope.open(trace.folder).reading(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "LIMIT_OURS", False)
        again = [attempt(name, fresh, **chosen) for name, chosen in reversed(asked)]
    found = {f"{name} {chosen}": told for (name, chosen), (_, _, told) in zip(asked, first, strict=True)}
    for (name, chosen), one, other in zip(asked, first, reversed(again), strict=True):
        if one != other:
            found[f"{name} {chosen}"] = f"another time, another answer {other[2]}"
    return {name: told for name, told in found.items() if told}


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_every_analysis_answers_for_a_real_profile(
    name: str, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    assert not troubles(open_shared(sample(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(SMALL, QUICK))
def test_every_analysis_answers_for_a_small_real_profile(name: str, tmp_path: Path) -> None:
    assert not troubles(open_shared(DATA / name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ODDITIES)
def test_every_analysis_answers_for_an_odd_profile(name: str) -> None:
    assert not troubles(open_odd(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(TRIED_MORE, TRIED_IN_EVERY_RUN))
def test_every_choice_of_every_option_is_answered_alike_twice(name: str) -> None:
    assert not more_troubles(open_odd(name) if name in ODDITIES else open_shared(DATA / name))


# ---------------------------------------------------------------- changes that change nothing


def tables_of(drawing: Drawing, shift_ns: int = 0, names: dict[str, str] | None = None) -> dict[str, Any]:
    """Rows and notes of all analyses, at their unshifted times and with the old names of threads."""
    with tempfile.TemporaryDirectory() as folder:
        trace = stepscope.open(drawing.write(Path(folder) / "drawn.json"), store=Path(folder) / "store")
        return {
            name: (comparable(analysis(trace).records(), shift_ns, names or {}), analysis(trace).notes)
            for name, analysis in ANALYSES.items()
        }


def comparable(rows: Rows, shift_ns: int, names: dict[str, str]) -> list[str]:
    """Rows as texts, in any order, without what is a number of one store only."""
    plain = [
        {
            column: value - shift_ns if INSTANT.search(column) and value is not None else value
            for column, value in row.items()
            if column not in NUMBERS
        }
        for row in rows
    ]
    texts = [json.dumps(row) for row in plain]
    for new, old in names.items():
        texts = [text.replace(new, old) for text in texts]
    return sorted(texts)


def changed(drawing: Drawing, events: list[dict[str, Any]]) -> Drawing:
    other = Drawing(pid=drawing.pid, thread=drawing.thread, base_ns=drawing.base_ns)
    other.metadata, other.events = drawing.metadata, events
    return other


def shuffled(drawing: Drawing) -> Drawing:
    return changed(drawing, random.Random(5).sample(drawing.events, len(drawing.events)))


def host_threads(drawing: Drawing) -> set[tuple[Any, Any]]:
    return {(event["pid"], event["tid"]) for event in drawing.events if event.get("cat") in HOST}


def new_names(drawing: Drawing) -> dict[str, str]:
    """For every thread of the host another name, in another order, and its old one."""
    old = sorted({str(thread) for _, thread in host_threads(drawing)}, reverse=True)
    return {f"renamed thread {number}.": name for number, name in enumerate(old)}


def renamed(drawing: Drawing) -> Drawing:
    new = {old: name for name, old in new_names(drawing).items()}
    threads = host_threads(drawing)
    return changed(
        drawing,
        [
            event | {"tid": new[str(event["tid"])]}
            if (event.get("pid"), event.get("tid")) in threads
            else event
            for event in drawing.events
        ],
    )


def shifted(drawing: Drawing, shift_ns: int) -> Drawing:
    shift = Decimal(shift_ns) / 1000
    return changed(
        drawing,
        [
            event | {"ts": Decimal(str(event["ts"])) + shift}
            if "ts" in event and event.get("ph") != "M"
            else event
            for event in drawing.events
        ],
    )


def assert_same(drawing: Drawing, shift_ns: int) -> None:
    plain = tables_of(drawing)
    others = {
        "shuffled": tables_of(shuffled(drawing)),
        "renamed": tables_of(renamed(drawing), names=new_names(drawing)),
        "shifted": tables_of(shifted(drawing, shift_ns), shift_ns),
    }
    wrong = {
        f"{name}, {how}": difference(plain[name], tables[name])
        for how, tables in others.items()
        for name in ANALYSES
        if tables[name] != plain[name]
    }
    assert not wrong


def difference(one: Any, other: Any) -> Any:
    (rows, notes), (other_rows, other_notes) = one, other
    gone = [row for row in rows if row not in other_rows][:3]
    new = [row for row in other_rows if row not in rows][:3]
    return gone, new, notes if notes != other_notes else None, other_notes if notes != other_notes else None


def drawing_of(path: Path) -> Drawing:
    """A real profile as a drawing; times keep their decimals."""
    read = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    drawing = Drawing(base_ns=read.pop("baseTimeNanoseconds", None))
    drawing.events = read.pop("traceEvents")
    drawing.metadata = read
    return drawing


SHIFT_NS = 86_400_000_000_123


@pytest.mark.slow
def test_changes_that_change_nothing_in_a_drawn_training() -> None:
    assert_same(training(devices=2), SHIFT_NS)


def at_instants_of_their_own(worlds: list[list[Spec]]) -> list[list[Spec]]:
    """The same profiles, spread so that no two events of any threads begin or end at once."""
    places = count()
    return [
        [
            (kind, name, 1000 * start + 2 * next(places), 1000 * dur + 1, *more)
            for kind, name, start, dur, *more in world
        ]
        for world in worlds
    ]


@pytest.mark.slow
@settings(HOW, max_examples=tries(1, 30))
@given(apart(3), st.integers(0, 10**15))
def test_changes_that_change_nothing_in_random_profiles(worlds: list[list[Spec]], shift_ns: int) -> None:
    assert_same(draw_worlds(at_instants_of_their_own(worlds)), shift_ns)


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(REAL, REAL[-1:]))
def test_changes_that_change_nothing_in_real_profiles(name: str) -> None:
    assert_same(drawing_of(DATA / name), SHIFT_NS)
