"""What a program does once: starting the device, loading code, setting up libraries."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CODE_LOADING", "StartUp", "start_ups"]

LONG_NS = 1_000_000
"""Calls that launch or ask something take microseconds."""
LONG_OP_NS = 5_000_000
OUTLIER = 50
"""So many times the median of the same call."""
LEAST_CALLS = 4
"""With fewer calls of an operator, the median says nothing."""
AT_ONCE_NS = 200_000
"""Work that begins so soon after its launch did not stand in a full queue, which blocks launches as well."""

CODE_LOADING = r"^(Lazy Function Loading|Runtime Triggered Module Loading)$"
"""How the profiler names loading of kernels inside of other calls, among its overhead."""
_LOADS = (
    r"^(cu|cuda|hip)(Module|Library)Load|^(cu|hip)Link(Create|Add|Complete)|^(nvrtc|hiprtc)CompileProgram"
)
_STARTS = (
    r"^(cu|cuda|hip)(Init|CtxCreate|DevicePrimaryCtx|GetDevice|DeviceGet|SetDevice|StreamCreate|StreamGet|"
    r"EventCreate|DriverGet|RuntimeGet|MemGetInfo)"
)
_ALLOCATES = r"^(cuda|hip)(Free|Malloc|HostAlloc|MallocHost|HostMalloc)$"
_LAUNCHES = r"^(cu|cuda|hip)(Ext)?(Module)?Launch(Cooperative)?Kernel"
_ASKS = r"^(cu|cuda|hip)(Func|Kernel)(Get|Set)|Occupancy"


@dataclass(frozen=True, slots=True)
class StartUp:
    """One kind of start-up, by call and place, in one step."""

    step: Annotated[int | None, "Step in whose mark it began; NULL outside of all."]
    kind: Annotated[
        str,
        "initialisation: of device or context; code loading: modules, and kernels at their first launch; "
        "first use: what an operator does once, such as setting up or tuning a library.",
    ]
    call: Annotated[str | None, "The runtime call, the profiler's own name for it, or the operator."]
    op: Annotated[str | None, "Operator around it."]
    user_frame: Annotated[str | None, "Function of the user's code that led to it; needs with_stack=True."]
    times: Annotated[int, "How often."]
    total_ns: Annotated[int, "Host time; each instant counts once."]
    longest_ns: Annotated[int, "The longest of them."]
    start_ns: Annotated[int, "When the first began, in ns since the epoch."]


@analysis(
    reads={
        "launches": ("event", "name", "name_id", "start_ns", "dur_ns", "op"),
        "ops": ("event", "name", "name_id", "start_ns", "self_no_runtime_ns", "device_self_ns"),
        "device_work": ("name_id", "start_ns", "dur_ns", "launch"),
        "other_events": ("event", "name", "category", "phase", "start_ns", "dur_ns"),
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
        "call_sites": ("event", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
def start_ups(trace: Trace) -> Table[StartUp]:
    """Lists what happens once in a run: device initialisation, loading of code, first use of libraries.

    A call that loads kernels at their first launch is told by its length: at least a millisecond and 50 times
    the median of the same call, for a kernel that was not seen before and began at once. An operator's first
    call counts if its own host time is as far beyond that of its other calls. Compilers have a table of
    their own, `compilations`.
    """
    if not trace.has("launches"):
        return Table.of(StartUp, (), ("The profile has no runtime calls.",))
    found = Table.of(StartUp, ())
    if _is_possible(trace):
        found = trace.query(StartUp, _SQL.format(frame="NULL::VARCHAR", place=""))
    if len(found) and trace.has("python_frames"):  # where it was called from is costly to ask
        found = trace.query(StartUp, _SQL.format(frame="f.name", place=_PLACE))
    nothing = [] if len(found) else ["Nothing that a program does once, when it starts, is in the profile."]
    return found.with_notes([*nothing, *how_steps_were_found(trace)])


def _is_possible(trace: Trace) -> bool:
    """A cheap look before an expensive question: whether anything took long, or loads code by its name."""
    if trace.may_have_name(f"{_LOADS}|{CODE_LOADING}"):
        return True
    longest = trace.rows(_LONGEST)[0]
    return (longest["call_ns"] or 0) >= LONG_NS or (longest["op_ns"] or 0) >= LONG_OP_NS


_LONGEST = """
    SELECT (SELECT max(dur_ns) FROM launches) AS call_ns,
           (SELECT max(self_no_runtime_ns) FROM ops WHERE device_self_ns > 0) AS op_ns
"""
_PLACE = """
    LEFT JOIN call_sites p ON p.event = k.event LEFT JOIN call_tree f ON f.node = p.user_frame
"""
_CALLS = f"""
    long AS MATERIALIZED (
        SELECT event, name, name_id, start_ns, dur_ns, op FROM launches WHERE dur_ns >= {LONG_NS}),
    typical AS (
        SELECT name_id, median(dur_ns) AS usual_ns, min(start_ns) AS first_ns FROM launches
        WHERE name_id IN (SELECT name_id FROM long) GROUP BY name_id),
    calls AS (
        SELECT l.*, l.dur_ns >= {OUTLIER} * usual_ns AS outlier, l.start_ns = first_ns AS first,
               l.start_ns + l.dur_ns <= coalesce((SELECT min(start_ns) FROM device_work),
                                                 l.start_ns + l.dur_ns) AS before_work
        FROM long l JOIN typical USING (name_id)),
    beside_work AS (
        SELECT DISTINCT c.event FROM calls c JOIN device_work w
            ON w.start_ns < c.start_ns + c.dur_ns AND w.start_ns + w.dur_ns > c.start_ns
        WHERE c.first AND c.outlier AND regexp_matches(c.name, '{_ALLOCATES}')),
    launched AS (
        SELECT launch, min(start_ns) AS start_ns, any_value(name_id) AS kernel FROM device_work
        WHERE launch IN (SELECT event FROM calls WHERE outlier) GROUP BY launch),
    seen AS (
        SELECT name_id AS kernel, min(start_ns) AS first_ns FROM device_work
        WHERE name_id IN (SELECT kernel FROM launched) GROUP BY name_id),
    fresh AS (
        SELECT launch, w.start_ns FROM launched w JOIN seen USING (kernel) WHERE w.start_ns = first_ns)
"""
_ITEMS = f"""
    items AS (
        SELECT 'initialisation' AS kind, event, name, op, start_ns, dur_ns FROM calls
        WHERE regexp_matches(name, '{_STARTS}') AND (before_work OR first AND outlier)
           OR regexp_matches(name, '{_ALLOCATES}')
              AND (before_work OR first AND outlier AND event NOT IN (SELECT event FROM beside_work))
        UNION ALL
        SELECT 'code loading', event, name, op, start_ns, dur_ns FROM launches
        WHERE regexp_matches(name, '{_LOADS}') AND dur_ns > 0
        UNION ALL
        SELECT 'code loading', event, name, op, c.start_ns, dur_ns
        FROM calls c LEFT JOIN fresh ON launch = event
        WHERE outlier AND (regexp_matches(name, '{_ASKS}') OR regexp_matches(name, '{_LAUNCHES}')
                           AND fresh.start_ns <= c.start_ns + dur_ns + {AT_ONCE_NS})
        UNION ALL
        SELECT 'code loading', event, name, NULL, start_ns, dur_ns FROM other_events
        WHERE category = 'overhead' AND phase = 'X' AND regexp_matches(name, '{CODE_LOADING}')),
    outermost AS (
        SELECT * FROM (
            SELECT *, max(start_ns + dur_ns) OVER (ORDER BY start_ns, dur_ns DESC, event
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns FROM items)
        WHERE before_ns IS NULL OR start_ns >= before_ns)
"""
_FIRST_USES = f"""
    usual AS (
        SELECT name_id, count(*) AS calls, median(self_no_runtime_ns) AS usual_ns,
               arg_min(event, start_ns) AS event FROM ops
        WHERE name_id IN (SELECT name_id FROM ops
                          WHERE self_no_runtime_ns >= {LONG_OP_NS} AND device_self_ns > 0)
        GROUP BY name_id),
    first_uses AS (
        SELECT 'first use' AS kind, o.event, o.name, NULL::BIGINT AS op, o.start_ns,
               o.self_no_runtime_ns AS dur_ns
        FROM ops o JOIN usual u USING (event)
        WHERE u.calls >= {LEAST_CALLS} AND o.device_self_ns > 0 AND o.self_no_runtime_ns >= {LONG_OP_NS}
          AND o.self_no_runtime_ns >= {OUTLIER} * u.usual_ns)
"""
_SQL = f"""
    WITH {_CALLS}, {_ITEMS}, {_FIRST_USES},
    kept AS (
        SELECT kind, event, name, op, start_ns, dur_ns FROM outermost
        UNION ALL SELECT kind, event, name, op, start_ns, dur_ns FROM first_uses)
    SELECT CASE WHEN k.start_ns < s.host_end_ns THEN s.step END AS step, k.kind, k.name AS call, o.name AS op,
           {{frame}} AS user_frame, count(*) AS times, sum(k.dur_ns)::BIGINT AS total_ns,
           max(k.dur_ns) AS longest_ns, min(k.start_ns) AS start_ns
    FROM kept k ASOF LEFT JOIN steps s ON k.start_ns >= s.host_start_ns
    LEFT JOIN ops o ON o.event = k.op {{place}}
    GROUP BY ALL ORDER BY min(k.start_ns), k.kind, k.name
"""
