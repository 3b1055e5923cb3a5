"""Runs a program before and after a change, and says what the step gains."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from stepscope import registry, units
from stepscope.capture.settings import Settings
from stepscope.cli.output import color, notice, put, say, width
from stepscope.cli.signature import Rest
from stepscope.cli.traces import compared, here
from stepscope.errors import StepscopeError
from stepscope.present._trial import gained, history_json, history_text, trial_json, trial_text
from stepscope.trials import Trial
from stepscope.trials.pairs import Limits

if TYPE_CHECKING:
    from stepscope.compare import Comparison
    from stepscope.trials import Estimate, Measurement, Promise
    from stepscope.trials.sides import Change, Sides

__all__ = ["try_"]


def try_(
    program: Annotated[
        tuple[str, ...], Rest(), "a script, or -m MODULE, or -- COMMAND, with all of its arguments"
    ] = (),
    *,
    patch: Annotated[
        str | None, "after the change, the code has this patch: a file, or - for standard input"
    ] = None,
    against: Annotated[str | None, "before the change, the code is that of this commit"] = None,
    set: Annotated[
        tuple[str, ...],
        "after the change, NAME=VALUE is set for the program; or --batch-size=64 is its argument; repeatable",
    ] = (),
    promise: Annotated[str | None, 'the gain that is hoped for: "12-18 %"'] = None,
    run: Annotated[str | None, "a run folder, profile or JSON report whose finding promises the gain"] = None,
    finding: Annotated[str | None, "the finding of --run that the change is for"] = None,
    pairs: Annotated[int, "most pairs of runs"] = 10,
    within: Annotated[float, "stop when the gain is known to so many % of the step"] = 1.0,
    minutes: Annotated[float | None, "begin no further pair after so many minutes"] = None,
    steps: Annotated[int | None, "how many steps to measure in each run (default: by their length)"] = None,
    skip: Annotated[
        int | None, "how many steps to leave out first (default: until their time settles)"
    ] = None,
    losses: Annotated[int, "how many of the first losses to compare"] = 20,
    module: Annotated[str | None, "a step is a call of the module of this class"] = None,
    profile: Annotated[bool, "record each side once more, and say what changed in the step"] = False,
    out: Annotated[Path, "the folder of the ledger and of recorded profiles"] = Path("stepscope-runs"),
    history: Annotated[bool, "print what was tried so far, and run nothing"] = False,
    format: Annotated[Literal["terminal", "json"], "how to write the result"] = "terminal",
) -> None:
    """Runs a program before and after a change in turns, and says what the step gains for sure.

    Runs are not profiled, and end when their step is measured. They follow each other as A B B A, until the
    95 % interval of the gain is narrow enough. The change is a patch, a commit or a setting.

    Code is changed in copies, which are removed in the end. Your working tree stays as it is, and its
    uncommitted changes are on both sides of a patch. Files that git ignores are linked into the copies.

    The first losses of all runs are compared, too: with a seed in the program they say whether it still
    computes the same. Every result is added to the ledger, `tries.jsonl`; --history prints it.
    """
    if history:
        _show_history(out, format)
        return
    change = _change(patch, against, set)
    _check(program, pairs, within)
    hoped = _promise(promise, run, finding)
    from stepscope.trials.ledger import add, record_of
    from stepscope.trials.sides import both_sides

    with both_sides(program, change, here()) as sides:
        settings = replace(_measured(sides), steps=steps, skip=skip, module=module, losses=losses)
        limits = Limits(within / 100, pairs, None if minutes is None else 60 * minutes)
        trial = replace(_tried(sides, settings, limits), tried=str(change), promise=hoped)
        ledger = add(out, record_of(trial))
        recorded = _recorded(sides, settings, out, trial.date) if profile else None
    _show(trial, recorded, format)
    notice(f"stepscope: added to {ledger}; stepscope try --history prints it")


def _check(program: Sequence[str], pairs: int, within: float) -> None:
    if not program:
        raise StepscopeError("no program given", hint="stepscope try --patch fix.diff train.py", exit_code=2)
    if pairs < 2 or within <= 0:
        raise StepscopeError(
            "a change is judged by two pairs of runs or more, to more than 0 %",
            hint="stepscope try --pairs 10 --within 1",
            exit_code=2,
        )


def _change(patch: str | None, against: str | None, settings: tuple[str, ...]) -> Change:
    """What differs between the sides."""
    from stepscope.trials.sides import Change

    if patch is None and against is None and not settings:
        raise StepscopeError(
            "nothing to try", hint="give --patch FILE, --against COMMIT or --set NAME=VALUE", exit_code=2
        )
    if patch is not None and against is not None:
        raise StepscopeError("give --patch or --against, not both", hint="stepscope try --help", exit_code=2)
    if patch is None:
        return Change(None, against, settings)
    try:
        text = sys.stdin.buffer.read() if patch == "-" else Path(patch).read_bytes()
    except OSError as error:
        raise StepscopeError(
            f"the patch {patch} cannot be read: {error.strerror}", hint=f"git diff > {patch}"
        ) from error
    if not text.strip():
        raise StepscopeError(f"the patch {patch} is empty", hint="git diff > fix.diff")
    return Change((patch, text), None, settings)


def _promise(text: str | None, run: str | None, finding: str | None) -> Promise | None:
    """What was promised, by the user or by a finding."""
    from stepscope.trials.promises import promise_in, promise_of, promise_of_gains

    if text is not None:
        return promise_of(text)
    if run is None and finding is None:
        return None
    if run is None or finding is None:
        raise StepscopeError(
            "--run and --finding go together", hint="--run RUN --finding scalar-reads", exit_code=2
        )
    told = promise_in(Path(run), finding)
    if told is not None:
        return told
    import stepscope

    found = stepscope.report(run).findings
    gains = [(one.id, one.gain.low_share, one.gain.high_share) for one in found]
    return promise_of_gains(gains, finding, run)


def _measured(sides: Sides) -> Settings:
    """How both sides are measured, after what there is to be warned of."""
    for warning in sides.warnings:
        notice(f"stepscope: {warning}")
    return Settings(str(sides.scratch / "runs"), passes=("unprofiled",), stop_after=True)


def _tried(sides: Sides, settings: Settings, limits: Limits) -> Trial:
    """Runs the pairs; what a program that fails has said last is shown."""
    from stepscope.capture.run_folder import now_text
    from stepscope.trials.losses import compare_losses
    from stepscope.trials.pairs import measure
    from stepscope.trials.running import RunError

    date, began = now_text(), time.monotonic()
    try:
        found = measure((sides.before, sides.after), settings, limits, _tell_pair)
    except RunError as error:
        for line in error.said:
            notice(f"  | {line}")
        raise
    return Trial(
        date=date,
        command=sides.before.command,
        tried="",
        commit=sides.commit,
        before=found.before,
        after=found.after,
        estimate=found.estimate,
        losses=compare_losses([one.losses for one in found.before], [one.losses for one in found.after]),
        promise=None,
        wanted_half_width=limits.half_width,
        took_s=time.monotonic() - began,
    )


def _tell_pair(pair: int, before: Measurement, after: Measurement, so_far: Estimate | None) -> None:
    known = f"; gain so far: {gained(so_far)}" if so_far and so_far.half_width < 1 else ""
    notice(
        f"stepscope: pair {pair}: {units.duration(before.mean_ns)} → {units.duration(after.mean_ns)}{known}"
    )


def _recorded(sides: Sides, settings: Settings, out: Path, date: str) -> Comparison | None:
    """Records each side once more, and compares the runs; they are kept."""
    from stepscope.trials.pairs import record_once

    folder = out / f"try-{date[:19].replace(':', '').replace('T', '-')}"
    for name, side in (("before", sides.before), ("after", sides.after)):
        notice(f"stepscope: recording the step {side.name}")
        if not record_once(side, settings, folder.absolute() / name):
            notice(f"stepscope: no profile was recorded {side.name}, so there is no comparison of the step")
            return None
    return compared([str(folder / "before"), str(folder / "after")])


def _show(trial: Trial, recorded: Comparison | None, format: str) -> None:
    if format == "json":
        diff = json.loads(registry.load("present.diff", "json")(recorded)) if recorded else None
        put(trial_json(trial, diff))
        return
    put(trial_text(trial, width=width(), color=color()))
    if recorded is not None:
        from stepscope.present.diff.terminal import made_of

        say("")
        say("What changed in the step, as recorded once on each side:")
        say("")
        put(made_of(recorded, width=width(), color=color()))


def _show_history(out: Path, format: str) -> None:
    from stepscope.trials.ledger import LEDGER, entries

    found, lost = entries(out)
    if format == "json":
        put(history_json(found))
    elif found:
        put(history_text(found, width=width(), color=color()))
    else:
        say(f"Nothing was tried yet: there is no {out / LEDGER}.")
    if lost:
        notice(f"stepscope: {units.counted(lost, 'line')} of {out / LEDGER} could not be read")
