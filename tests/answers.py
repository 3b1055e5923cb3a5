"""What analyses find in a trace, worked out once for all tests that look at what is made of it.

Most of the time of a report goes into the tables of its rules. A test of formats, files, exit codes or pages
needs a true report, not one of its own: `pytestmark = pytest.mark.usefixtures("answers_kept")`. Not for tests
that change an analysis, a rule or how a trace is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.store import trace
from stepscope.store.database import Database, Remake

__all__ = ["keep_answers"]

MOST = 24
Kept = tuple[dict[Any, Any], dict[Any, Any]]
_kept: OrderedDict[str, Kept] = OrderedDict()


class _Keeping(Database):
    """A database that knows what was asked of others with the same content, after which stores are named."""

    def __init__(self, folder: Path, remake: Remake | None) -> None:
        super().__init__(folder, remake)
        self._answers, self._locks = _kept.setdefault(folder.name, (self._answers, self._locks))
        _kept.move_to_end(folder.name)
        if len(_kept) > MOST:
            _kept.popitem(last=False)


def _once(self: trace.Trace, key: Any, make: Callable[[], Any]) -> Any:
    return self._shared.once((key, self.measured), make)


def keep_answers(patch: pytest.MonkeyPatch) -> None:
    """From now on, what was asked of a trace is known when it is opened again."""
    patch.setattr(trace, "Database", _Keeping)
    patch.setattr(trace.Trace, "once", _once)
