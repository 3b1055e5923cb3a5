"""Loops in which a step calls the same operators again and again: which kind it is, and how to merge it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from stepscope import units
from stepscope.findings import Location, locations_of
from stepscope.findings.fixes import Change, FixLine, line
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.loops import Loop
    from stepscope.analyses.step_classes import StepClass
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep

__all__ = ["NamedLoop", "in_backward_ops", "named_loops", "takes_most"]

_MOST = 0.5
_LEAST_LAUNCHES = 0.02
"""Of the launches of its thread: a loop with fewer works on the CPU, and other rules tell about that."""
_FEW_PASSES = 3
"""Two backward passes in a step may belong to two networks."""
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::matmul", "aten::linear"}
_CELLS = {
    "aten::lstm_cell": "LSTM",
    "aten::_thnn_fused_lstm_cell": "LSTM",
    "aten::gru_cell": "GRU",
    "aten::_thnn_fused_gru_cell": "GRU",
    "aten::rnn_tanh_cell": "RNN",
    "aten::rnn_relu_cell": "RNN",
}
_LAYERS = {"aten::lstm": "LSTM", "aten::gru": "GRU", "aten::rnn_tanh": "RNN", "aten::rnn_relu": "RNN"}
"""Operators that take a whole sequence."""
_NOT_IN_CELLS = ("norm", "softmax", "attention", "conv", "embedding", "multinomial")
_SAMPLES = {"aten::multinomial", "aten::bernoulli", "aten::bernoulli_", "aten::exponential_", "aten::normal"}
_READS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"}
_CHOOSES = {"aten::nonzero", "aten::masked_select"}
_MAKES = {"aten::lift_fresh"}
"""Tensors made from lists: of a loop that launches little else, rules about copies say it."""
_LITTLE = 4
"""Launches of a repetition."""
_ONE_LAYER = late_pattern(r"aten::(linear|conv[123]d)")
_VIEWS = late_pattern(
    r"aten::(select|slice|narrow|index_select|unbind|view|reshape|transpose|permute|t|squeeze|unsqueeze|flatten"
    r"|contiguous|alias|detach)"
)
_LOOK_UP = "aten::embedding"
_WRITTEN_ATTENTION = {"aten::bmm", "aten::_softmax"}
_TAKES_PART = "aten::select"
_CHOSEN = ("aten::select", "aten::slice", "aten::narrow")
_OF_NETWORKS = late_pattern(r"aten::(\w*norm|add_?$|cat$|\w*attention|embedding|item|bernoulli)")
"""What layers of one network have, or loops of other kinds."""
_LEAST_CELLS, _LEAST_CALLS = 8, 16
_FOREACH = {
    f"aten::{name}"
    for name in "linalg_vector_norm norm abs neg sign exp pow sqrt add sub mul div lerp".split()  # noqa: SIM905
}
"""Operators that torch also has for a list of tensors."""
_MOST_FOREACH = 3
_NAMED = 3
_IN_PLACE = late_pattern(r"aten::_?[a-z0-9][a-z0-9_]*_(?<!__)")
"""Not `aten::__and__`, which is `a & b`."""
_LABELS = {"aten::detach_", "aten::requires_grad_", "aten::resolve_conj_", "aten::rename_"}
"""Operators in place that change no number: `torch.tensor(list)` calls the first."""
_SIZES = {"aten::square", "aten::pow", "aten::abs", "aten::norm", "aten::linalg_vector_norm"}
_SUMS = {"aten::sum", "aten::mean", "aten::norm", "aten::linalg_vector_norm"}
_ADDS = {"aten::add", "aten::add_", "aten::mul", "aten::div"}
"""What joins numbers to one, each with its factor."""
_COMPARES = {"aten::eq", "aten::ne"}
_POINTWISE = late_pattern(
    r"aten::(add|sub|rsub|mul|div|eq|ne|logical_\w+|bitwise_\w+|__and__|pow|square|sqrt|log|exp|neg|clamp\w*|to"
    r"|_to_copy|copy_|empty\w*|as_strided|expand|fill_|zero_|zeros\w*|ones\w*|result_type|float|type_as"
    r"|resolve_\w+|item|_local_scalar_dense|sum|mean|any|all|max|min|bool|int|lift_fresh|detach_?)"
)
_GATHERS = {"aten::index", "aten::index_select", "aten::gather", "aten::masked_select"}


class LoopKind(NamedTuple):
    """What a loop does, and what does the same without it."""

    title: str
    """With a place for the number of repetitions; at most 60 characters."""
    fix: str | FixLine
    can_merge: bool = True
    """Whether such repetitions never need one another's results."""
    with_backward: bool = False
    """Whether a repetition includes its backward pass."""
    even_backward: bool = True
    """Whether its part of the backward pass is about its part of the forward pass."""
    node: str = ""
    """How torch names the gradient of a repetition, where its kernels are other ones than the operators'."""


def _recurrent(cell: str, called: str = "cells") -> LoopKind:
    return LoopKind(
        f"A loop of {{repeats}} {cell} {called} could be one call",
        f"""\
layer = nn.{cell}(inputs, width, batch_first=True)    # cuDNN runs all moments of all layers in one call
outputs, state = layer(sequence)""",
    )


_EXPERTS = LoopKind(
    "A loop over {repeats} experts or relations could be one call",
    """\
order = choice.argsort(); ends = choice.bincount(minlength=experts).cumsum(0).int()    # sort tokens by expert
y = torch._grouped_mm(x[order], weights, offs=ends)    # all experts in one call, bf16; no .nonzero()
y = torch.bmm(padded, weights)    # or as many places for each expert: padded is [experts, places, width]""",
)
_GROUPS = LoopKind(
    "A loop over {repeats} groups could be one call",
    """\
sums = x.new_zeros(groups, x.shape[-1]).index_add_(0, group, x)    # all groups in one call, without a mask
means = sums / group.bincount(minlength=groups).clamp(min=1)[:, None]""",
)
_STEPPING = LoopKind(
    "A loop of {repeats} moments could serve many at once",
    """\
envs = gymnasium.vector.AsyncVectorEnv([make] * 64)    # one call of the network for all environments
actions = policy(torch.as_tensor(observations).cuda())    # a batch; read all actions back at once""",
    can_merge=False,
)
_MICRO_BATCHES = LoopKind(
    "{repeats} micro-batches could be fewer and larger",
    """\
batch_size, accumulation = 2 * batch_size, accumulation // 2    # same result, half as many launches""",
    with_backward=True,
)
_SIDE_BY_SIDE = LoopKind(
    "{repeats} layers side by side could be one call",
    """\
weights = nn.Parameter(torch.stack([layer.weight.T for layer in layers]))    # [layers, inputs, outputs]
y = torch.baddbmm(biases[:, None], parts, weights)    # all in one call; parts is [layers, batch, inputs]
y = nn.Linear(inputs, layers * outputs)(x).chunk(layers, -1)    # or so, if all get the same input
y = layer(x)    # or so, if it is the same layer for every part""",
)
_TABLES = LoopKind(
    "{repeats} look-ups of embeddings could be one",
    """\
table = nn.Embedding(sum(sizes), width)    # all tables, one after the other
begins = torch.tensor([0, *sizes[:-1]], device="cuda").cumsum(0)    # where each of them begins
x = table(columns + begins).flatten(1)    # one look-up for all columns, and one gradient
x = table(columns).flatten(1)    # or so, if it is the same table for every column""",
    node="autograd::engine::evaluate_function: EmbeddingBackward0",
)
_NETWORKS = LoopKind(
    "{repeats} networks side by side could be one call",
    """\
weights, buffers = torch.func.stack_module_state(networks)    # all of one shape
def call(weights, buffers, x): return torch.func.functional_call(networks[0], (weights, buffers), (x,))
y = torch.vmap(call, in_dims=(0, 0, None))(weights, buffers, x)    # each layer of all in one product
y = torch.baddbmm(biases, x, weights)    # or by hand, with weights of [networks, inputs, outputs]""",
)
_HEADS = LoopKind(
    "Attention over {repeats} parts could be one call",
    """\
y = F.scaled_dot_product_attention(q, k, v)    # of all heads: [batch, heads, length, width], no slices
q, k, v = nn.Linear(width, 3 * width)(x).chunk(3, -1)    # where each head has layers of its own: one for all
pipe.disable_attention_slicing()    # diffusers, where the pictures fit into memory without it""",
)
_PARTS = LoopKind(
    "A loop over {repeats} parts of a tensor could be one call",
    """\
sums = (x * y).sum((-2, -1))    # of all parts at once, not (x[i, j] * y[i, j]).sum() for each
total = f(sums).mean()    # what follows works on all sums as well
total = torch.vmap(f)(x).sum()    # or so, if f takes one part""",
)
_ROWS = LoopKind(
    "A loop over {repeats} rows of a tensor could be one call",
    """\
weights = torch.linspace(0, 1, rows, device=x.device)[:, None]    # a number for each row
x[:rows] = before[-rows:] * (1 - weights) + x[:rows] * weights    # all rows in one assignment
vae.disable_tiling()    # diffusers, where it blends tiles: they are for pictures that do not fit""",
    can_merge=False,
)
_PENALTIES = LoopKind(
    "A penalty on {repeats} tensors, one after the other",
    """\
optimizer = torch.optim.Adam(parameters, lr=lr, weight_decay=2 * factor)    # the same gradient, and no loop
penalty = torch.stack(torch._foreach_norm(parameters)).square().sum()    # or so, if the loss shows it""",
    even_backward=False,
)
_CLASSES = LoopKind(
    "A loop over {repeats} classes could be one call",
    """\
truth = F.one_hot(target, classes).movedim(-1, 1)    # of all classes at once
shared, both = (scores * truth).sum((0, 2, 3)), (scores + truth).sum((0, 2, 3))    # a number for each class
counts = torch.bincount(classes * target + found, minlength=classes**2)    # for metrics: all pairs""",
    even_backward=False,
)
_PERHAPS_NETWORKS = _NETWORKS._replace(can_merge=False)
_TENSORS = LoopKind(
    "A loop over {repeats} tensors could be one call",
    """\
norms = torch._foreach_norm(tensors)    # a few launches for all tensors; also _foreach_add_, _foreach_mul_
total = torch.linalg.vector_norm(torch.stack(norms))    # stays on the GPU; read once, if at all""",
)
_ALIKE = LoopKind(
    "A loop of {repeats} calls could be one call",
    line(
        Change.ONE_CALL,
        """\
y = f(torch.stack(inputs))    # one call for all, if no call needs the result of another
y = torch.vmap(f)(torch.stack(inputs))    # if f takes one input at a time
y = f(x)    # before the loop, for what has the same input in every turn: an encoded text, a mask""",
    ),
    can_merge=False,
)
_UNLIKE = LoopKind(
    "A loop of {repeats} calls could be one call",
    line(
        Change.ONE_CALL,
        """\
y = f(torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True))    # pad the inputs: one call for all
# or torch.nested.nested_tensor(inputs, layout=torch.jagged), if no call needs the result of another""",
    ),
    can_merge=False,
)


@dataclass(frozen=True, slots=True)
class NamedLoop:
    """A loop whose work could be done in one call."""

    kind: LoopKind
    rows: tuple[Loop, ...]
    """The same loop at several places, such as the experts of several layers."""

    @property
    def title(self) -> str:
        """What to call it."""
        return self.kind.title.format(repeats=units.count(self.rows[0].repeats))

    @property
    def story(self) -> str:
        """How long it is, where, and how much of the work it launches, as sentences."""
        row = self.rows[0]
        ops = f"{units.count(row.ops)} operators" if row.ops > 1 else f"`{row.first_ops}`"
        often = (
            units.count(row.repeats)
            if len(self.rows) == 1
            else f"{len(self.rows)} × {units.count(row.repeats)}"
        )
        share = units.share(sum(one.launch_share for one in self.rows))
        shapes = {True: ", always with the same shapes", False: ", with shapes that differ", None: ""}
        named = dict.fromkeys(name for name in row.first_ops.split(", ") if not name.startswith("aten::_"))
        more = ", …" if row.ops > len(named) or len(named) > _NAMED else ""
        begin = "" if row.ops == 1 else f" ({', '.join([*named][:_NAMED])}{more})"
        return (
            f"A loop calls {ops}{begin} {often} times a step{shapes[row.same_shapes]}: {share} of the "
            "launches of its thread."
        )

    @property
    def locations(self) -> tuple[Location, ...]:
        """The function that has the loop."""
        return locations_of(
            (row.user_frame, f"the loop: {units.count(row.repeats)} times a step") for row in self.rows
        )

    @property
    def repeats(self) -> int:
        """How often it repeats, at all places together."""
        return sum(row.repeats for row in self.rows)

    @property
    def can_merge(self) -> bool:
        """Whether no repetition needs the result of another: so it is if each has an input of its own."""
        return self.kind.can_merge or all(_has_input(row) or _has_numbers(row) for row in self.rows)

    @property
    def has_backward(self) -> bool:
        """Whether there is a backward pass for its operators that is not in it."""
        return self.rows[0].has_backward and not self.kind.with_backward

    @property
    def ids_may_stay(self) -> bool:
        """Whether each repetition looks up rows that nothing in the loop chooses or brings."""
        stay = all(row.lookup == "given" and not row.inputs for row in self.rows)
        return stay and not self.kind.can_merge

    @property
    def reads(self) -> bool:
        """Whether the host waits for the GPU in each repetition, to read a result."""
        return not _READS.isdisjoint(self.names)

    @property
    def names(self) -> set[str]:
        """The operators that each repetition calls, also inside others; they are the same at all places."""
        return set(self.rows[0].contains.split(", "))

    def host_part(self, mean_step: MeanStep, backward_ns: float) -> float:
        """The part of the host's time in a step that goes if all repetitions become one.

        `backward_ns` is the host's time in the backward pass, of all steps.
        """
        part = self.merged(lambda row: row.host_share)
        if self.has_backward:
            behind = self.merged(lambda row: min(row.op_share, row.launch_share))
            part += behind * mean_step.share(mean_step.per_step(backward_ns))
        return min(1.0, part)

    def merged(self, figure: Callable[[Loop], float]) -> float:
        """What goes of a figure of the loop if all repetitions become one."""
        return sum(figure(row) * (1 - 1 / row.repeats) for row in self.rows)


def named_loops(loops: Iterable[Loop], step_classes: Iterable[StepClass]) -> list[NamedLoop]:
    """The loops that can be told from layers, the one that takes the host longest first."""
    passes = max((row.backward_passes or 0 for row in step_classes if row.step_class == 0), default=0)
    alike: dict[tuple[LoopKind, str], list[Loop]] = {}
    for row in loops:
        if kind := _kind(row, passes):
            alike.setdefault((kind, row.contains), []).append(row)
    found = [NamedLoop(kind, tuple(rows)) for (kind, _), rows in alike.items()]
    return sorted(found, key=lambda one: -sum(row.host_ns for row in one.rows))


def takes_most(loops: Iterable[NamedLoop], mean_step: MeanStep, step_ops: Iterable[StepOp]) -> bool:
    """Whether one of them can become one call, which would save most of the host's time in a step."""
    backward_ns = in_backward_ops(step_ops)
    return any(loop.can_merge and loop.host_part(mean_step, backward_ns) >= _MOST for loop in loops)


def in_backward_ops(step_ops: Iterable[StepOp]) -> int:
    """The host's time in operators of the backward pass, without that between them."""
    return sum(row.host_ns for row in step_ops if row.phase == "backward" and row.within is None)


def _has_input(row: Loop) -> bool:
    """Whether each repetition is given data of its own by the host."""
    return row.inputs >= row.repeats


def _has_numbers(row: Loop) -> bool:
    """Whether each repetition gets a few numbers of its own from the host, and all results are stacked.

    What has layers may go on with a state; what only changes data, such as a picture, does not.
    """
    names = set(row.contains.split(", "))
    return row.stacked and bool(names & _MAKES) and not names & (_PRODUCTS - _WRITTEN_ATTENTION | _READS)


def _kind(row: Loop, passes: int) -> LoopKind | None:
    """What kind of loop it is; None for layers, for loops over weights, and where it cannot be told."""
    if row.launch_share < _LEAST_LAUNCHES:
        return None
    names = set(row.contains.split(", "))
    products = bool(names & _PRODUCTS)
    if passes >= _FEW_PASSES and passes == row.repeats:
        return _MICRO_BATCHES
    # What attends is a whole layer: it may choose rows, too, as printing a tensor does.
    if names & _CHOOSES and names & _GATHERS and not any("attention" in name for name in names):
        return _EXPERTS if products else _GROUPS
    if row.repeats >= _LEAST_CALLS and (simple := _beside(row) or _summed_up(row, names)):
        return simple
    if of_parts := _of_parts(row):
        return of_parts
    if products and row.same_place is not True and (networks := _networks(row, names)):
        return networks
    makes = names & _MAKES and not products and row.launches <= _LITTLE * row.repeats
    if row.same_place is False or _changes_in_place(row) or makes:
        return None
    if names & _SAMPLES and names & _READS and products:
        return _STEPPING
    if cell := _cell(names, products=products):  # moments need one another: there is no other way to merge
        return _recurrent(cell) if row.repeats >= _LEAST_CELLS else None
    if layer := next((_LAYERS[name] for name in sorted(names & set(_LAYERS))), None):
        return _recurrent(layer, "calls") if row.repeats >= _LEAST_CELLS else None
    if row.repeats >= _LEAST_CALLS and _goes_over_tensors(row):
        return _TENSORS
    if row.same_place is None or row.module is None:
        # Without stacks, and where layers are functions, layers look like a loop; but all have products, and
        # none has an input of its own, a look-up, or layers, or makes tensors for a result to be stacked.
        listed = row.stacked and names & _MAKES
        whole = _has_input(row) or row.layers or row.lookup == "given" or listed
        is_loop = whole if products else row.repeats >= _LEAST_CALLS
        return _ALIKE if is_loop else None
    return _ALIKE if row.same_shapes is not False else _UNLIKE


def _cell(names: set[str], *, products: bool) -> str | None:
    """The kind of recurrent cell that these operators are."""
    for name in sorted(names & set(_CELLS)):
        return _CELLS[name]
    gates = products and {"aten::sigmoid", "aten::tanh"} <= names
    others = any(part in name for name in names for part in _NOT_IN_CELLS)
    return "LSTM" if gates and not others else None


def _beside(row: Loop) -> LoopKind | None:
    """Whether each repetition is one layer, or a look-up, and nothing else that computes.

    Layers one after the other have something in between, for without it two of them are no more than one.
    """
    only = _only(row)
    if only == _LOOK_UP:
        return _TABLES
    return _SIDE_BY_SIDE if _ONE_LAYER.fullmatch(only) and row.same_shapes is not False else None


def _attends(row: Loop) -> bool:
    """Whether each repetition is attention over a part of its inputs, and nothing else."""
    return row.ops > 1 and _only(row) == "aten::scaled_dot_product_attention"


def _only(row: Loop) -> str:
    """The operator of a repetition that is no view of a tensor; nothing where there is not just one."""
    names = row.first_ops.split(", ")
    others = [name for name in names if not _VIEWS.fullmatch(name)]
    return others[0] if len(others) == 1 and len(names) == row.ops else ""  # of long ones not all are named


def _networks(row: Loop, names: set[str]) -> LoopKind | None:
    """Whether each repetition is a small network of its own, and none goes on with what another gives.

    Without shapes their results tell it, which are stacked; a network's own layers would add to what came in.
    """
    if row.same_shapes is False or any(_OF_NETWORKS.match(name) for name in names):
        return None
    if row.narrows:
        return _HEADS if names >= _WRITTEN_ATTENTION else _NETWORKS
    return _PERHAPS_NETWORKS if row.stacked and row.narrows is None and row.ops > 1 else None


def _goes_over_tensors(row: Loop) -> bool:
    """Whether it does little for each of many tensors, all of which torch can do for a list."""
    names = set(row.first_ops.split(", "))
    return row.ops <= _MOST_FOREACH and names <= _FOREACH | _READS and bool(names & _FOREACH)


def _of_parts(row: Loop) -> LoopKind | None:
    """Whether each repetition takes its own part of a tensor: to attend over it, to sum it up or write it."""
    if _attends(row):
        return _HEADS
    if row.narrows and row.first_ops.startswith(_TAKES_PART):
        return _PARTS
    return _ROWS if row.repeats >= _LEAST_CALLS and _writes_rows(row) else None


def _summed_up(row: Loop, names: set[str]) -> LoopKind | None:
    """Whether each repetition makes a number, of a tensor or of one class, and the numbers are added up."""
    if row.same_place is False:
        return None
    called = row.first_ops.split(", ")
    parts = [names & some for some in (_SIZES, _SUMS, _ADDS)]
    if row.has_backward and row.ops == len(called) and all(parts) and set(called) <= _SIZES | _SUMS | _ADDS:
        return _PENALTIES
    plain = all(_POINTWISE.fullmatch(name) or _VIEWS.fullmatch(name) for name in names)
    # What is stacked afterwards may be a state that goes from turn to turn.
    return _CLASSES if plain and names & _COMPARES and names & _SUMS and not row.stacked else None


def _writes_rows(row: Loop) -> bool:
    """Whether each repetition chooses parts of tensors, does some arithmetic, and writes one of the parts."""
    names = row.first_ops.split(", ")
    chosen = sum(name in _CHOSEN for name in names)
    plain = all(name in _CHOSEN or name in _FOREACH or name == "aten::copy_" for name in names)
    return plain and chosen > 1 and names.count("aten::copy_") == 1 and len(names) == row.ops


def _changes_in_place(row: Loop) -> bool:
    """Whether it updates tensors, as a loop over weights does; such loops have rules of their own."""
    return any(_IN_PLACE.fullmatch(name) and name not in _LABELS for name in row.first_ops.split(", "))
