"""What a profile says about each collective: SQL that the analyses of collectives share.

A kernel's own arguments say most, then those of the operator `record_param_comms` that torch puts around a
collective, inside `c10d::…`, and the range `nccl:…` in it. Where the host communicates there is a range
`gloo:…` alone.
"""

from __future__ import annotations

from stepscope.schema import COMMUNICATION_RANGE
from stepscope.store.trace import Reads

__all__ = ["ALL_RANGES", "COLLECTIVE_NAMES", "COLLECTIVE_READS", "GROUPED", "INSIDE", "KERNELS"]
__all__ += ["MARKED_RANGES", "RANGES", "TOLD", "first_type", "grouped_by"]

COLLECTIVE_NAMES = (
    "(?i)nccl|rccl|oneccl|nvshmem|deep.?ep|cross.?device.?reduce|multimem|all.?reduce|all.?gather"
    "|reduce.?scatter|all.?(to|2).?all"
)
"""Without such a name no kernel is a collective; a cheap look before the questions."""


def _argument(of: str, key: str) -> str:
    return f"json_extract_string({of}, '$.\"{key}\"')"


def _either(key: str) -> str:
    """An argument of the kernel, else of the operator that the profiler puts around a collective."""
    return f"coalesce({_argument('w.args', key)}, {_argument('w.op_args', key)})"


def _given(place: int) -> str:
    """A value that was given to record_param_comms, by its place.

    These are: tensors, sequence number, group, rank, collective, sizes for each rank in and out, first rank
    of the group, distance of its ranks, number of them.
    """
    return f"json_extract_string(w.op_args, '$.\"Concrete Inputs\"[{place}]')"


_MORE = {
    "sequence": f"coalesce({_either('Seq')}, {_given(1)})",
    "in_splits": _either("In split size"),
    "out_splits": _either("Out split size"),
    "source": _either("Src Rank"),
    "target": _either("Dst Rank"),
    "root": f"coalesce({_either('Rank')}, {_given(3)})",
    "first_rank": f"coalesce({_either('Global rank start')}, {_given(7)})",
    "rank_stride": f"coalesce({_either('Global rank stride')}, {_given(8)})",
    "given_size": _given(9),
}
"""What only the list of single collectives asks."""
KERNELS = f"""
    WITH ranges AS (
        SELECT thread, start_ns, start_ns + dur_ns AS end_ns, name, args FROM annotations
        WHERE name LIKE 'nccl:%' AND category = 'user_annotation' AND dur_ns > 0),
    work AS (
        SELECT w.event, w.name, w.device_name, w.stream, w.start_ns, coalesce(w.dur_ns, 0) AS dur_ns, w.args,
               l.thread, l.start_ns AS at, o.args AS op_args,
               CASE WHEN o.name = 'record_param_comms' THEN coalesce(p.name, o.name) ELSE o.name END AS op
        FROM (FROM device_work WHERE communicates) w
        LEFT JOIN (SELECT event, thread, start_ns FROM launches) l ON l.event = w.launch
        LEFT JOIN (SELECT event, name, parent, args FROM ops) o ON o.event = w.op
        LEFT JOIN (SELECT event, name FROM ops) p ON p.event = o.parent)
    SELECT w.event, w.device_name, w.start_ns, w.dur_ns, w.at AS asked_ns,
           concat_ws('/', w.device_name, w.stream) AS queue, 'device' AS backend, w.name AS kernel, w.op,
           {_either("Collective name")} AS own, {_either("In msg nelems")} AS elements_in,
           {_either("Out msg nelems")} AS elements_out, {_either("dtype")} AS dtype,
           {_either("Process Group Name")} AS group_name, {_either("Group size")} AS group_size,
           {_either("Process Group Ranks")} AS ranks,
           CASE WHEN w.at < r.end_ns THEN r.name END AS range,
           CASE WHEN w.at < r.end_ns THEN {_argument("r.args", "Input Dims")} END AS dims,
           CASE WHEN w.at < r.end_ns THEN {_argument("r.args", "Input type")} END AS types,
           {", ".join(f"{sql} AS {name}" for name, sql in _MORE.items())}
    FROM work w ASOF LEFT JOIN ranges r ON r.thread = w.thread AND w.at >= r.start_ns
"""
"""Collectives that are kernels."""
RANGES = f"""
    SELECT w.event, NULL::VARCHAR AS device_name, w.start_ns, w.dur_ns, NULL::BIGINT AS asked_ns,
           concat_ws('/', w.pid, w.tid) AS queue, split_part(w.name, ':', 1) AS backend, w.name AS kernel,
           NULL::VARCHAR AS op, NULL::VARCHAR AS own, NULL::VARCHAR AS elements_in,
           NULL::VARCHAR AS elements_out, NULL::VARCHAR AS dtype, NULL::VARCHAR AS group_name,
           NULL::VARCHAR AS group_size, NULL::VARCHAR AS ranks, w.name AS range,
           {_argument("w.args", "Input Dims")} AS dims, {_argument("w.args", "Input type")} AS types,
           {", ".join(f"NULL::VARCHAR AS {name}" for name in _MORE)}
    FROM ({{ranges}}) w WHERE w.dur_ns > 0 AND regexp_matches(w.name, '{COMMUNICATION_RANGE}')
"""
"""Collectives that the host does, in `ranges`."""
_OF_RANGES = "event, pid, tid, name, start_ns, dur_ns, args"
MARKED_RANGES = f"SELECT {_OF_RANGES} FROM annotations WHERE category = 'user_annotation'"
ALL_RANGES = " UNION ALL ".join(
    f"SELECT {_OF_RANGES} FROM {table}"
    " WHERE phase = 'X' AND (category IS NULL OR NOT list_contains($not_host, category))"
    for table in ("annotations", "ops", "other_events")
)
"""Wherever they are stored, as the parts of steps have them."""
INSIDE = """
    SELECT c.* FROM ({sql}) c ASOF JOIN (SELECT start_ns AS since, end_ns FROM steps) s
    ON c.start_ns >= s.since WHERE c.start_ns < s.end_ns
"""
"""Those that began in a step."""
TOLD = (
    "backend", "kernel", "op", "own", "elements_in", "elements_out", "dtype", "group_name", "group_size",
    "ranks", "range", "dims", "types",
)  # fmt: skip
"""What tells what a collective is, how large, and of which group."""


def grouped_by(columns: tuple[str, ...]) -> str:
    """SQL of a text that is equal where these columns are."""
    return f"concat_ws(chr(31), {', '.join(f'coalesce({name}, chr(0))' for name in columns)})"


GROUPED = grouped_by(TOLD)
_RANGE = ("event", "pid", "tid", "thread", "name", "category", "phase", "start_ns", "dur_ns", "args")
COLLECTIVE_READS: Reads = {
    "device_work": (
        "event", "name", "device_name", "stream", "start_ns", "dur_ns", "kind", "communicates", "args",
        "launch", "op",
    ),
    "launches": ("event", "thread", "start_ns"),
    "ops": (*_RANGE, "parent"),
    "annotations": _RANGE,
    "other_events": _RANGE,
}  # fmt: skip
"""What these queries read."""


def first_type(types: str | None) -> str | None:
    """The first type of a list as it is written: `["float"]`."""
    return (types or "").strip("[]").split(",")[0].strip('" ') or None
