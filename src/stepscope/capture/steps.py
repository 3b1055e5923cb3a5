"""Where a step of the program ends, from the calls that it makes: nothing in the program says so.

A training step ends with the optimizer's `step()`. With several optimizers that take turns it ends with the
last of a round; where the program acts between rounds of learning, with the last before it acts again. A
program without an optimizer takes a step with each call of its outermost module, or with each replay of a
CUDA graph, or each backward pass. `stepscope.step()` overrules all of this.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Call", "StepFinder", "round_of"]

LONGEST_ROUND = 64
"""A round of more calls is not looked for: it would make a long step and a large profile."""
_ALIKE = 4
"""So many calls in a row, each a round of its own, are believed."""
_CALLS_WITHOUT_OPTIMIZER = 8
_BACKWARDS_WITHOUT_OPTIMIZER = 4 * LONGEST_ROUND
"""Gradients of so many passes are hardly accumulated: the program updates its weights by hand."""


class Call(Enum):
    """Something the program calls that may end a step."""

    STEP = "step()"
    OPTIMIZER = "optimizer"
    FORWARD = "forward"
    GRAPH = "graph"
    BACKWARD = "backward"

    __hash__ = object.__hash__  # that of Enum is slow, and these are looked up in every step


_FALLBACKS = (Call.FORWARD, Call.GRAPH, Call.BACKWARD)
"""What a step is in a program without an optimizer, the best first."""


@dataclass(frozen=True)
class _Marker:
    """What ends a step: the calls of one kind, in rounds of one or more."""

    call: Call
    key: Hashable
    name: str
    round: tuple[Hashable, ...] = ()
    """The optimizers of a round in their order."""


def round_of(called: Sequence[Hashable]) -> int | None:
    """After how many calls the sequence begins anew, by its end; None if it does not, or not yet."""
    for length in range(1, LONGEST_ROUND + 1):
        looked_at = max(2 * length, _ALIKE if length == 1 else 0)
        if len(called) < looked_at:
            return None
        end = list(called)[-looked_at:]
        if end[length:] == end[:-length]:
            return length
    return None


class StepFinder:
    """Takes every call of the program, and says which ones end a step."""

    def __init__(self, *, by_hand: bool = False) -> None:
        self._marker = _Marker(Call.STEP, None, "stepscope.step()") if by_hand else None
        self._names: dict[Hashable, str] = {}
        self._optimizers: deque[Hashable] = deque(maxlen=4 * LONGEST_ROUND)
        self._acted_at: list[int] = []
        self._updates = 0
        self._acting = False
        self._others: dict[Call, Counter[Hashable]] = {call: Counter() for call in _FALLBACKS}
        self._backwards = 0
        self.waits_for_optimizer = False
        """Whether the program has an optimizer that it has not used yet: it will train."""
        self._since_step = [0, 0]
        """Forward and backward passes."""
        self._in_step = [0, 0]
        self.changes = 0
        """How often something else began to end steps: what was measured before is of other steps."""

    @property
    def passes_per_step(self) -> dict[Call, int]:
        """How many forward and backward passes the last whole step had."""
        return {
            call: count
            for call, count in zip((Call.FORWARD, Call.BACKWARD), self._in_step, strict=True)
            if count
        }

    @property
    def has_acted(self) -> bool:
        """Whether a module was called for training, but without gradients: to find out what to learn from."""
        return self._acting or bool(self._acted_at)

    @property
    def is_found(self) -> bool:
        """Whether it is known what ends a step."""
        return self._marker is not None

    @property
    def call(self) -> Call | None:
        """What kind of call ends a step."""
        return self._marker.call if self._marker else None

    @property
    def name(self) -> str:
        """What ends a step, as the program calls it."""
        return self._marker.name if self._marker else ""

    @property
    def calls(self) -> int:
        """How many calls make a step."""
        return max(1, len(self._marker.round)) if self._marker else 0

    def step(self, name: str = "stepscope.step()") -> bool:
        """`stepscope.step()` was called, or something of this name: it ends a step, now and from now on."""
        if self.call is not Call.STEP:
            self._mark(_Marker(Call.STEP, None, name))
        elif name != self.name:
            self._marker = _Marker(Call.STEP, None, name)
        return self._ends()

    def optimizer(self, key: Hashable, name: str) -> bool:
        """An optimizer has made its update: whether that ends a step."""
        marker = self._marker
        self._optimizers.append(key)
        if marker is not None and marker.round == (key,) and not self._acting:  # as in nearly all programs
            self._updates += 1
            return self._ends()
        if self.call is Call.STEP:
            return False
        self._names[key] = name
        if self._acting:
            self._acted_at.append(self._updates)
            self._acting = False
        self._updates += 1
        if self.call is not Call.OPTIMIZER or self._is_broken():
            self._look_for_round()
        if self._marker is None or self._marker.call is not Call.OPTIMIZER:
            return False
        order = self._marker.round
        if len(order) == 1:
            return self._ends()
        if len(set(order)) == 1:  # rounds of learning with one optimizer: they end before it acts again
            return self._ends() if (self._updates - self._acted_at[-1]) % len(order) == 0 else False
        return self._ends() if tuple(self._optimizers)[-len(order) :] == order else False

    def forward(self, key: Hashable, name: str, acting: bool) -> bool:
        """A module of the program is called, without gradients if it acts: whether a step ended before."""
        self._since_step[0] += 1
        self._acting = self._acting or acting
        return self._other(Call.FORWARD, key, name)

    def graph(self) -> bool:
        """A CUDA graph is replayed: whether a step ended before."""
        return self._other(Call.GRAPH, None, "a replay of a CUDA graph")

    @property
    def is_simple(self) -> bool:
        """Whether each call of one optimizer is a step, and the program does nothing else that counts."""
        return self._marker is not None and len(self._marker.round) == 1 and not self.has_acted

    def went_on(self, steps: int) -> None:
        """So many more steps ended, as the last one did."""
        self._updates += steps

    def went_backward(self, passes: int) -> None:
        """So many backward passes ended in this step, none of which can end it."""
        self._backwards += passes
        self._since_step[1] += passes

    def backward(self) -> bool:
        """A backward pass ended: whether a step did."""
        self._backwards += 1
        self._since_step[1] += 1
        return self._other(Call.BACKWARD, None, "a backward pass")

    def sentence(self) -> str:
        """What counts as a step, for people."""
        if self._marker is None:
            return "No steps were found."
        if self._marker.call is Call.STEP:
            return f"A step ends with {self.name}."
        if self._marker.call is Call.OPTIMIZER and self.calls > 1:
            optimizers = len(set(self._marker.round))
            if optimizers == 1:
                return f"A step is a round of {self.calls} calls of {self.name}."
            return f"A step is a round of {self.calls} updates by {optimizers} optimizers."
        what = {Call.FORWARD: f"one call of {self.name}", Call.OPTIMIZER: f"one call of {self.name}"}
        return f"A step is {what.get(self._marker.call, self.name)}."

    # ------------------------------------------------------------ how it is found

    def _other(self, call: Call, key: Hashable, name: str) -> bool:
        """A call that ends steps only in a program without an optimizer."""
        if self._optimizers or self.waits_for_optimizer or self.call in (Call.STEP, Call.OPTIMIZER):
            return False
        self._names[key] = name
        seen = self._others[call]
        seen[key] += 1
        if self._marker is None or _FALLBACKS.index(call) < _FALLBACKS.index(self._marker.call):
            often, times = seen.most_common(1)[0]
            trains = 0 < self._backwards < _BACKWARDS_WITHOUT_OPTIMIZER
            if times >= _CALLS_WITHOUT_OPTIMIZER and not trains:
                self._mark(_Marker(call, often, self._names[often]))
                return False
        found = self._marker
        return found is not None and found.call is call and found.key == key and self._ends()

    def _is_broken(self) -> bool:
        """Whether the optimizers no longer take turns as they did, or the program acts between them."""
        order = self._marker.round if self._marker else ()
        if len(order) == 1:
            return self._optimizers[-1] != order[0] or self._acts_in_between()
        if len(set(order)) == 1:
            return False
        last = tuple(self._optimizers)[-len(order) :]
        return set(last) != set(order)

    def _acts_in_between(self) -> bool:
        """Whether it acted, learned for several updates, and acts again."""
        return bool(self._acted_at) and self._acted_at[-1] == self._updates - 1 and self._learning() > 1

    def _learning(self) -> int:
        """Between how many updates it does not act, by the last two times it did; 0 if it never did so."""
        times = [0, *self._acted_at]
        return times[-1] - times[-2] if len(times) > 1 else 0

    def _look_for_round(self) -> None:
        learning = self._learning()
        if 1 < learning <= LONGEST_ROUND:
            self._look_for_learning(learning)
            return
        length = round_of(self._optimizers)
        if length is None:
            if self._marker and self._marker.call is Call.OPTIMIZER:
                self._unmark()
            return
        order = tuple(self._optimizers)[-length:]
        if length > 1:  # begins with the optimizer that the program began with
            first = next((at for at, key in enumerate(order) if key == self._optimizers[0]), 0)
            order = order[first:] + order[:first]
        name = self._names[order[-1]]
        marker = _Marker(Call.OPTIMIZER, order[-1], name, order)
        if marker != self._marker:
            self._mark(marker)

    def _look_for_learning(self, learning: int) -> None:
        """The program acts, learns for some updates, and acts again: that is a round, if it is seen twice."""
        times = [0, *self._acted_at]
        if self._updates - times[-1] > LONGEST_ROUND:
            self._acted_at.clear()  # it acted once, as a check before it trains
            return
        if len(times) > 2 and times[-2] - times[-3] == learning:
            order = tuple(self._optimizers)[-learning:]
            self._mark(_Marker(Call.OPTIMIZER, order[-1], self._names[order[-1]], order))
        elif self._marker is not None:
            self._unmark()

    def _mark(self, marker: _Marker) -> None:
        self._marker = marker
        self.changes += 1
        # The step that ends now had as many backward passes as those before it, which were not told apart.
        self._since_step = [0, round(self._backwards * self.calls / max(1, self._updates))]

    def _unmark(self) -> None:
        self._marker = None
        self.changes += 1

    def _ends(self) -> bool:
        self._in_step, self._since_step = self._since_step, [0, 0]
        return True
