"""What a process knows of itself as one rank of the program."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from stepscope.capture.timing import uses_cuda

__all__ = ["about_rank", "process_group", "rank", "world_size"]


def about_rank(command: Sequence[str], started: str) -> dict[str, Any]:
    """What is known of this process from the start, for the file of its rank."""
    return {
        "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
        "world_size": world_size(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": list(command),
        "started": started,
        "ended": None,
        "exit_code": None,
        "state": "running",
        "devices": _devices(),
    }


def rank() -> int:
    """The rank of this process; 0 in a program with one."""
    group = process_group()
    return int(group.get_rank() if group else os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many ranks the program has."""
    group = process_group()
    return int(group.get_world_size() if group else os.environ.get("WORLD_SIZE", "1"))


def process_group() -> Any:
    """torch.distributed, if the program has started it; None elsewhere."""
    from torch import distributed

    return distributed if distributed.is_available() and distributed.is_initialized() else None


def _devices() -> list[str]:
    """The GPUs that the program may use, if it uses any."""
    import torch

    if not uses_cuda():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
