"""What the rules about serving and decoding share: what the steps do, and of which engine they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.analyses.attention import Attention
    from stepscope.analyses.iterations import Iteration
    from stepscope.analyses.loops import Loop
    from stepscope.analyses.step_classes import StepClass
    from stepscope.analyses.step_ops import StepOp

__all__ = ["cache_joins", "decodes", "engine_of", "infers", "joined_ns", "writes_text"]

# How engines name their iterations; the first match counts.
_ENGINES = {
    "vLLM": re.compile(r"execute_(\d+_)?(context|new)_"),
    "SGLang": re.compile(r"step\[[A-Z_0-9]+"),
    "ATOM": re.compile(r"(eager_)?(prefill|decode)\[bs="),
}
# Operators that write positions of a cache. The first is used for little else.
_PLACES = "aten::index_copy_"
_WRITES = (_PLACES, "aten::index_put_", "aten::slice_scatter", "aten::copy_")
# Operators that choose a token, and the one that turns it into the next input.
_CHOICE = ("aten::argmax", "aten::multinomial")
_LOOK_UP = "aten::embedding"
_MOSTLY = 0.5
_MOST_TABLES = 3
"""Tables in which a pass looks up its tokens, their positions and their types."""
SEVERAL_WORDS = 4
"""From this many choices in a step, each with its look-up, every token is made from the one before. A model
that only reads makes one or two."""


def engine_of(iterations: Iterable[Iteration]) -> str | None:
    """The engine that named the iterations; None if none did."""
    for row in iterations:
        for engine, pattern in _ENGINES.items():
            if row.name and pattern.match(row.name):
                return engine
    return None


def infers(step_classes: Iterable[StepClass]) -> bool:
    """Whether operators were recorded, and none of them belongs to training."""
    classes = list(step_classes)
    known = any(one.backward_passes is not None for one in classes)
    return known and not any(one.backward_passes or one.optimizer for one in classes)


def decodes(
    iterations: Iterable[Iteration],
    step_classes: Iterable[StepClass],
    attention: Iterable[Attention],
    step_ops: Iterable[StepOp],
    loops: Iterable[Loop],
) -> bool:
    """Whether the steps decode: by their kind, by writes to a cache, or by tokens that they choose.

    They do not if they are mostly a loop in which a network looks up what it is given, not what was chosen
    before: so does a text encoder that is run again in each turn of a diffusion model.
    """
    kinds, ops = {row.kind for row in iterations}, list(step_ops)
    if kinds - {None, "idle"}:
        return "decode" in kinds or ("mixed" in kinds and writes_text(ops))
    if not infers(step_classes):
        return False
    if any(loop.lookup == "given" and loop.host_share > _MOSTLY for loop in loops):
        return False
    rows = list(attention)
    if any(row.query_length is not None for row in rows):
        return any(_one_query(row) for row in rows)
    return _extends_cache(ops, sum(row.forward_calls for row in rows)) or writes_text(ops)


def writes_text(step_ops: Iterable[StepOp]) -> bool:
    """Whether a step makes several tokens, one after the other, as a whole call of `generate` does."""
    return _words(list(step_ops)) >= SEVERAL_WORDS


def _extends_cache(ops: list[StepOp], calls: int) -> bool:
    """Whether there are as many writes for each call of attention as a cache needs.

    Keys and values are two writes for each call, or one if they share a tensor. It is half as many if every
    second call attends to another text, which does not grow. Fewer than two writes for each call may be
    anything, unless they are writes that only caches use, or tokens are chosen.
    """
    if not calls:
        return False
    writes = [*(_written(ops, name) for name in _WRITES), cache_joins(ops)]
    if any(_near_two(count, calls) for count in writes):
        return True
    return any(0.45 <= count / calls <= 2.4 for count in (writes if _words(ops) else writes[:1]))


def _words(ops: list[StepOp]) -> float:
    """Tokens that a step chooses, if each is looked up as the next input; else 0."""
    chosen = sum(row.per_step for row in ops if row.name in _CHOICE and row.within is None)
    looked_up = sum(row.per_step for row in ops if row.name == _LOOK_UP and row.within is None)
    times = looked_up / chosen if chosen else 0.0
    return chosen if 1 <= round(times) <= _MOST_TABLES and abs(times - round(times)) < 0.1 else 0.0


def cache_joins(step_ops: Iterable[StepOp]) -> int:
    """Calls of torch.cat, without those of rotary embeddings, which negate one half of what they join."""
    ops = list(step_ops)
    negated = sum(row.calls for row in ops if row.name == "aten::neg")
    return max(0, sum(row.calls for row in ops if row.name == "aten::cat") - negated)


def joined_ns(step_ops: Iterable[StepOp]) -> int:
    """GPU time of these; a rotary embedding joins twice what it negates."""
    ops = list(step_ops)
    negated = sum(row.device_ns for row in ops if row.name == "aten::neg")
    return max(0, sum(row.device_ns for row in ops if row.name == "aten::cat") - 2 * negated)


def _one_query(row: Attention) -> bool:
    return row.query_length == 1 and (row.key_length or 0) > 1


def _written(ops: list[StepOp], name: str) -> int:
    return sum(row.calls for row in ops if row.name == name and row.within is None)


def _near_two(writes: int, calls: int) -> bool:
    """Keys and values: two writes for each call of attention, and a few more for other things."""
    return 1.9 <= writes / calls <= 2.4
