"""The allocator of GPU memory: its history, and a snapshot of what is allocated and by whom."""

from __future__ import annotations

from typing import Any

from stepscope.capture.run_folder import RankFile
from stepscope.capture.timing import uses_cuda

__all__ = ["keep_snapshot", "start_history"]

_MOST_ENTRIES = 200_000
"""About 200 MB of memory and file at the most, with stacks."""


def start_history() -> bool:
    """Has the allocator note what it does, with stacks; whether there is one to note anything."""
    memory = _cuda_memory()
    if memory is None:
        return False
    memory._record_memory_history(max_entries=_MOST_ENTRIES)  # noqa: SLF001  # torch documents it so
    return True


def keep_snapshot(file: RankFile) -> str:
    """Writes the snapshot and ends the history; what went wrong, if anything."""
    memory = _cuda_memory()
    if memory is None:
        return ""
    path = file.path_of("snapshot.pickle")
    part = path.with_name(f".{path.name}.part")
    try:
        memory._dump_snapshot(str(part))  # noqa: SLF001
        part.replace(path)
        file.add_file("snapshot.pickle", "snapshot")
    except OSError as error:
        return f"The snapshot of the allocator could not be written: {error}."
    finally:
        memory._record_memory_history(enabled=None)  # noqa: SLF001
    return ""


def _cuda_memory() -> Any:
    import torch

    return torch.cuda.memory if uses_cuda() else None
