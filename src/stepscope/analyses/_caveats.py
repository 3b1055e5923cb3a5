"""What in a trace could bend a figure, and how far; each check looks at one thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from stepscope import _native, units
from stepscope.analyses.compilations import compilations
from stepscope.analyses.devices import devices
from stepscope.analyses.idle_gaps import SpentIn, idle_gaps
from stepscope.analyses.start_ups import CODE_LOADING, start_ups
from stepscope.analyses.step_classes import step_classes
from stepscope.records import dataclass
from stepscope.store.columns import view
from stepscope.store.marks import MOST_STEPS
from stepscope.store.steps import queued_until
from stepscope.store.trace import Reads, Trace

__all__ = ["CAVEAT_READS", "EVENT_CHECKS", "NO_END", "Caveat", "Check", "Steps"]

_TIMES = ("event", "start_ns", "dur_ns", "name", "thread", "pid", "category", "phase")

CAVEAT_READS: Reads = {
    "steps": ("step", "source", "start_ns", "end_ns", "host_start_ns"),
    "device_work": (*_TIMES, "launch", "kind", "communicates", "occupancy_percent", "recorded_ns"),
    "launches": _TIMES,
    "ops": _TIMES,
    "python_frames": _TIMES,
    "annotations": _TIMES,
    "other_events": _TIMES,
    "skeletons": ("category", "phase", "stored_in", "events", "text"),
}
"""What all checks read."""

HOUR_NS = 3_600_000_000_000
LEAST_LAUNCHES = 8
BLOCKING_SHARE = 0.5
WARM_UP = 1.5
"""By how much the first step must be longer than others of its kind."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """One thing that could distort numbers of this trace."""

    rank: Annotated[int, "Rank that recorded the profile."]
    what: Annotated[str, "What it is."]
    count: Annotated[int, "How many events, steps or entries it concerns."]
    effect_ns: Annotated[int | None, "How much time it could add or hide; NULL if unknown."]
    effect_share: Annotated[float | None, "The same as a share of what `of` names."]
    of: Annotated[str | None, "What the share refers to."]
    explanation: Annotated[str, "What it means."]
    advice: Annotated[str, "What to do."]
    reason: Annotated[str | None, "Why the effect is unknown."]


class Steps:
    """The windows of all steps: the headline that a doubt is held against."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.rows = trace.rows(
            "SELECT step, source, start_ns, end_ns, host_start_ns FROM steps WHERE end_ns > start_ns "
            "ORDER BY start_ns, end_ns, host_start_ns"
        )
        self.lengths = [row["end_ns"] - row["start_ns"] for row in self.rows]
        self.total_ns = sum(self.lengths)

    def covered(self, events: str, *, but: str | None = None, **params: Any) -> int:
        """For how long in all steps an event of a query was open, given its `start_ns` and `dur_ns`.

        The time in which one of `but` was open, too, does not count.
        """
        if not self.rows:
            return 0
        starts, ends = ([row[key] for row in self.rows] for key in ("start_ns", "end_ns"))
        sweep = _native.PrioritySweep(starts, ends, 2)
        labelled = f"SELECT start_ns, dur_ns, 1::BIGINT AS label FROM ({events}) WHERE dur_ns > 0"
        if but:
            labelled += f" UNION ALL SELECT start_ns, dur_ns, 0::BIGINT FROM ({but}) WHERE dur_ns > 0"
        for batch in self._trace.batches(f"{labelled} ORDER BY start_ns", **params):
            sweep.push(*map(view, batch.columns))
        sweep.finish()
        return sum(parts[1] for parts in sweep.by_window_ns)

    def doubt(self, what: str, count: int, effect_ns: int, text: str, advice: str) -> Caveat:
        """A doubt whose effect is a part of the time of all steps."""
        share = min(1.0, effect_ns / self.total_ns) if self.total_ns else None
        return Caveat(self._trace.rank, what, count, effect_ns, share, "step time", text, advice, None)

    def vague(self, what: str, count: int, text: str, advice: str, reason: str) -> Caveat:
        """A doubt whose effect is not known."""
        return Caveat(self._trace.rank, what, count, None, None, None, text, advice, reason)


Check = Callable[[Trace, Steps], Iterator[Caveat]]


def _one(trace: Trace, sql: str, **params: Any) -> dict[str, Any]:
    row: dict[str, Any] = trace.rows(sql, **params)[0]
    return row


_COUNTS = """
    SELECT count(*) FILTER (launch IS NULL AND early) AS early,
           count(*) FILTER (launch IS NULL AND NOT early) AS unlinked, count(recorded_ns) AS clipped,
           coalesce(sum(recorded_ns - dur_ns), 0)::BIGINT AS taken_ns,
           coalesce(sum(dur_ns), 0)::BIGINT AS left_ns,
           coalesce(sum(dur_ns) FILTER (recorded_ns IS NOT NULL), 0)::BIGINT AS clipped_ns
    FROM (SELECT launch, recorded_ns, dur_ns,
                 coalesce(start_ns < min(start_ns) FILTER (launch IS NOT NULL) OVER (), FALSE) AS early
          FROM device_work)
"""


def _counts(trace: Trace) -> dict[str, Any]:
    """What several checks count of device work, in one question."""
    found: dict[str, Any] = trace.once("counts of device work", lambda: _one(trace, _COUNTS))
    return found


_FIRST_LINKED = "(SELECT min(start_ns) FROM device_work WHERE launch IS NOT NULL)"
_EARLY = f"launch IS NULL AND coalesce(start_ns < {_FIRST_LINKED}, FALSE)"
_UNLINKED = f"launch IS NULL AND NOT ({_EARLY})"


def unlinked_work(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Device work without a launch, among work that has one."""
    count = _counts(trace)["unlinked"]
    if count:
        effect = steps.covered(f"SELECT start_ns, dur_ns FROM device_work WHERE {_UNLINKED}")
        yield steps.doubt(
            "unlinked work",
            count,
            effect,
            "Device work whose launch is not in the profile counts for the device, but for no operator, "
            "module or line, and its step is unknown.",
            "Record host and device together (activities=[CPU, CUDA]), and stop the profiler between steps.",
        )


def work_launched_before(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Work that was under way when the profile began, and so moves the start of the first step."""
    count = _counts(trace)["early"]
    if count:
        first = steps.rows[0] if steps.rows else None
        yield steps.doubt(
            "work launched before the profile",
            count,
            max(0, first["start_ns"] - first["host_start_ns"]) if first else 0,
            "The device still had work when the profile began: the first step starts when that was done.",
            "Synchronise before the profiler starts, or give it a warm-up: schedule(warmup=1, ...).",
        )


def unrecorded_work(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Launched work that stood in a queue while nothing recorded ran."""
    what, advice = "unrecorded device work", "Record more steps in a row, and read the later ones."
    until = _one(trace, queued_until())["end_ns"]
    before = max(0, until - steps.rows[0]["host_start_ns"]) if until is not None and steps.rows else 0
    if before:
        yield steps.vague(
            what,
            1,
            f"Work launched at the start of the profile stood in the queue for {units.duration(before)}: the "
            "device was busy with work that is not in the file. The first step starts when that was done.",
            advice,
            "The steps hold none of that time.",
        )
    held = [gap for gap in idle_gaps(trace) if gap.spent_in == SpentIn.UNRECORDED_WORK]
    if held:
        yield steps.doubt(
            what,
            sum(gap.gaps for gap in held),
            sum(gap.idle_ns for gap in held),
            "Launched work stood in the queue while nothing recorded ran: another process used the device, "
            "or the profiler lost events. This time is idle with an unknown cause.",
            advice,
        )


_OVERLAPS = f"""
    SELECT start_ns, least(before_ns, end_ns) - start_ns AS dur_ns FROM (
        SELECT start_ns, start_ns + coalesce(dur_ns, 0) AS end_ns, max(start_ns + coalesce(dur_ns, 0)) OVER (
                   PARTITION BY thread ORDER BY start_ns, event
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
        FROM device_work WHERE start_ns IS NOT NULL AND coalesce(dur_ns, 0) <= {HOUR_NS})
    WHERE before_ns > start_ns AND end_ns > start_ns
"""


def overlapping_work(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Work on one stream at the same time."""
    count = _one(trace, f"SELECT count(*) AS n FROM ({_OVERLAPS})")["n"]
    if count:
        yield steps.doubt(
            "overlapping work",
            count,
            steps.covered(_OVERLAPS),
            "Work that ran on one stream while other work did: kernels that are allowed to start early "
            "wait inside, so their durations sum to more than the time they took.",
            "Read `exclusive_ns` of `kernels` in place of `total_ns`.",
        )


_HOST_TABLES = ("launches", "ops", "python_frames", "annotations")
_ENDLESS = " UNION ALL ".join(
    f"SELECT start_ns, dur_ns, {table == 'device_work'} AS on_device FROM {table} WHERE dur_ns > {HOUR_NS}"
    for table in ("device_work", *_HOST_TABLES)
)
_NO_TIME = ("a negative duration", "a time that is no number")


def impossible_times(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Durations below zero, times that are no numbers, events of more than an hour."""
    bad = sum(one.count for one in trace.meta.damage if one.reason.startswith(_NO_TIME))
    endless = _one(trace, f"SELECT count(*) AS n FROM ({_ENDLESS})")["n"]
    text = (
        f"{units.count(bad)} durations were negative or no numbers and count as 0, {units.count(endless)} "
        "events claim to have taken more than an hour: the clock or the writer was wrong."
    )
    advice = "Record again, with a newer torch if there is one; leave these events out of what you read."
    if endless:
        yield steps.doubt("impossible times", bad + endless, steps.covered(_ENDLESS), text, advice)
    elif bad:
        yield steps.vague(
            "impossible times", bad, text, advice, "How long they really took is not in the profile."
        )


def impossible_durations(trace: Trace, _: Steps) -> Iterator[Caveat]:
    """Device work that cannot have lasted as long as the profile says, and was clipped."""
    found = _counts(trace)
    if found["clipped"]:
        taken, clipped = found["taken_ns"], found["clipped_ns"]
        yield Caveat(
            trace.rank,
            "impossible durations",
            found["clipped"],
            taken,
            taken / (taken + found["left_ns"]),
            "recorded device time",
            f"{units.counted(found['clipped'], 'piece')} of device work lasted "
            f"{units.duration(taken + clipped)} by the profile, while later work of the same stream began "
            "and ended. That cannot be: the profiler lost their ends. They count as "
            f"{units.duration(clipped)}: as long as similar work, or up to the next work of their stream.",
            "Nothing: all figures leave this time out; `recorded_ns` of `device_work` has the raw durations.",
            None,
        )


_WINDOW_END = """
    SELECT min(end_ns) AS end_ns FROM (
        SELECT start_ns AS end_ns FROM other_events WHERE name = 'Record Window End'
        UNION ALL SELECT start_ns + dur_ns FROM other_events WHERE category = 'Trace' AND phase = 'X')
"""
_UNFINISHED = " UNION ALL ".join(
    f"SELECT start_ns, dur_ns FROM {table} WHERE start_ns < $at AND start_ns + dur_ns >= $at {more}"
    for table, more in (("ops", ""), ("launches", ""), ("annotations", "AND category = 'user_annotation'"))
)


NO_END = ("a slice that has no end", "a range that has no end")
"""How the reader of Perfetto traces begins to say that something was open when the recording ended."""
_STOP = "Stop the profiler after the step: call its step() as the last thing of the loop."


def unfinished_events(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Events that were open when the profiler stopped, and were ended by it."""
    open_ = [sum(one.count for one in trace.meta.damage if one.reason.startswith(kind)) for kind in NO_END]
    if any(open_):
        named = zip(open_, ("slice", "range"), strict=True)
        said = " and ".join(units.counted(n, noun) for n, noun in named if n)
        yield steps.vague(
            "unfinished events",
            sum(open_),
            f"Open when the recording ended: {said}. A slice is taken to last until then; a range may be a "
            "step, and one without an end is none.",
            _STOP,
            "How long they would have lasted is not in the profile.",
        )
    at = _one(trace, _WINDOW_END)["end_ns"]
    count = _one(trace, f"SELECT count(*) AS n FROM ({_UNFINISHED})", at=at)["n"] if at is not None else 0
    if count:
        yield steps.doubt(
            "unfinished events",
            count,
            steps.covered(_UNFINISHED, at=at),
            "Operators, calls or ranges that reach to the end of the profile or beyond were still open "
            "when it was stopped: their durations are those of the profile.",
            _STOP,
        )


_WAITED = """
    SELECT l.start_ns, l.dur_ns, l.start_ns + l.dur_ns >= w.end_ns AS waited
    FROM launches l JOIN (
        SELECT launch, max(start_ns + coalesce(dur_ns, 0)) AS end_ns FROM device_work
        WHERE kind = 'kernel' AND launch IS NOT NULL GROUP BY launch) w ON w.launch = l.event
"""


def blocking_launches(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Launches that return after their kernel: the program was told to wait for each."""
    found = _one(trace, f"SELECT count(*) FILTER (waited) AS waited, count(*) AS launches FROM ({_WAITED})")
    if found["launches"] >= LEAST_LAUNCHES and found["waited"] >= BLOCKING_SHARE * found["launches"]:
        yield steps.doubt(
            "blocking launches",
            found["waited"],
            steps.covered(f"SELECT start_ns, dur_ns FROM ({_WAITED}) WHERE waited"),
            f"{units.share(found['waited'] / found['launches'])} of the calls that launch kernels return "
            "after their kernel is done: host and device take turns, and no figure here is that of a "
            "normal run.",
            "Unset CUDA_LAUNCH_BLOCKING (AMD_SERIALIZE_KERNEL) and record again.",
        )


_TOO_EARLY = """
    SELECT count(*) AS n, max(l.start_ns - w.start_ns) AS most
    FROM device_work w JOIN launches l ON l.event = w.launch WHERE w.start_ns < l.start_ns
"""
_DISORDER = """
    SELECT count(*) AS n, max(before_ns - start_ns) AS most FROM (
        SELECT w.start_ns, max(w.start_ns) OVER (
                   PARTITION BY w.thread, l.thread ORDER BY l.start_ns, l.event
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
        FROM (SELECT launch, thread, min(start_ns) AS start_ns FROM device_work WHERE launch IS NOT NULL
              GROUP BY launch, thread) w JOIN launches l ON l.event = w.launch)
    WHERE start_ns < before_ns
"""


def clock_offset(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Work that began before its launch did: the clocks of host and device disagree."""
    found = _one(trace, _TOO_EARLY)
    if found["n"]:
        yield steps.doubt(
            "clock offset",
            found["n"],
            found["most"],
            f"Work that begins before its launch, by up to {units.duration(found['most'])}: the clocks of "
            "host and device disagree, so launch delays and the ends of steps are off by as much.",
            "Take delays below that as unknown; a newer driver or torch converts the clocks better.",
        )


def disordered_work(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Work of one stream that began before work which the same thread had launched earlier."""
    found = _one(trace, _DISORDER)
    if found["n"]:
        yield steps.doubt(
            "disordered work",
            found["n"],
            found["most"],
            "Work began before work that its thread had launched earlier on the same stream, by up to "
            f"{units.duration(found['most'])}: a clock went backwards, or links are wrong.",
            "Do not trust delays of launches and the critical path to less than that.",
        )


def profiler_overhead(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Events in which the profiler itself worked, as far as no device did: beside one it costs nothing."""
    events = f"""
        SELECT start_ns, dur_ns FROM other_events WHERE category = 'overhead' AND phase = 'X'
            AND NOT coalesce(regexp_matches(name, '{CODE_LOADING}'), FALSE)
    """
    count = _one(trace, f"SELECT count(*) AS n FROM ({events})")["n"]
    device = "SELECT start_ns, dur_ns FROM device_work" if trace.has("device_work") else None
    effect = steps.covered(events, but=device) if count else 0
    if effect:
        yield steps.doubt(
            "profiler overhead",
            count,
            effect,
            "The profiler fetched buffers (Buffer Flush and the like) while no work ran on a device.",
            "Record fewer steps at once, or leave the first recorded one out.",
        )


def warm_up(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """A first step that is much longer than others of its kind."""
    if len(steps.lengths) < 3:
        return
    first, others = steps.lengths[0], steps.lengths[1:]
    if first <= WARM_UP * min(others):
        return
    number = steps.rows[0]["step"]
    usual: float = max(others)
    for like in step_classes(trace):
        if like.steps >= 3 and like.first_step == number:
            usual = (like.mean_ns * like.steps - first) / (like.steps - 1)
    if first > WARM_UP * usual:
        yield steps.doubt(
            "warm-up",
            1,
            round(first - usual),
            f"The first step took {units.duration(first)}, others like it {units.duration(usual)}: caches, "
            "allocations and choices of algorithms are in it.",
            "Leave it out, or give the profiler more steps to wait: schedule(wait=5, warmup=2, ...).",
        )


def compilation(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Compiling inside of steps."""
    found = [row for row in compilations(trace) if row.step is not None]
    if found:
        yield steps.doubt(
            "compilation",
            sum(row.times for row in found),
            sum(row.total_ns for row in found),
            "Something was compiled or tuned inside of the steps; a run without the profiler does that once.",
            (
                "Record after the compiler is done: more steps to wait, and look at `compilations` for what "
                "recompiles."
            ),
        )


def start_up(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """What a run does once, inside of the steps."""
    found = [row for row in start_ups(trace) if row.step is not None]
    if found:
        kinds = Counter[str]()
        for row in found:
            kinds[row.kind] += row.total_ns
        told = ", ".join(f"{kind} {units.duration(ns)}" for kind, ns in kinds.most_common())
        alone = " There is no other step to compare with." if len(steps.rows) == 1 else ""
        yield steps.doubt(
            "start-up",
            sum(row.times for row in found),
            kinds.total(),
            f"The steps contain what a run does once: {told}. A long run is not limited by it.{alone}",
            "Record later steps: schedule(wait=5, warmup=2, ...); `start_ups` lists the calls.",
        )


def unknown_occupancy(trace: Trace, _: Steps) -> Iterator[Caveat]:
    """Kernels whose occupancy neither the profile says nor can be worked out."""
    rows = [row for row in devices(trace) if row.window == "span" and row.kernel_ns]
    kernel_ns = sum(row.kernel_ns for row in rows)
    unknown_ns = round(sum(row.kernel_ns * (1 - (row.occupancy_known_share or 0.0)) for row in rows))
    if unknown_ns:
        unsaid = "kind = 'kernel' AND coalesce(occupancy_percent, 0) <= 0"
        yield Caveat(
            trace.rank,
            "unknown occupancy",
            _one(trace, f"SELECT count(*) AS n FROM device_work WHERE {unsaid}")["n"],
            unknown_ns,
            unknown_ns / kernel_ns,
            "kernel time",
            "The profile has no occupancy for these kernels, and for part of their time it cannot be "
            "worked out from the launch: the mean occupancy is that of the rest.",
            (
                "Nothing: profiles of this device do not have it. Use the vendor's kernel profiler where it "
                "matters."
            ),
            None,
        )


def left_out_steps(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """More steps than are looked at."""
    if (
        len(steps.rows) > MOST_STEPS // 2
        and _one(trace, "SELECT count(*) AS n FROM steps")["n"] == MOST_STEPS
    ):
        yield steps.vague(
            "left-out steps",
            MOST_STEPS,
            f"Only the first {units.count(MOST_STEPS)} steps are looked at.",
            "Cut the part that matters: stepscope cut TRACE --time 10s:20s -o PART.",
            "What is in the other steps was not looked at.",
        )


EVENT_CHECKS: tuple[Check, ...] = (
    left_out_steps,
    unlinked_work,
    work_launched_before,
    unrecorded_work,
    overlapping_work,
    impossible_times,
    impossible_durations,
    unfinished_events,
    blocking_launches,
    clock_offset,
    disordered_work,
    profiler_overhead,
    warm_up,
    compilation,
    start_up,
    unknown_occupancy,
)
"""Those that look at events."""
