"""What a process knows of itself as one rank of the program."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

__all__ = ["about_rank", "rank", "world_size"]


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
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many ranks the program has."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))


def _devices() -> list[str]:
    """The GPUs that the program may use, if it uses any."""
    import torch

    if not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
