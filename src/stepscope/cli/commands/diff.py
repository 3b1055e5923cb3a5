"""Says how the step changed between traces, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope.cli.output import chosen, show
from stepscope.cli.signature import NameIn, Written
from stepscope.cli.traces import ComparedRankOption, compared
from stepscope.errors import StepscopeError

__all__ = ["diff"]

_FORMATS = "present.diff"


def diff(
    sides: Annotated[
        tuple[str, ...], "two or more sides, oldest first: each is a profile or several runs (see above)"
    ],
    *,
    format: Annotated[
        str | None, NameIn(_FORMATS), "how to write the comparison; default: terminal, or by the ending of -o"
    ] = None,
    output: Annotated[Path | None, Written(), "-o", "write the comparison to this file"] = None,
    rank: ComparedRankOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Says how the step changed from one trace to the next, why, and whether it is more than noise.

    stepscope diff BEFORE AFTER compares two traces. stepscope diff A B C D shows the history of a tuning
    effort: what each change gained, and what all of them gained together.

    A side can be several runs of one program. The noise is then measured from these runs. Write such a side
    as one word: a folder (before/), a quoted pattern ('before-*.json.gz'), or names joined by commas
    (a1.json.gz,a2.json.gz). With one run per side, stepscope assumes that runs differ by 3 %, because the
    steps of one run do not show how runs differ.

    The parts of the change sum to it exactly. If the sides differ in device, batch or profiler options, the
    comparison says so.
    """
    if len(sides) < 2:
        raise StepscopeError("diff needs two sides or more", hint="stepscope diff BEFORE AFTER", exit_code=2)
    from stepscope.present._changes import share

    wanted = chosen(_FORMATS, format, output)
    built = compared(sides, store=store, rank=rank)
    show(_FORMATS, wanted, built, output, done=f"{built.whole.word}, {share(built.whole.share)}")
