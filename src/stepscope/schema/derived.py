"""Tables that are expensive to make and not always needed: derived at first use, then kept in the store."""

from __future__ import annotations

from stepscope.records import dataclass
from stepscope.schema.events import EVERY_EVENT, Column, StoredTable

__all__ = ["DERIVED", "DerivedTables", "derived_table"]


@dataclass(frozen=True, slots=True)
class DerivedTables:
    """Tables that are made together, at first use, and what has to be made before them."""

    tables: tuple[StoredTable, ...]
    maker: str
    """The function that writes them: `module:function` in `store`, given the trace and a path for each."""
    doing: str
    """What it does, in a word, for the line of progress."""
    needs: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables."""
        return tuple(table.name for table in self.tables)


_EVENT, _THREAD, _NAME, _START, _DURATION, _SHAPE = EVERY_EVENT

DERIVED = (
    DerivedTables(
        (
            StoredTable(
                "host_tree",
                "All duration events of host threads, nested: frames, operators, calls, ranges.",
                (
                    _EVENT,
                    _THREAD,
                    _NAME,
                    _START,
                    _DURATION,
                    Column("stored_in", "string", "Which kind of event: the table it is in."),
                    Column("parent", "int64", "Event around it on its thread; NULL at the outermost."),
                    Column("depth", "int32", "How many events are around it."),
                    Column("self_ns", "int64", "Time in which it was the innermost event of its thread."),
                    Column("frame", "int64", "Event of the innermost Python frame around it."),
                ),
            ),
        ),
        maker="tree:write_host_tree",
        doing="nesting",
    ),
    DerivedTables(
        (
            StoredTable(
                "steps",
                "Steps with their windows: from the profiler's marks, or found where there are none.",
                (
                    Column("step", "int64", "Number in the mark, or counted from 0.", always=True),
                    Column("name", "string", "Name of what marks it."),
                    Column(
                        "source",
                        "string",
                        "How it was found: mark, annotation, optimizer, graph, period, or trace (all of it).",
                        always=True,
                    ),
                    Column("start_ns", "int64", "When the step began, host and device.", always=True),
                    Column("end_ns", "int64", "When it ended.", always=True),
                    Column("host_start_ns", "int64", "When its mark began on the host.", always=True),
                    Column("host_end_ns", "int64", "When its mark ended on the host.", always=True),
                    Column("thread", "int32", "Thread of the mark; NULL where there is none."),
                ),
            ),
        ),
        maker="steps:write_steps",
        doing="finding steps",
    ),
    DerivedTables(
        (
            StoredTable(
                "gaps",
                "Times in which nothing ran on a device, between its first and its last work.",
                (
                    Column("device_name", "string", "The device, by its index.", always=True),
                    Column("start_ns", "int64", "When it fell idle.", always=True),
                    Column("dur_ns", "int64", "For how long.", always=True),
                    Column("before", "int64", "Event of the work that ended last before.", always=True),
                    Column("after", "int64", "Event of the work that ended it.", always=True),
                    Column("launch", "int64", "Event of the launch of that work; NULL if it is unlinked."),
                    Column("thread", "int32", "Thread of that launch."),
                    Column("launch_start_ns", "int64", "When that launch began."),
                    Column(
                        "launch_delay_ns",
                        "int64",
                        "How long after the start of the gap the launch began; 0 if it began before.",
                        always=True,
                    ),
                ),
            ),
        ),
        maker="gaps:write_gaps",
        doing="finding gaps",
    ),
    DerivedTables(
        (
            StoredTable(
                "call_tree",
                "All distinct paths of host calls: frames, ranges, operators and runtime calls, per thread.",
                (
                    Column("node", "int64", "Number of the path; a parent's is smaller.", always=True),
                    Column("parent", "int64", "The path without its last call; NULL for a thread."),
                    Column("depth", "int32", "How many calls are in it.", always=True),
                    Column("thread", "int32", "Its thread.", always=True),
                    Column("stored_in", "string", "Which kind of event its last call is; NULL for a thread."),
                    Column("name", "string", "Name of the last call; NULL for a thread."),
                    Column(
                        "recursive", "int32", "1 if a call of the same name is around the last one, else 0."
                    ),
                    Column("calls", "int64", "How often it was taken.", always=True),
                    Column("total_ns", "int64", "Summed duration of its last call.", always=True),
                    Column("self_ns", "int64", "Time in which its last call was the innermost.", always=True),
                    Column(
                        "inclusive_ns",
                        "int64",
                        "Self time of this path and all that begin with it.",
                        always=True,
                    ),
                    Column("step_self_ns", "int64", "Self time inside the steps.", always=True),
                    Column(
                        "starved_ns",
                        "int64",
                        "Self time in the steps while a device was idle and waited for this thread's launch.",
                        always=True,
                    ),
                    Column("device_ns", "int64", "Device work launched by its last call.", always=True),
                    Column(
                        "launched_ns",
                        "int64",
                        "Device work launched by this path and all that begin with it.",
                        always=True,
                    ),
                    Column("phase", "string", "Phase of training it is in."),
                    Column("module", "int64", "Path that ends at the innermost nn.Module in it."),
                    Column(
                        "user_frame", "int64", "Path that ends at the innermost frame of the user's own code."
                    ),
                    Column(
                        "library_frame",
                        "int64",
                        "Path that ends at the innermost frame of a library inside that; NULL without one.",
                    ),
                ),
            ),
            StoredTable(
                "call_sites",
                "Where in the program operators, runtime calls and allocations were made; "
                "for threads that autograd runs backward on, frames and ranges too.",
                (
                    Column(
                        "event", "int64", "The operator, launch, memory event, frame or range.", always=True
                    ),
                    Column("node", "int64", "Its path: a row of `call_tree`.", always=True),
                    Column("step", "int64", "Step in whose mark it began."),
                    Column("forward", "int64", "For backward: event of the forward operator it belongs to."),
                    Column("phase", "string", "Phase of training.", always=True),
                    Column(
                        "step_self_ns",
                        "int64",
                        "Time inside the steps in which it was the innermost call of its thread.",
                        always=True,
                    ),
                    Column(
                        "starved_ns",
                        "int64",
                        "Such time while a device was idle and waited for a launch of this thread.",
                        always=True,
                    ),
                    Column(
                        "module",
                        "int64",
                        "Path of the innermost nn.Module; in backward that of the forward operator.",
                    ),
                    Column(
                        "user_frame",
                        "int64",
                        "Path of the user's innermost frame; in backward that of the forward operator.",
                    ),
                    Column(
                        "library_frame",
                        "int64",
                        "Path of the innermost frame of a library inside that, likewise; NULL without one.",
                    ),
                ),
            ),
        ),
        maker="call_tree:write_call_tree",
        doing="following calls",
        needs=("steps", "gaps"),
    ),
    DerivedTables(
        (
            StoredTable(
                "replays",
                "Work of replayed graphs, and the operators that launched or captured the same work.",
                (
                    Column("event", "int64", "The replayed work.", always=True),
                    Column("launch", "int64", "The call that launched the graph.", always=True),
                    Column(
                        "sequence", "int64", "Which graph: replays of the same work share it.", always=True
                    ),
                    Column("place", "int64", "Place of the work in the replay, from 0.", always=True),
                    Column("repeats", "int64", "Eager work, or call of the capture, that it repeats."),
                    Column("op", "int64", "Operator of that; NULL also where like stretches disagree."),
                    Column("phase", "string", "Phase of that, likewise."),
                    Column("module", "int64", "Path of the innermost nn.Module of that, likewise."),
                    Column(
                        "user_frame", "int64", "Path of the innermost frame of the user's code, likewise."
                    ),
                    Column(
                        "basis",
                        "string",
                        "eager: the same kernels and launch shapes in a row; capture: calls as many and "
                        "of the same kinds; NULL: nothing alike in the profile.",
                    ),
                ),
            ),
        ),
        maker="replays:write_replays",
        doing="following replays",
        needs=("call_sites",),
    ),
)
"""Large tables that are made at first use."""


def derived_table(name: str) -> StoredTable:
    """The declaration of one of them."""
    return next(table for making in DERIVED for table in making.tables if table.name == name)
