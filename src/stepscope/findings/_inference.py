"""Serving and decoding, as the rules about them see it: what the steps are, and of which engine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.analyses.attention import Attention
    from stepscope.analyses.iterations import Iteration
    from stepscope.analyses.step_classes import StepClass
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.pace import Pace

__all__ = ["cache_joins", "decodes", "engine_of", "infers", "joined_ns", "left_by_host"]

# Ranges by which engines name their iterations: the first that matches.
_ENGINES = {
    "vLLM": re.compile(r"execute_(\d+_)?(context|new)_"),
    "SGLang": re.compile(r"step\[[A-Z_0-9]+"),
    "ATOM": re.compile(r"(eager_)?(prefill|decode)\[bs="),
}
# Places of one position in a cache of fixed size, by operator: keys and values make two for each attention.
_IN_PLACE = ("aten::index_copy_",)


def engine_of(iterations: Iterable[Iteration]) -> str | None:
    """The engine that named the iterations; None where nobody did."""
    for row in iterations:
        for engine, pattern in _ENGINES.items():
            if row.name and pattern.match(row.name):
                return engine
    return None


def infers(step_classes: Iterable[StepClass]) -> bool:
    """Whether operators were recorded and none of them belongs to training."""
    classes = list(step_classes)
    known = any(one.backward_passes is not None for one in classes)
    return known and not any(one.backward_passes or one.optimizer for one in classes)


def decodes(
    iterations: Iterable[Iteration],
    step_classes: Iterable[StepClass],
    attention: Iterable[Attention],
    step_ops: Iterable[StepOp],
) -> bool:
    """Whether the steps decode: by kind, or by attention to a cache that two writes for each call extend."""
    kinds = {row.kind for row in iterations}
    if kinds - {None, "idle"}:
        return "decode" in kinds
    if not infers(step_classes):
        return False
    rows, ops = list(attention), list(step_ops)
    if any(row.query_length is not None for row in rows):
        return any(_one_query(row) for row in rows)
    calls = sum(row.forward_calls for row in rows)
    return calls > 0 and _near_two(max(_placed(ops), cache_joins(ops)), calls)


def cache_joins(step_ops: Iterable[StepOp]) -> int:
    """Calls of torch.cat beside those of rotary embeddings, which negate one half of what they join."""
    ops = list(step_ops)
    negated = sum(row.calls for row in ops if row.name == "aten::neg")
    return max(0, sum(row.calls for row in ops if row.name == "aten::cat") - negated)


def joined_ns(step_ops: Iterable[StepOp]) -> int:
    """Device time of these: a rotary embedding joins twice what it negates."""
    ops = list(step_ops)
    negated = sum(row.device_ns for row in ops if row.name == "aten::neg")
    return max(0, sum(row.device_ns for row in ops if row.name == "aten::cat") - 2 * negated)


def left_by_host(step_ops: Iterable[StepOp], pace: Pace) -> float:
    """What device work alone can take off a recorded step: operators take the host the rest."""
    return max(0.0, pace.step_ns - pace.per_step(sum(row.host_ns for row in step_ops if row.within is None)))


def _one_query(row: Attention) -> bool:
    return row.query_length == 1 and (row.key_length or 0) > 1


def _placed(ops: list[StepOp]) -> int:
    return sum(row.calls for row in ops if row.name in _IN_PLACE)


def _near_two(writes: int, calls: int) -> bool:
    """Keys and values: two writes for each call of attention, a few more for other things."""
    return 1.9 <= writes / calls <= 2.4
