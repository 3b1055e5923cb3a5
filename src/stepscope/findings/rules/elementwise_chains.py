"""Elementwise operators run as separate kernels, each through memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stepscope import units
from stepscope.analyses.attention import Attention
from stepscope.analyses.kernel_chains import KernelChain
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.costs.families import family_of
from stepscope.findings import Advice, Category, Location, Saving, rule
from stepscope.findings._chains import Chains, chains_of, fusible, saved_by_fusing, saving_of
from stepscope.findings._compiling import MASK_OF_ONES
from stepscope.findings._op_costs import places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, Fix, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["elementwise_chains"]

LEAST_CHAIN = 2.0
LONG_CHAIN = 4
"""Kernels of a chain that counts although the others are short."""
LEAST_OF_ONE = 0.05
"""Part of the GPU's work in a step that such a chain takes, each time it runs."""
# Differences, and right after them the sum of their squares or their norm; with weights in between it is an
# error.
_DISTANCES = late_pattern(r"aten::sub, aten::(pow, aten::sum|square, aten::sum|linalg_vector_norm|norm)\b")
_NEAR = late_pattern(r"aten::(lt|le|nonzero)\b")
_DISTANCES_TITLE = "Distances are computed by elementwise operators"
_CDIST = "d = torch.cdist(x, y)    # distances of all pairs by a matrix product, not by x[:, None] - y"
_RADIUS = "edges = radius_graph(x, r, batch=batch)    # torch_geometric: near pairs of a group, not all pairs"
_MASKS = ("aten::where", "aten::masked_fill", "aten::masked_fill_")
_PAIRS = "scores = score(x[source], x[target])    # edges only, if most pairs are masked, as in a graph"
_COMPLEX = (
    " But numbers beside them are complex: the compiler writes no kernels for these, and may leave others."
)
_KEEPS_FUSED = f"""\
{MASK_OF_ONES}    # transformers' encoders: without a mask,
                                                             # compiling may take their attention apart"""
LEAST_GAIN = 0.02


@rule(category=Category.DEVICE, yields_to=("abandoned_compilation", "unfused_backend"))
def elementwise_chains(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    kernel_chains: Table[KernelChain],
    step_ops: Table[StepOp],
    attention: Table[Attention],
    facts: Facts,
    *,
    least_share: float = 0.10,
) -> Advice | None:
    """Elementwise operators run one by one, and each reads back what the one before wrote to memory.

    Gain: of each chain of kernels one is left, and of n calls of the host one, so 1 - 1/n of its time in
    these operators and their gradients goes. The slower of what is left of host and GPU sets the pace.

    - at most: the time of the shortest kernel is left of each chain, with no casts and copies in it and
      beside it. For the host, n is the number of such kernels for each matrix product, attention,
      convolution or collective.
    - at least: 0.4 of that on the GPU, because results in between are needed later, and norms over a batch
      read their input twice. For the host, n is their number for each kernel of those, because a
      product and its gradients are several kernels; 3/4 of its time goes, because calling compiled code costs
      time, too.

    If chains are short on average, or most of their time computes distances, one of four kernels or more
    must take 5 % of the GPU's work. Where there is a better way to compute such chains than to fuse them,
    they count alone. Without any, short chains must have `least_share` of the step to save at most; at least
    nothing is gained then if there is attention, which may get slower when it is compiled. Nor is it where
    numbers are complex, for which the compiler writes no kernels.
    """
    if facts.kind == "xplane":  # XLA fuses operators by itself
        return None
    chains = chains_of(mean_step, kernels, kernel_families, step_ops)
    ops = [op for op in step_ops if op.within is None and family_of(None, op.name) == "elementwise"]
    few = chains.time_ns < max(least_share * mean_step.busy_ns, chains.fused_ns)
    own = fusible(kernel_chains, attention)
    distances = _are_distances(kernel_chains)
    if few or chains.length < LEAST_CHAIN or distances:
        advice = _long_chains(mean_step, chains, own, places_of(ops), least_share)
        if advice or distances or not chains.calls:
            return advice
        least, most = saved_by_fusing(mean_step, own, chains)
        saving = Saving(device_ns=(0.0 if attention else least, most))
        if chains.fused_ns > chains.time_ns or mean_step.gain(saving).high_share < least_share:
            return None
        return _short(_advice(chains, saving, mean_step, places_of(ops)), chains, mean_step, attention)
    saving = saving_of(chains, own, mean_step, step_ops)
    if mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    return _advice(chains, saving, mean_step, places_of(ops))


def _long_chains(
    mean_step: MeanStep,
    chains: Chains,
    own: list[KernelChain],
    places: tuple[Location, ...],
    least_share: float,
) -> Advice | None:
    """Advice about a few long chains among many short ones."""
    busy = mean_step.busy_ns
    few = [
        row for row in own if row.kernels >= LONG_CHAIN and row.device_ns / row.chains >= LEAST_OF_ONE * busy
    ]
    time_ns = mean_step.per_step(sum(row.device_ns for row in few))
    if not few or time_ns < least_share * busy:
        return None
    long = max(few, key=lambda row: row.device_ns)
    named = list(dict.fromkeys(long.ops.split(", ")))
    better = _better(long.ops)
    # Compiling fuses the short chains, too; what computes distances in another way replaces these alone.
    saving = Saving(device_ns=saved_by_fusing(mean_step, few if better else own, chains))
    if mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    return Advice(
        title=_DISTANCES_TITLE if _CDIST in better else "A long chain of elementwise operators is not fused",
        because=f"{units.count(long.kernels)} kernels in a row ({', '.join(named[:4])}, …) could be fused. "
        f"Such chains take {units.duration(time_ns)} of a step ({units.share(time_ns / mean_step.work_ns)} "
        "of the GPU's work), most of it to write results to memory and to read them back.",
        saving=saving,
        certainty="likely",
        fix=_fix(*better),
        check="stepscope show kernel_chains: the chain is gone.",
        evidence={
            "chain_kernels": long.kernels,
            "chain_ops": long.ops,
            "chains_ns": time_ns,
            "chains_share": time_ns / mean_step.work_ns,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE)}),
        locations=places,
    )


def _short(advice: Advice, chains: Chains, mean_step: MeanStep, attention: Table[Attention]) -> Advice:
    """The advice where chains are short: attention that is compiled around them may also get slower."""
    most = units.duration(advice.saving.device_ns[1])
    risk = " It may cost more than that where it takes fused attention apart." if attention else ""
    return replace(
        advice,
        because=f"{_kernels(chains, mean_step)} Chains of them are short, but a compiler also fuses what is "
        f"beside them: norms, casts and copies. That saves {most} of a step at most.{risk}",
        certainty="possible",
        fix=fix_of(_fix(), *([_KEEPS_FUSED] if attention else [])),
        check="stepscope diff BEFORE AFTER: less time, and attention of the same backend.",
    )


def _are_distances(chains: Iterable[KernelChain]) -> bool:
    """Whether most of the time in chains is in those that compute distances."""
    times = {True: 0, False: 0}
    for row in chains:
        times[_CDIST in _better(row.ops)] += row.device_ns
    return times[True] > times[False]


def _better(ops: str) -> tuple[str, ...]:
    """What is better than fusing these operators, where it can be done."""
    if _DISTANCES.search(ops):
        return (_CDIST, _RADIUS) if _NEAR.search(ops) else (_CDIST,)
    masked = any(mask in ops.split(", ") for mask in _MASKS)
    return (_PAIRS,) if "aten::_softmax" in ops and masked else ()


def _fix(*first: str) -> Fix:
    """Compiling; before it, what is better where it can be done."""
    text = "model = torch.compile(model)    # or @torch.compile on the function with these operators"
    return fix_of(*first, line(Change.COMPILE, text))


def _kernels(chains: Chains, mean_step: MeanStep) -> str:
    """How many there are, and what they take."""
    return (
        f"{often(chains.calls, 'elementwise kernel')}, {units.duration(chains.mean_ns)} each, take "
        f"{units.duration(chains.time_ns)} ({units.share(chains.time_ns / mean_step.work_ns)} of the GPU's "
        "work)."
    )


def _advice(chains: Chains, saving: Saving, mean_step: MeanStep, places: tuple[Location, ...]) -> Advice:
    return Advice(
        title="Elementwise operators run as separate kernels",
        because=f"{_kernels(chains, mean_step)} On average {units.tally(chains.length)} kernels in a row "
        "could be fused into one." + (_COMPLEX if chains.beside_unfused else ""),
        saving=saving,
        certainty="possible" if chains.beside_unfused else "likely",
        fix=_fix(),
        check="stepscope show kernel_families: elementwise takes less time; its kernels are named triton_….",
        evidence={
            "elementwise_ns": chains.time_ns,
            "elementwise_share": chains.time_ns / mean_step.work_ns,
            "kernels_per_step": chains.calls,
            "kernel_mean_ns": chains.mean_ns,
            "chain_length": chains.length,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE), Claim(Time.STARVED, Part.ELEMENTWISE)}),
        locations=places,
    )
