"""How often a step went forward and backward, and on how much: from the operators alone.

A backward pass is a run of autograd's nodes with no operator of the step's own thread between them: that
thread waits for the pass, or runs the nodes itself. What comes before a pass is its forward pass; operators
inside nodes, as of recomputation, are not outermost and count for nothing.

The batch is the tensor that enters a forward pass: the indices of its first embedding (tokens; by rows where
there are two dimensions), else the input of its first convolution (samples first, always), else the first
tensor of two or more dimensions that an outermost operator is given, of which the first dimension is taken
for the samples. What loads data, clears gradients, indexes or only makes a tensor is passed over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from math import prod

from stepscope.costs.tensor_shapes import UnknownCostError, inputs_of
from stepscope.records import dataclass
from stepscope.store.trace import Trace

__all__ = ["PASS_COLUMNS", "Batch", "Passes", "passes_of"]

PASS_COLUMNS = {
    "ops": ("event", "name", "name_id", "args", "thread", "start_ns", "depth"),
    "names": ("id", "text"),
    "annotations": ("name", "category", "thread", "start_ns", "dur_ns"),
}

LOOKED_AT = 12
"""How many outermost operators of a forward pass are looked at for the tensor that enters it."""

_EMBEDDINGS = ("aten::embedding",)
_CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::_convolution", "aten::convolution")
_PASSED_OVER = (
    "zero|fill|empty|ones|rand|arange|index|select|slice|narrow|gather|take|split|chunk|detach|foreach|::is_|item"
    "|_local_scalar|cat$|stack|lift|set_|autograd::|Optimizer|TorchDynamo|Torch-Compiled|Compiled|nccl|gloo|c10d"
    "|record_param|profiler"
)
# What a name says is asked of each name once, not of each operator.
_WITH_MARKS = """
    WITH kinds AS MATERIALIZED (
        SELECT id, starts_with(text, 'autograd::') AS of_autograd,
               starts_with(text, 'autograd::engine::evaluate_function') AS is_node,
               CASE WHEN list_contains($embeddings, text) THEN 'embedding'
                    WHEN list_contains($convolutions, text) THEN 'convolution'
                    WHEN NOT regexp_matches(text, $passed_over, 'i') THEN 'first' END AS kind
        FROM names),
    busiest AS (
        SELECT o.thread FROM ops o JOIN kinds k ON k.id = o.name_id WHERE o.depth = 0 AND NOT k.of_autograd
        GROUP BY o.thread ORDER BY count(*) DESC, o.thread LIMIT 1),
    marks AS (
        SELECT host_start_ns, host_end_ns, coalesce(s.thread, b.thread) AS thread,
               row_number() OVER (ORDER BY s.start_ns, s.end_ns, s.host_start_ns) - 1 AS place
        FROM steps s LEFT JOIN busiest b ON TRUE),
    aside AS (
        SELECT thread, start_ns, start_ns + coalesce(dur_ns, 0) AS end_ns FROM annotations
        WHERE category = 'user_annotation'
          AND regexp_matches(name, '^(enumerate\\(Data|Optimizer\\.(zero_grad|step)#)')),
    nodes AS (SELECT o.event, o.start_ns FROM ops o JOIN kinds k ON k.id = o.name_id WHERE k.is_node),
    forwards AS (
        SELECT o.event, o.start_ns, FALSE AS backward, o.depth = 0 AS outermost, o.thread, k.kind
        FROM ops o JOIN kinds k ON k.id = o.name_id
        WHERE NOT k.of_autograd AND (o.depth = 0 OR k.kind IN ('embedding', 'convolution'))),
    outside AS (
        SELECT f.* FROM forwards f ASOF LEFT JOIN aside a ON f.thread = a.thread AND f.start_ns >= a.start_ns
        WHERE a.end_ns IS NULL OR f.start_ns >= a.end_ns)
"""
_PASSES = (
    _WITH_MARKS
    + """,
    begun AS (
        SELECT m.place, e.event, e.start_ns, e.backward, e.outermost, e.kind
        FROM (SELECT event, start_ns, backward, outermost, thread, kind FROM outside
              UNION ALL SELECT event, start_ns, TRUE, TRUE, NULL, NULL FROM nodes) e
        ASOF JOIN marks m ON e.start_ns >= m.host_start_ns
        WHERE e.start_ns < m.host_end_ns AND (e.backward OR e.thread = m.thread)),
    -- only what is outermost, or a node, tells where a pass begins
    turned AS (
        SELECT place, event,
               backward AND NOT lag(backward, 1, FALSE) OVER (PARTITION BY place ORDER BY start_ns, event)
               AS turns
        FROM begun WHERE outermost),
    turns AS MATERIALIZED (SELECT place, event FROM turned WHERE turns),
    counted AS (
        SELECT b.place, b.event, b.kind, b.start_ns,
               sum((t.event IS NOT NULL)::INT) OVER (PARTITION BY b.place ORDER BY b.start_ns, b.event)
               AS passes
        FROM begun b LEFT JOIN turns t ON t.place = b.place AND t.event = b.event),
    ranked AS (
        SELECT *, row_number() OVER (PARTITION BY place, passes, kind ORDER BY start_ns, event) AS turn
        FROM counted),
    looked_at AS (SELECT * FROM ranked WHERE turn = 1 OR (kind = 'first' AND turn <= $looked_at)),
    whole AS (SELECT place, count(*) AS passes FROM turns GROUP BY place)
    SELECT r.place, r.passes::BIGINT AS passes, coalesce(w.passes, 0) AS whole, r.kind, o.name, o.args
    FROM looked_at r JOIN ops o ON o.event = r.event LEFT JOIN whole w ON w.place = r.place
    ORDER BY r.place, r.passes, r.turn
"""
)


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensor that enters a forward pass."""

    op: str
    dims: tuple[int, ...]

    @property
    def samples(self) -> int | None:
        """How many samples it holds; packed tokens do not tell."""
        return None if self.op in _EMBEDDINGS and len(self.dims) < 2 else self.dims[0]

    @property
    def tokens(self) -> int | None:
        """How many tokens it holds, if it is the indices of an embedding."""
        return prod(self.dims) if self.op in _EMBEDDINGS else None

    def __str__(self) -> str:
        return "[" + ", ".join(str(size) for size in self.dims) + "]"


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one step: how many went backward, and what entered each forward pass."""

    backward: int
    batches: tuple[Batch, ...]


def passes_of(trace: Trace, steps: Sequence[object]) -> list[Passes | None]:
    """The passes of each step; None for a step in which no operator began."""
    rows = trace.rows(
        _PASSES,
        embeddings=list(_EMBEDDINGS),
        convolutions=list(_CONVOLUTIONS),
        passed_over=_PASSED_OVER,
        looked_at=LOOKED_AT,
    )
    backward: dict[int, int] = {}
    entering: defaultdict[tuple[int, int], list[tuple[str, Batch]]] = defaultdict(list)
    for row in rows:
        backward[row["place"]] = row["whole"]
        batch = _batch(row["name"], row["args"]) if row["kind"] else None
        # What follows the last backward pass is no forward pass; without any, the step is one.
        if batch is not None and (row["passes"] < row["whole"] or not row["whole"]):
            entering[row["place"], row["passes"]].append((row["kind"], batch))
    return [
        Passes(
            backward[place],
            tuple(
                _entering(entering[place, number])
                for number in range(max(1, backward[place]))
                if entering[place, number]
            ),
        )
        if place in backward
        else None
        for place in range(len(steps))
    ]


def _entering(found: list[tuple[str, Batch]]) -> Batch:
    for wanted in ("embedding", "convolution", "first"):
        for kind, batch in found:
            if kind == wanted:
                return batch
    raise ValueError("nothing enters")


@cache
def _batch(name: str, args: str | None) -> Batch | None:
    try:
        inputs = inputs_of(args)
        tensor = inputs.tensor(1 if name in _EMBEDDINGS else 0)
    except UnknownCostError:
        return None
    least = 1 if name in _EMBEDDINGS else 2
    return Batch(name, tensor.dims) if len(tensor.dims) >= least and all(tensor.dims) else None
