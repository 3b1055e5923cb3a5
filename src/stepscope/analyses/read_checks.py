"""Operators that only compute a number which the host reads next: checks of values, one by one."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import CALLED_IN_STEPS
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ReadCheck", "read_checks"]

_READS = r"aten::(item|is_nonzero|_local_scalar_dense)"
_FINITE = r"aten::(isfinite|isnan|isinf|isposinf|isneginf)"
_ASKS = r"aten::(all|any|eq|ne|lt|le|gt|ge|(logical|bitwise)_(not|and|or)|__(and|or)__|detach)"
"""What gives truth values, which no gradient goes through."""
_KEPT = r"aten::([a-z]\w*_|linear|matmul|mm|addmm|bmm|baddbmm|einsum|conv\w*|_?scaled_dot\w+|lstm|gru|to)"
"""In place, or a network, or a copy to where it is needed: the program needs what they leave."""
_APART_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class ReadCheck:
    """Reads of one function in all steps, with the operators right before that only compute what is read."""

    user_frame: Annotated[str | None, "Function of the user's code that reads; needs with_stack=True."]
    finite: Annotated[
        bool, "Whether they ask for infinities and NaNs: the last result of a step has those of all others."
    ]
    reads: Annotated[int, "Reads of a value from the device, with such operators before each."]
    ops: Annotated[int, "These operators, the reads included."]
    most_often: Annotated[str, "Those that are called most often, without the reads."]
    host_ns: Annotated[int, "From the first operator before each read to the end of the read."]
    read_ns: Annotated[int, "The part of it that is in the reads, with their waits for the device."]
    device_ns: Annotated[int, "Device time of the work that they launch."]


# Autograd numbers the nodes of its graph, and an operator is written with the number that comes next. A node
# that no backward pass runs, although it ran nodes with smaller numbers and with larger ones in the same
# step, has no part in the loss. Truth values have no nodes at all. An operator of another kind ends the
# stretch before a read: what it computes may be needed elsewhere.
_SQL = f"""
    WITH nodes AS (
        SELECT p.step, o.sequence FROM ops o JOIN call_sites p ON p.event = o.event
        WHERE o.depth = 0 AND p.phase = 'backward' AND o.sequence IS NOT NULL AND p.step IS NOT NULL),
    passes AS (
        SELECT step, min(sequence) AS first_node, max(sequence) AS last_node FROM nodes GROUP BY step),
    known AS MATERIALIZED (
        SELECT id AS name_id, text AS name, regexp_full_match(text, '{_READS}') AS reads,
               regexp_full_match(text, '{_FINITE}') AS finite, regexp_full_match(text, '{_ASKS}') AS asks,
               regexp_full_match(text, '{_KEPT}') AS kept
        FROM names),
    called AS ({CALLED_IN_STEPS.format(phases="<> 'backward'")}),
    told AS (
        SELECT c.*, k.reads, k.finite, k.reads OR k.finite OR k.asks AS asks
        FROM called c JOIN known k USING (name_id) LEFT JOIN passes b ON b.step = c.step
        WHERE k.reads OR k.finite OR k.asks
           OR (NOT k.kept AND c.later > c.sequence AND c.sequence > b.first_node
               AND c.later <= b.last_node)),
    only_read AS (
        SELECT * FROM told WHERE asks
        UNION ALL
        SELECT c.* FROM (SELECT * FROM told WHERE NOT asks) c
            ASOF JOIN nodes n ON n.step = c.step AND n.sequence >= c.sequence
        WHERE n.sequence >= c.later),
    begun AS (
        SELECT *, coalesce(lag(place) OVER near < place - 1 OR lag(reads) OVER near
                           OR start_ns - lag(end_ns) OVER near > {_APART_NS}, TRUE) AS begins
        FROM only_read WINDOW near AS (PARTITION BY step, thread ORDER BY start_ns, event)),
    numbered AS (
        SELECT *, sum(begins::INT) OVER (PARTITION BY step, thread ORDER BY start_ns, event) AS number
        FROM begun),
    checks AS (
        SELECT step, thread, number, bool_or(finite) AS finite,
               sum(end_ns - start_ns) FILTER (reads) AS read_ns, count(*) AS ops, sum(device_ns) AS device_ns,
               max(end_ns) - min(start_ns) AS host_ns, max_by(user_frame, start_ns) AS node
        FROM numbered GROUP BY step, thread, number
        HAVING count(*) FILTER (reads AND device_ns > 0) = 1 AND bool_or(device_ns > 0 AND NOT reads)),
    placed AS (SELECT k.*, c.name AS user_frame FROM checks k LEFT JOIN call_tree c ON c.node = k.node),
    names AS (
        SELECT t.user_frame, t.finite, k.name, count(*) AS calls
        FROM placed t JOIN numbered n USING (step, thread, number) JOIN known k ON k.name_id = n.name_id
        WHERE NOT k.reads GROUP BY t.user_frame, t.finite, k.name),
    often AS (
        SELECT user_frame, finite,
               array_to_string(list(name ORDER BY calls DESC, name)[:5], ', ') AS most_often
        FROM names GROUP BY user_frame, finite),
    rows AS (
        SELECT user_frame, finite, count(*) AS reads, sum(ops)::BIGINT AS ops,
               sum(host_ns)::BIGINT AS host_ns, sum(read_ns)::BIGINT AS read_ns,
               sum(device_ns)::BIGINT AS device_ns
        FROM placed GROUP BY user_frame, finite)
    SELECT r.user_frame, r.finite, r.reads, r.ops, f.most_often, r.host_ns, r.read_ns, r.device_ns
    FROM rows r JOIN often f ON f.user_frame IS NOT DISTINCT FROM r.user_frame AND f.finite = r.finite
    ORDER BY r.host_ns DESC, r.user_frame, r.finite
"""


@analysis(
    reads={
        "steps": ("step", "source"),
        "ops": (
            "event",
            "thread",
            "name_id",
            "start_ns",
            "dur_ns",
            "depth",
            "sequence",
            "device_once_ns",
        ),
        "call_sites": ("event", "step", "phase", "user_frame"),
        "call_tree": ("node", "name"),
        "names": ("id", "text"),
    }
)
def read_checks(trace: Trace) -> Table[ReadCheck]:
    """Finds operators that only compute a number which the host reads: `isfinite(x).all()`, for example.

    They come right before the read and give truth values, or autograd has nodes for them that the backward
    pass does not run. Without the read, nobody needs them.
    """
    if not trace.may_have_name(f"^{_READS}$"):
        return Table.of(ReadCheck, [], ["Nothing is read from a device."])
    rows = trace.query(ReadCheck, _SQL)
    nothing = [] if len(rows) else ["No operators that only compute what is read next."]
    return Table.of(ReadCheck, rows, nothing + how_steps_were_found(trace))
