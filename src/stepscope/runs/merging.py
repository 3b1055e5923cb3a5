"""One report of the two passes of a run: the step is the measured one, times are light, places are full.

Recording stacks, shapes and memory slows the host several times over, so that the full pass shows a program
which is more host-bound than the real one. It alone knows lines and shapes. So what both passes find keeps
the figures of the light one, and is given the places of the full one. What only the full pass can find is
kept as the same part of the measured step.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from stepscope.analyses.trust import Caveat
from stepscope.findings import Advice, Saving, analysis_of
from stepscope.findings._starvation import starvation_of
from stepscope.findings._waits import of_shares
from stepscope.findings.build import Judged, report_of, rule_id
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.report import NextStep, NotRun, Passes, PassFacts, Report
from stepscope.patterns import late_pattern
from stepscope.runs import Pass, PassName
from stepscope.runs.choosing import ChosenRank
from stepscope.runs.needs import SEES_MORE, needed_by_analysis
from stepscope.tables import Table

__all__ = ["merged_passes", "merged_report"]

_ASKS_FOR_MORE = late_pattern(
    r"\s*Record (?:once more )?with (?:with_stack|record_shapes|profile_memory)=True[^.]*\."
)
"""A sentence that asks for a recording which the full pass is."""
_ANSWERED = ("missing record", "profiler options")
"""Caveats about what a pass lacks or costs: the other pass makes up for it."""


def merged_report(
    chosen: ChosenRank,
    judged: Mapping[PassName, Judged],
    in_run: Callable[[Judged], Judged] = lambda found: found,
) -> Report:
    """The report on a rank from what the rules say of its passes, by the names of these.

    `in_run` adds what is known of the rank as one of many.
    """
    times, places = _both(judged)
    light, full = judged.get("light"), judged.get("full")
    found = in_run(merged_passes(judged))
    run = chosen.run.folder.resolve().name or str(chosen.run.folder)
    whole = replace(
        found, facts=replace(found.facts, source=run, world_size=_world_size(chosen, found.facts))
    )
    names = ("light" if light else "full", "full" if full else "light")
    told = Passes(
        run=run,
        rank=chosen.record.rank,
        ranks=chosen.ranks,
        measured=chosen.record.measured,
        times=_facts(chosen.record.named(names[0]), times),  # type: ignore[arg-type]
        places=_facts(chosen.record.named(names[1]), places),  # type: ignore[arg-type]
        step=chosen.record.step,
        notes=chosen.record.notes,
    )
    report = report_of(whole)
    first = report.findings[0].id if report.findings else None
    steps = tuple(_in_words_of_runs(one, chosen, first) for one in report.next_steps)
    return replace(report, passes=told, next_steps=steps)


def merged_passes(judged: Mapping[PassName, Judged]) -> Judged:
    """What the passes of a rank say together."""
    times, places = _both(judged)
    return merged(times, places) if times is not places else times


def _both(judged: Mapping[PassName, Judged]) -> tuple[Judged, Judged]:
    """What times are from, and what places are from."""
    light, full = judged.get("light"), judged.get("full")
    times, places = light or full, full or light
    if times is None or places is None:
        raise ValueError("a report needs a pass")
    return times, places


def _in_words_of_runs(step: NextStep, chosen: ChosenRank, first: str | None) -> NextStep:
    """What to do next, for a program that the capture can run again."""
    folder = shlex.quote(str(chosen.run.folder))
    if first is not None and step.command == "stepscope diff BEFORE AFTER":
        tried = chosen.run.again.removeprefix("stepscope run ")
        command = f"stepscope try --run {folder} --finding {first} --patch fix.diff {tried}"
        return NextStep("Fix #1 and nothing else, and measure what that brings, in pairs of runs:", command)
    if not step.command.startswith("torch.profiler.profile("):
        return replace(step, command=step.command.replace(" TRACE ", f" {folder} "))
    if chosen.full is not None:
        command = f"stepscope report {folder}"
        return NextStep("Take the full pass, too, for lines, shapes and memory:", command)
    return NextStep("Record a full pass, too, for lines, shapes and memory:", chosen.run.again)


def _facts(one: Pass, judged: Judged) -> PassFacts:
    name: Literal["light", "full"] = "full" if one.name == "full" else "light"
    return PassFacts(name, one.path.name, judged.mean_step.steps, round(judged.mean_step.step_ns))


def _world_size(chosen: ChosenRank, facts: Facts) -> int | None:
    return facts.world_size or (chosen.run.world_size if chosen.run.world_size > 1 else None)


def merged(light: Judged, full: Judged) -> Judged:
    """What both passes of a program say together."""
    shown = _tables(light.shown, full.shown)
    if "trust" in shown:
        shown["trust"] = _trust(light.shown["trust"], full.shown.get("trust", ()))
    return Judged(
        facts=_known_of_both(light.facts, full.facts),
        mean_step=light.mean_step,
        rules=light.rules,
        advices=dict(_advices(light, full)),
        not_run=tuple(_not_run(light, full)),
        shown=shown,
        tables=_tables(light.tables, full.tables, noted=True),
    )


def _known_of_both(light: Facts, full: Facts) -> Facts:
    return replace(
        light,
        stacks=light.stacks or full.stacks,
        shapes=light.shapes or full.shapes,
        memory=light.memory or full.memory,
        modules=light.modules or full.modules,
        frameworks=full.frameworks or light.frameworks,
        joined=light.joined or full.joined,
    )


def _advices(light: Judged, full: Judged) -> Iterator[tuple[str, Advice]]:
    unknown = {one.id for one in light.not_run}
    for name in light.rules:
        ours, theirs = light.advices.get(name), full.advices.get(name)
        if ours is not None:
            yield name, _placed(ours, theirs)
        elif theirs is not None and full.facts.joined and theirs.saving in (Saving(), Saving(known=False)):
            yield name, theirs  # from a file that was joined with the full pass, and about no time of it
        elif theirs is not None and (rule_id(name) in unknown or name in SEES_MORE):
            # The step of the full pass is a longer one: what counts is the part of it, which is measured.
            gain = full.mean_step.gain(theirs.saving)
            less = min(1.0, _most_share(light, theirs) / (gain.high_share or 1.0))
            yield (
                name,
                replace(
                    theirs,
                    because=f"{theirs.because} (From the full pass.)",
                    saving=of_shares(light.mean_step, less * gain.low_share, less * gain.high_share),
                ),
            )


def _most_share(light: Judged, theirs: Advice) -> float:
    """What a finding of the full pass can gain at most, as a part of the step.

    Recording stacks slows down Python more than anything else, and a full pass has a step or two: one that
    was held up tells nothing. For Python the GPU does not wait longer than in the light pass.
    """
    if Claim(Time.STARVED, Part.PYTHON) not in theirs.claims or "idle_gaps" not in light.shown:
        return 1.0
    starved = starvation_of(light.mean_step, light.shown["idle_gaps"])
    return light.mean_step.share(starved.python_ns)


def _placed(light: Advice, full: Advice | None) -> Advice:
    """The advice of the light pass with what the full one knows about the code."""
    if full is None:
        return light
    because = _ASKS_FOR_MORE.sub("", light.because) if full.locations else light.because
    return replace(
        light,
        because=because,
        fix=full.fix or light.fix,
        locations=full.locations or light.locations,
        evidence={**full.evidence, **light.evidence},
    )


def _not_run(light: Judged, full: Judged) -> Iterator[NotRun]:
    """The rules that neither pass can answer; what failed, failed in either."""
    answers = {one.id: one for one in full.not_run}
    for one in light.not_run:
        if one.crashed:
            yield one
        elif one.id in answers:
            yield answers[one.id]
    failed = {one.id for one in light.not_run if one.crashed}
    yield from (one for one in full.not_run if one.crashed and one.id not in failed)


def _tables(
    light: Mapping[str, Table[Any]], full: Mapping[str, Table[Any]], *, noted: bool = False
) -> dict[str, Table[Any]]:
    """Those of the light pass, but for those that only the full one can fill."""
    found = dict(light)
    for name, table in full.items():
        if needed_by_analysis(*analysis_of(name)) or name not in light:
            found[name] = table.with_notes([*table.notes, "From the full pass."]) if noted else table
    return found


def _trust(light: Table[Caveat], full: Table[Caveat] | tuple[()]) -> Table[Caveat]:
    """The doubts of both passes, each with the pass that it is about."""
    ours = {one.what: one for one in light}
    theirs = {one.what: one for one in full}
    found = [
        one if what in theirs else replace(one, what=f"{what} (light pass)")
        for what, one in ours.items()
        if what not in _ANSWERED
    ]
    found += [
        replace(one, what=f"{what} (full pass)")
        for what, one in theirs.items()
        if what not in ours and what not in _ANSWERED
    ]
    if "missing record" in ours and "missing record" in theirs:
        found.append(theirs["missing record"])
    return Table.of(Caveat, found, light.notes)
