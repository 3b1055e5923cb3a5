"""How a trial and the ledger of trials are written: for the terminal, and as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope import units
from stepscope.present._lines import Line, fitted, printed, styled, wrapped
from stepscope.trials import Estimate, Promise, Trial
from stepscope.trials.ledger import record_of

__all__ = ["gained", "history_json", "history_text", "promised", "trial_json", "trial_text"]

_BADGES = {
    "faster": ("FASTER", "bold white on green"),
    "slower": ("SLOWER", "bold white on red"),
    "noise": ("NO CHANGE", "bold white on blue"),
}
_KEPT = {
    "inside": "The measured gain is inside.",
    "within its error": "The measured gain agrees with it within its error.",
    "less": "The measured gain is less.",
    "more": "The measured gain is more.",
}


def gained(found: Estimate) -> str:
    """A gain with its error: `15.2 ± 0.8 %`, with as many digits as the error is worth."""
    return _plus_minus(found.gain_share, found.half_width)


def _plus_minus(share: float, half: float) -> str:
    digits = 0 if half >= 0.095 else 1 if half >= 0.00095 else 2
    middle = f"{share * 100:.{digits}f}".replace("-", "−")
    return f"{middle} ± {max(half * 100, 10**-digits):.{digits}f} %"


def promised(promise: Promise) -> str:
    """A promise: `12–18 %`."""
    return units.percents(promise.low_share, promise.high_share)


def trial_text(trial: Trial, *, width: int, color: bool) -> str:
    """A trial for the terminal."""
    return printed(_trial_lines(trial, fitted(width)), color=color)


def trial_json(trial: Trial, diff: Mapping[str, Any] | None = None) -> str:
    """A trial for other programs, with what changed in the step if that was recorded."""
    record = record_of(trial)
    if diff is not None:
        record["diff"] = diff
    return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _trial_lines(trial: Trial, width: int) -> Iterator[Line]:
    runs = (*trial.before, *trial.after)
    steps = sum(len(run.steps_ns) for run in runs)
    what = [
        trial.tried,
        _program(trial.command),
        f"commit {trial.commit}" if trial.commit else "",
        f"{units.counted(trial.estimate.pairs, 'pair')} of runs, {units.counted(steps, 'step')}",
        units.duration(trial.took_s * 1e9),
    ]
    yield from wrapped(" · ".join(filter(None, what)), width)
    yield styled()
    badge, style = _BADGES[trial.estimate.word]
    indent = len(badge) + 6
    first, *rest = _sentences(trial)
    for at, line in enumerate(wrapped(first, width, indent=indent)):
        if at == 0:
            yield styled("  ", (f" {badge} ", style), "  ", "".join(piece for piece, _ in line).lstrip())
        else:
            yield line
    for sentence in rest:
        yield from wrapped(sentence, width, indent=indent, first=" " * indent)


def _sentences(trial: Trial) -> Iterator[str]:
    found = trial.estimate
    ends = f"{units.duration(trial.before_ns)} → {units.duration(trial.after_ns)}"
    if found.word == "noise":
        yield f"No change beyond noise: {gained(found)}, {ends}."
    elif found.word == "faster":
        yield f"The step is {gained(found)} shorter: {ends}."
    else:
        yield f"The step is {_plus_minus(-found.gain_share, found.half_width)} longer: {ends}."
    if trial.promise is None:
        yield "No promise is known: --promise, or --run RUN --finding ID."
    else:
        by = f" by {trial.promise.finding}" if trial.promise.finding else ""
        yield f"Promised{by}: {promised(trial.promise)}. {_kept(trial)}"
    yield trial.losses.sentence
    if not trial.is_narrow:
        yield (
            f"The error is above {units.share(trial.wanted_half_width)}: more pairs make it smaller "
            f"(--pairs {2 * found.pairs}), and so does an idle machine."
        )
    yield from trial.notes


def _kept(trial: Trial) -> str:
    if trial.estimate.word == "noise" and trial.kept == "within its error":
        return "The measurement neither shows nor excludes it."
    return _KEPT[trial.kept or "inside"]


def _program(command: Sequence[str]) -> str:
    """The program as one would type it, without the path of Python."""
    words = list(command)
    if words and "python" in Path(words[0]).name and len(words) > 1:
        words = words[1:]
    said = shlex.join([Path(words[0]).name, *words[1:]]) if words else ""
    return said if len(said) <= 60 else f"{said[:59]}…"


_COLUMNS = ("date", "commit", "tried", "promised", "measured", "verdict", "losses")


def history_text(records: Sequence[Mapping[str, Any]], *, width: int, color: bool) -> str:
    """The ledger for the terminal, oldest first."""
    rows = [_row(record) for record in records]
    widths = [max(len(head), *(len(row[at]) for row in rows)) for at, head in enumerate(_COLUMNS)]
    spare = max(width, 60) - sum(widths) - 2 * (len(widths) - 1)
    if spare < 0:  # what was tried may be long, and its beginning tells most
        widths[2] = max(12, widths[2] + spare)
    lines = [styled(("  ".join(_fit(head, widths[at]) for at, head in enumerate(_COLUMNS)), "bold"))]
    lines += [styled("  ".join(_fit(cell, widths[at]) for at, cell in enumerate(row))) for row in rows]
    return printed(lines, color=color)


def _fit(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    measured, promise = record["measured"], record.get("promised")
    half = (measured["high_share"] - measured["low_share"]) / 2
    kept = record.get("promise_kept")
    verdict = {"noise": "no change"}.get(record["verdict"], str(record["verdict"]))
    return (
        str(record["date"])[:16].replace("T", " "),
        str(record.get("commit") or units.ABSENT),
        str(record["tried"]),
        units.percents(promise["low_share"], promise["high_share"]) if promise else units.ABSENT,
        _plus_minus(measured["gain_share"], half),
        f"{verdict}, {_short(kept, verdict)}" if kept else verdict,
        str(record.get("losses", {}).get("verdict") or units.ABSENT),
    )


def _short(kept: str, verdict: str) -> str:
    if kept == "within its error" and verdict == "no change":
        return "not certain"
    return "as promised" if kept in ("inside", "within its error") else f"{kept} than promised"


def history_json(records: Sequence[Mapping[str, Any]]) -> str:
    """The ledger for other programs: a list of its records."""
    return json.dumps(list(records), indent=2, ensure_ascii=False) + "\n"
