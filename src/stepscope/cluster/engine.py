"""What every engine does: one task a rank, each answered with bytes or with the reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.cluster.tasks import RankTask
    from stepscope.streams import Progress

__all__ = ["ATTEMPTS", "DOING", "Engine", "Outcome"]

ATTEMPTS = 3
"""How often a task is tried: a file server that was away for a moment, or a killed worker, costs no rank."""
DOING = "reading ranks"
"""What progress is told."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one task."""

    task: RankTask
    payload: bytes | None = None
    """Its answer; None if it failed."""
    error: str = ""
    """Why it failed, as a sentence without a full stop."""
    detail: str = ""
    """The traceback, where the failure is a bug of ours."""


class Engine(Protocol):
    """Does tasks somewhere."""

    def map(self, tasks: Sequence[RankTask], progress: Progress | None = None) -> Iterator[Outcome]:
        """An outcome for every task, as they come; who stops asking ends the work."""
