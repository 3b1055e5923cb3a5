"""What could bend the figures of a trace."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._caveats import CAVEAT_READS, EVENT_CHECKS, NO_END, Caveat, Check, Steps
from stepscope.analyses._slowing import slower_device
from stepscope.analyses._windows import how_steps_were_found
from stepscope.analyses.step_limits import MOST_ERROR, error_of, step_limits
from stepscope.simulation.calibration import SLOWER_DEVICE
from stepscope.store.meta import NO_RANK, Damage
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["LOST", "Caveat", "trust"]

LOST = "lost bytes"
"""The caveat about a file that is cut short, or of which parts could not be read."""
_APART = 0.05
"""By how much, as a part of it, a measured step may be shorter than what the recorded ones come to."""
_OPTIONS = {"with_stack": "Python stacks", "record_shapes": "shapes", "profile_memory": "memory"}


@analysis(reads=CAVEAT_READS)
def trust(trace: Trace) -> Table[Caveat]:
    """Lists what could distort the numbers: how often, by how much at most, and what to do.

    The effect is a bound on time inside the steps if `of` does not say otherwise; several doubts may concern
    the same time. What does not apply to this trace has no row. Doubts without a known effect come last.
    """
    steps = Steps(trace)
    found = [doubt for check in (*EVENT_CHECKS, *RECORDING_CHECKS) for doubt in check(trace, steps)]
    found.sort(key=lambda one: -1.0 if one.effect_share is None else one.effect_share, reverse=True)
    return Table.of(Caveat, found, how_steps_were_found(trace))


def damaged_file(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Bytes that were lost, and text that was repaired while reading."""
    lost: list[Damage] = []
    repaired: list[Damage] = []
    odd: list[Damage] = []
    for one in trace.meta.damage:
        reason = one.reason
        if reason.startswith(("a negative duration", "a time that is no number", *NO_END)):
            continue
        place = repaired if reason.startswith("repaired") else lost if _loses(one) else odd
        place.append(one)
    for what, entries, text, advice in (
        (
            LOST,
            lost,
            "Parts of the file could not be read",
            "Copy the file once more, or record again.",
        ),
        (
            "repaired text",
            repaired,
            "Text in the file was not JSON and was repaired",
            "Nothing, if names look right.",
        ),
        (
            "odd file",
            odd,
            "The file is not laid out as a profile should be",
            "Look at how it was written or merged.",
        ),
    ):
        if entries:
            named = "; ".join(f"{units.count(one.count)} x {one.reason}" for one in entries)
            size = sum(one.bytes for one in entries)
            said = f"{text}: {named}" + (f" ({units.size(size)})." if size else ".")
            reason = "What was there is not known." if what == LOST else "No event was lost."
            yield steps.vague(what, sum(one.count for one in entries), said, advice, reason)


def _loses(one: Damage) -> bool:
    """Whether a kind of damage lost events: bytes are gone, or the file ended too early."""
    early = (
        *("cut short", "ends inside damage", "does not end", "stream is broken", "ends too early"),
        "read up to there",
    )
    return bool(one.bytes) or any(word in one.reason for word in early)


def profiler_options(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Options that make the program slower while it is recorded."""
    chosen = [text for key, text in _OPTIONS.items() if trace.meta.metadata.get(key)]
    if chosen:
        yield steps.vague(
            "profiler options",
            len(chosen),
            f"Recorded with {', '.join(chosen)}: each event cost the host some time that a normal run does "
            "not need, so that the host looks slower than it is.",
            "Compare the time of a step with that of a run without the profiler.",
            "How fast the program is without the profiler is not in the profile.",
        )


_SHAPES = """
    SELECT count(*) > 0 AS shapes FROM skeletons WHERE stored_in = 'ops' AND contains(text, 'Input Dims')
"""


def missing_record(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """What was not recorded and therefore cannot be told."""
    if trace.meta.kind != "kineto":
        return  # what other kinds lack does not depend on options of the profiler: `source_notes`
    missing = {
        "operators (activities=[CPU, ...])": not trace.has("ops"),
        "Python stacks (with_stack=True): no lines and modules": not trace.has("python_frames"),
        "shapes (record_shapes=True): no FLOPs and batches": not trace.rows(_SHAPES)[0]["shapes"],
        "memory (profile_memory=True)": not trace.has("memory_events"),
    }
    named = [text for text, is_missing in missing.items() if is_missing]
    if named:
        yield steps.vague(
            "missing record",
            len(named),
            f"Not recorded: {'; '.join(named)}.",
            "Record once more with these, and take times from the profile without them.",
            "It moves no time; what needs it has no answer.",
        )


def source_notes(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """What a kind of profile lacks or bends, as its reader says."""
    for one in trace.meta.sources:
        for note in one.notes:
            yield steps.vague(
                f"{one.kind.replace('_', ' ')} file", 1, note, "", "It is so in all profiles of this kind."
            )


def unexplained_length(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Steps whose length the recorded events do not explain."""
    limits = step_limits(trace)
    error = error_of(limits)
    if error > MOST_ERROR:
        plain = next(iter(limits))
        yield steps.doubt(
            "unexplained length of steps",
            plain.steps,
            round(error * plain.measured_ns) * len(steps.rows),
            f"A simulation of the recorded events takes {units.duration(plain.simulated_ns)} for a step that "
            f"took {units.duration(plain.measured_ns)}: work or waiting is not in the profile. No gain is "
            "computed from the simulation.",
            "Record host and device together; kernels of graphs need CUPTI of CUDA 12 or later.",
        )


def measured_apart(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """A step that was measured without the profiler, and that the recorded ones do not come to."""
    measured = trace.measured
    plain = next((row for row in step_limits(trace) if row.times == 1 and row.simulated_ns), None)
    if measured is None or plain is None:
        return
    recorded = plain.measured_ns / plain.simulated_ns
    low, high = plain.unprofiled_low_ns * recorded, plain.unprofiled_high_ns * recorded
    shorter, longer = low - measured.high_ns, measured.low_ns - high
    off = max(shorter, longer)
    # A device that has worked for long is a little slower: gains are the same part of such a step.
    if shorter > _APART * measured.mean_ns or longer > SLOWER_DEVICE * measured.mean_ns:
        yield steps.doubt(
            "measured step differs",
            measured.steps,
            round(off) * len(steps.rows),
            f"A step takes {units.duration(measured.mean_ns)} without the profiler, but the recorded ones "
            f"come to {units.between(low, high)} without the cost of recording. Either the steps differ, or "
            "the device was faster or slower meanwhile.",
            "Gains are parts of the measured step. Record more steps if they differ in what they do.",
        )


_MARK_STEPS = {
    **dict.fromkeys(("nsys", "rocprof"), 'Put each step into a range: with torch.cuda.nvtx.range("step").'),
    "etdump": "Write the ETDump after at least one whole execution of a method.",
}


def steps_without_marks(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Steps that were found by what repeats, not by the profiler's marks."""
    if steps.rows and steps.rows[0]["source"] != "mark":
        yield steps.vague(
            "steps without marks",
            len(steps.rows),
            " ".join(how_steps_were_found(trace)),
            _MARK_STEPS.get(trace.meta.kind, "Call step() on the profiler after each step."),
            "Whether these are the steps of the program is not in the profile.",
        )


def several_processes(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Host events of more than one process in one file."""
    pids = [
        row["pid"]
        for row in trace.rows("SELECT DISTINCT pid FROM launches UNION SELECT DISTINCT pid FROM ops")
    ]
    if len(pids) > 1 and trace.meta.kind != "kineto":  # these know whose work it is
        yield steps.vague(
            "several processes",
            len(pids),
            f"Host events of {len(pids)} processes are in one file: what the host does is the sum of all.",
            "Record each process into a file of its own.",
            "How much of a step is whose is not told apart.",
        )
    elif len(pids) > 1:
        yield steps.vague(
            "several processes",
            len(pids),
            f"Host events of {len(pids)} processes are in one file: device work carries no process, and "
            "numbers that link it to its launch may be those of another.",
            "Analyse the file of each rank by itself.",
            "Which links are wrong is not in the profile.",
        )


def events_without_category(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Events with a duration and no category, which count for nothing."""
    sql = "SELECT coalesce(sum(events), 0)::BIGINT AS n FROM skeletons WHERE category IS NULL AND phase = 'X'"
    count = trace.rows(sql)[0]["n"]
    if count:
        yield steps.vague(
            "events without category",
            count,
            (
                "Events without a category are in no figure of operators, calls or devices, for nothing says "
                "what they are."
            ),
            'See them with: stepscope query TRACE "SELECT * FROM other_events WHERE category IS NULL".',
            "What they are is not in the profile.",
        )


_TALKS = """
    SELECT (SELECT count(*) FROM device_work WHERE communicates) > 0
        OR (SELECT count(*) FROM annotations WHERE regexp_matches(name, '^(gloo|mpi|ucc|nccl):')) > 0 AS talks
"""


def unknown_rank(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """A program of several ranks whose rank nothing says; alone, a program is rank 0."""
    if trace.meta.rank_source == NO_RANK and trace.rows(_TALKS)[0]["talks"]:
        yield steps.vague(
            "unknown rank",
            1,
            "The program communicates with other ranks, but neither the profile nor its name says which "
            "this is; it is taken as 0.",
            "Name the file rank<k>.json, or record after init_process_group.",
            "It moves no time of this rank; a comparison of ranks may be of the wrong ones.",
        )


RECORDING_CHECKS: tuple[Check, ...] = (
    damaged_file,
    profiler_options,
    missing_record,
    source_notes,
    unexplained_length,
    measured_apart,
    slower_device,
    steps_without_marks,
    several_processes,
    events_without_category,
    unknown_rank,
)
"""Those that look at what and how was recorded."""
