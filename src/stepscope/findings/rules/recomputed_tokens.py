"""Text is generated without a cache of keys and values."""

from __future__ import annotations

from collections import defaultdict

from stepscope import units
from stepscope.analyses.growing_passes import GrowingPasses
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.step_classes import StepClass
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._inference import infers
from stepscope.findings._phrases import times
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["recomputed_tokens"]

ROWS_FOR_ONE_READ = 300
"""Up to so many rows, a product in 16 bits takes as long as reading its weights, on GPUs of recent years."""
LONG_KERNEL_NS = 10_000
_FIX = fix_of(
    "model.generate(..., use_cache=True)    # transformers; gradient checkpointing switches it off",
    "out = model(token, past_key_values=cache, use_cache=True)    # your own loop: pass the new token alone",
    line(Change.STATIC_CACHE, "cache[:, :, position] = keys    # of fixed size, written in place"),
)


@rule(category=Category.INFERENCE)
def recomputed_tokens(
    mean_step: MeanStep,
    growing_passes: Table[GrowingPasses],
    iterations: Table[Iteration],
    step_classes: Table[StepClass],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Each token is made by a pass over all tokens before it, which a cache of keys and values saves.

    In runs of forward passes every sequence gets longer by one token. With a cache, the first pass of a run
    reads all tokens, and each of the others one.

    Gain:

    - at most: the part of the GPU's work that these tokens are of all tokens.
    - at least: the same if a pass takes as long as one over 300 tokens, which is about what reading the
      weights takes. Nothing if kernels take less than 10 µs on average: they may take as long for one token.
    """
    if mean_step.device is None or not infers(step_classes):
        return None
    runs = _of_one_table(growing_passes)
    tokens = sum(run.tokens for run in runs)
    if not tokens:
        return None
    needed = sum(run.batch * (run.first_length + run.passes - 1) for run in runs)
    passes = sum(run.passes for run in runs)
    high = mean_step.busy_ns * (1 - needed / tokens)
    if mean_step.share(high) < least_share:
        return None
    kernels = mean_step.per_step(sum(row.kernels for row in iterations))
    is_long = bool(kernels) and mean_step.busy_ns >= LONG_KERNEL_NS * kernels
    longest = max(runs, key=lambda run: run.tokens)
    return Advice(
        title="Generation computes all earlier tokens again",
        because=f"{times(passes, 'forward pass')} follow one another in {times(len(runs), 'run')} in which "
        f"every sequence gets longer by one token, as from {units.count(longest.first_length)} to "
        f"{units.count(longest.last_length)}. They compute {units.count(tokens)} tokens. With a cache of "
        f"keys and values, {units.count(needed)} are enough.",
        saving=Saving(device_ns=(_least(runs) * mean_step.busy_ns if is_long else 0.0, high)),
        certainty="likely",
        fix=_FIX,
        check="stepscope show growing_passes: no row. Passes after the first have one token.",
        evidence={
            "passes": passes,
            "runs": len(runs),
            "tokens": tokens,
            "needed_tokens": needed,
            "longest_length": longest.last_length,
        },
        claims=frozenset({Claim(Time.DEVICE)}),
    )


def _of_one_table(passes: Table[GrowingPasses]) -> list[GrowingPasses]:
    """The runs of the table of embeddings that most tokens are looked up in; positions have their own."""
    runs: defaultdict[str, list[GrowingPasses]] = defaultdict(list)
    for run in passes:
        runs[run.table].append(run)
    return max(runs.values(), key=lambda of: sum(run.tokens for run in of), default=[])


def _least(runs: list[GrowingPasses]) -> float:
    """The part of the time that is saved at least, if no pass takes less than the reading of the weights."""
    now = then = 0.0
    for run in runs:
        mean = run.tokens / run.passes
        now += run.passes * max(ROWS_FOR_ONE_READ, mean)
        first = max(ROWS_FOR_ONE_READ, run.batch * run.first_length)
        then += first + (run.passes - 1) * max(ROWS_FOR_ONE_READ, run.batch)
    return max(0.0, 1 - then / now) if now else 0.0
