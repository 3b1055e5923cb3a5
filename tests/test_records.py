"""Our data classes behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stepscope import records

Maker = Callable[..., Any]
MAKERS: tuple[Maker, Maker] = (dataclasses.dataclass, records.dataclass)

_OPTIONS = [
    {"frozen": True, "slots": True},
    {"frozen": True},
    {"slots": True},
    {"eq": False},
    {},
]


def _classes(make: Maker, options: dict[str, bool]) -> tuple[Any, Any, Any]:
    """A class, one that builds on it, and one without fields."""

    @make(**options)
    class Point:
        """Where something is."""

        x: int
        y: float = 1.5
        tags: list[str] = dataclasses.field(default_factory=list)

        def __str__(self) -> str:
            return "a point"

    @make(**options)
    class Named(Point):
        """A point that has a name, which is not empty."""

        name: str = "here"
        seen: int = dataclasses.field(default=0, repr=False, compare=False)

        def __post_init__(self) -> None:
            if not self.name:
                raise ValueError("no name")

    @make(**options)
    class Nothing:
        pass

    return Point, Named, Nothing


def _behaviour(make: Maker, options: dict[str, bool]) -> dict[str, Any]:
    """What can be seen of them from outside."""
    point, named, nothing = _classes(make, options)
    one = named(1, tags=["a"])
    seen: dict[str, Any] = {
        "repr": [repr(point(1)), repr(one), repr(nothing()), str(point(1))],
        "signature": [str(inspect.signature(cls)) for cls in (point, named, nothing)],
        "fields": [[field.name for field in dataclasses.fields(cls)] for cls in (point, named, nothing)],
        "equal": [
            point(1) == point(1),
            point(1) == point(2),
            point(1) == named(1),
            one == "text",
            named(1, seen=1) == named(1),
        ],
        "no number": point(math.nan) == point(math.nan),
        "dictionary": dataclasses.asdict(one),
        "replaced": repr(dataclasses.replace(one, y=2.0)),
        "copied": repr(copy.deepcopy(one)),
        "own lists": point(1).tags is not point(1).tags,
        "match": [cls.__match_args__ for cls in (point, named, nothing)],
        "has a dictionary": hasattr(one, "__dict__"),
    }
    doings: dict[str, Callable[[], Any]] = {
        "hash": lambda: hash(point(1, 2.0, ())) == hash(point(1, 2.0, ())),
        "set": lambda: setattr(one, "x", 3),
        "delete": lambda: delattr(point(1), "x"),
        "too few": point,
        "too many": lambda: nothing(1),
        "post_init": lambda: named(1, name=""),
    }
    for doing, act in doings.items():
        try:
            seen[doing] = act()
        except (AttributeError, TypeError, ValueError) as error:
            seen[doing] = type(error).__name__
    return seen


@pytest.mark.parametrize("options", _OPTIONS, ids=str)
def test_they_behave_as_those_of_the_standard_library(options: dict[str, bool]) -> None:
    theirs, ours = (_behaviour(make, options) for make in MAKERS)
    assert ours == theirs


@records.dataclass(frozen=True, slots=True)
class Kept:
    """One that can be found by its name."""

    x: int
    y: str = ""


def test_they_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, "a"))) == Kept(1, "a")


def test_what_it_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match=r"dataclasses\.dataclass"):

        @records.dataclass(frozen=True)
        class _Hidden:
            x: int = dataclasses.field(init=False)


def test_all_but_the_capture_use_them() -> None:
    """The capture takes what is there in other people's programs; an ordered class needs the real one."""
    package = Path(records.__file__).parent
    others = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "import dataclass" in (text := path.read_text(encoding="utf-8"))
        and "from dataclasses import dataclass" in text
    }
    assert {one for one in others if not one.startswith("capture/")} <= {
        "records.py",
        "doctor/probe.py",
        "runs/clock_fit.py",
    }


@pytest.mark.parametrize("make", MAKERS)
def test_types_of_fields_are_kept_as_they_are_written(make: Maker) -> None:
    @make(frozen=True, slots=True)
    class Point:
        most: ClassVar[int] = 3
        x: int
        name: str | None = None

    @make(frozen=True, slots=True)
    class Named(Point):
        name: str = "here"

    def told(made: Any) -> list[tuple[str, Any]]:
        return [(one.name, one.type) for one in dataclasses.fields(made)]

    kept = {"most": "ClassVar[int]", "x": "int", "name": "str | None"}
    assert (Point.__annotations__, Named.__annotations__) == (kept, {"name": "str"})
    assert told(Point) == [("x", "int"), ("name", "str | None")]
    assert told(Named) == [("x", "int"), ("name", "str")]
    assert Point.most == 3
