"""Analyses are tested with what they declare, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepscope.store import database


@pytest.fixture(autouse=True, scope="module")
def _only_declared_reads() -> Iterator[None]:
    """Our own analyses, too, see the views and columns that they name, whatever the size of the trace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "LIMIT_OURS", True)
        yield
