"""How a program with a known fault is declared, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

Step = Callable[[], Any]
Kind = Literal["fault", "fair", "healthy"]


@dataclass(frozen=True)
class Program:
    """A program: with a fault and mended, or healthy as it is.

    `finding` is what the faulty side should be told; mending gains at least a tenth of the step. Where the
    kind is `fair` the same pattern is there, but mending it gains nothing. A healthy program has one side.
    """

    name: str
    finding: str | None
    kind: Kind
    about: str
    mend: str | None
    sides: dict[str, Callable[[], Step]]
    environment: dict[str, str] = field(default_factory=dict)  # of the faulty side's process
    light_steps: int = 4
    full: bool = True


PROGRAMS: dict[str, Program] = {}


def pair(
    finding: str, about: str, mend: str, *, kind: Kind = "fault", **options: Any
) -> Callable[[Callable[[bool], Step]], Callable[[bool], Step]]:
    """Declares a builder of both sides: it is told whether to build the faulty one and returns its step."""

    def declare(build: Callable[[bool], Step]) -> Callable[[bool], Step]:
        sides: dict[str, Callable[[], Step]] = {
            "faulty": partial(build, True),
            "mended": partial(build, False),
        }
        PROGRAMS[build.__name__] = Program(build.__name__, finding, kind, about, mend, sides, **options)
        return build

    return declare


def healthy(about: str) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    """Declares a builder of a program that has no fault."""

    def declare(build: Callable[[], Step]) -> Callable[[], Step]:
        PROGRAMS[build.__name__] = Program(build.__name__, None, "healthy", about, None, {"healthy": build})
        return build

    return declare
