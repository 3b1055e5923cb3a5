"""Drawn snapshots of a caching allocator, with what a slow count in Python says of them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["BASE_US", "DrawnAllocator", "frame", "slow_levels"]

BASE_US = 1_700_000_000_000_000
MIB = 1 << 20
_ROOM = 1 << 40

TRAIN = "/home/me/train.py"


def frame(function: str, line: int = 1, file: str = TRAIN) -> dict[str, Any]:
    """A frame as the allocator writes it."""
    return {"name": function, "filename": file, "line": line}


FORWARD = (frame("forward", 10), frame("step", 20))
BACKWARD = (frame("torch::autograd::Engine::thread_main(GraphTask)", 0, "??"),)
OPTIMIZER = (frame("step", 5, "/x/site-packages/torch/optim/adam.py"), frame("step", 22))


@dataclass
class DrawnAllocator:
    """An allocator with one segment per call of `segment`, whose blocks lie one after another."""

    device: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    live: dict[int, tuple[int, int, Sequence[dict[str, Any]]]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    """Of blocks that are in use, but in no tensor."""
    now_us: int = BASE_US

    def _event(
        self, action: str, address: int, size: int, stack: Sequence[dict[str, Any]], **more: Any
    ) -> None:
        self.now_us += 10
        place = {"addr": address} if action != "oom" else {}
        entry = {"action": action, **place, "size": size, "stream": 0, "time_us": self.now_us}
        self.events.append({**entry, **more, "frames": list(stack)})

    def segment(
        self, size: int, *, recorded: bool = True, kind: str = "large", expandable: bool = False
    ) -> int:
        """Reserves a segment, and says where it begins."""
        address: int = _ROOM * (self.device + 1) + sum(one["total_size"] + MIB for one in self.segments)
        self.segments.append({"address": address, "total_size": size, "kind": kind, "expandable": expandable})
        if recorded:
            self._event("segment_alloc", address, size, ())
        return address

    def alloc(
        self,
        address: int,
        asked: int,
        stack: Sequence[dict[str, Any]] = (),
        *,
        size: int = 0,
        recorded: bool = True,
    ) -> int:
        """Makes a block; `size` where it is larger than the request rounded up."""
        given = size or max(512, -(-asked // 512) * 512)
        self.live[address] = (asked, given, stack)
        if recorded:
            self._event("alloc", address, asked, stack)
        return address

    def free(self, address: int, stack: Sequence[dict[str, Any]] = (), *, late: bool = False) -> None:
        """Frees a block; what is late stays active, and is gone at the end if it has no state."""
        asked = self.live[address][0]
        if address not in self.states:
            del self.live[address]
        self._event("free_requested", address, asked, stack)
        if not late:
            self._event("free_completed", address, asked, stack)

    def oom(self, asked: int, free: int, stack: Sequence[dict[str, Any]] = ()) -> None:
        """A request that fails."""
        self._event("oom", 0, asked, stack, device_free=free)

    def mark(self, name: str, stage: str) -> None:
        """A range of the program begins or ends."""
        self.now_us += 10
        self.annotations.append({"stage": stage, "name": name, "device": self.device, "time_us": self.now_us})

    def state(self) -> list[dict[str, Any]]:
        """The segments with their blocks."""
        return [self._segment(one) for one in self.segments]

    def _segment(self, told: dict[str, Any]) -> dict[str, Any]:
        low, high = told["address"], told["address"] + told["total_size"]
        blocks: list[dict[str, Any]] = []
        at = low

        def free_until(end: int) -> None:
            if end > at:
                blocks.append(
                    {"address": at, "size": end - at, "requested_size": 0, "state": "inactive", "frames": []}
                )

        for address, (asked, given, stack) in sorted(self.live.items()):
            if low <= address < high:
                free_until(address)
                block = {
                    "address": address,
                    "size": given,
                    "requested_size": asked,
                    "state": self.states.get(address, "active_allocated"),
                }
                blocks.append({**block, "frames": list(stack)})
                at = address + given
        free_until(high)
        used = sum(one["size"] for one in blocks if one["state"] != "inactive")
        return {
            "device": self.device,
            "address": low,
            "total_size": told["total_size"],
            "allocated_size": used,
            "active_size": used,
            "requested_size": 0,
            "stream": 0,
            "segment_type": told["kind"],
            "segment_pool_id": (0, 0),
            "is_expandable": told["expandable"],
            "frames": [],
            "blocks": blocks,
        }

    def snapshot(self, *others: DrawnAllocator) -> dict[str, Any]:
        """What `torch.cuda.memory._snapshot()` would say."""
        every = (self, *others)
        return {
            "segments": [segment for one in every for segment in one.state()],
            "device_traces": [one.events for one in every],
            "allocator_settings": {"expandable_segments": False},
            "external_annotations": [entry for one in every for entry in one.annotations],
        }

    def write(self, path: Path, *others: DrawnAllocator, protocol: int = 4) -> Path:
        """Writes it as `_dump_snapshot` does."""
        path.write_bytes(pickle.dumps(self.snapshot(*others), protocol))
        return path


def slow_levels(snapshot: dict[str, Any], device: int = 0) -> list[tuple[int, int]]:
    """What was active and reserved before the first event and after every one, counted back one by one."""
    segments = [one for one in snapshot["segments"] if one["device"] == device]
    blocks = [block for one in segments for block in one["blocks"] if block["state"].startswith("active")]
    sizes = {block["address"]: block["size"] for block in blocks}
    active, reserved = sum(sizes.values()), sum(one["total_size"] for one in segments)
    found = [(active, reserved)]
    for entry in reversed(snapshot["device_traces"][device]):
        asked = entry["size"]
        given = max(512, (asked + 511) // 512 * 512)
        if entry["action"] == "alloc":
            active -= sizes.pop(entry["addr"], given)
        elif entry["action"] == "free_completed":
            active += given
            sizes.pop(entry["addr"], None)
        elif entry["action"] in ("segment_alloc", "segment_map"):
            reserved -= asked
        elif entry["action"] in ("segment_free", "segment_unmap"):
            reserved += asked
        found.append((active, reserved))
    return found[::-1]


if __name__ == "__main__":  # a small one, for those who mutate it
    drawn = DrawnAllocator()
    begin = drawn.segment(4 * MIB)
    for number in range(30):
        drawn.alloc(begin + number * 4096, 1000 + number, (FORWARD, BACKWARD, OPTIMIZER)[number % 3])
        if number % 2:
            drawn.free(begin + number * 4096, BACKWARD)
    drawn.mark("ProfilerStep#1", "START")
    drawn.oom(5 * MIB, 0, FORWARD)
    drawn.write(Path(sys.argv[1]), DrawnAllocator(device=1))
