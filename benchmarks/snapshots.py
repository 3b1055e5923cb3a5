"""Measure reading a large snapshot of the allocator, against `pickle.load` in the same run.

python benchmarks/snapshots.py                    1 GB against the budgets; exit code 3 on a miss
python benchmarks/snapshots.py --size 200MB       another size

The snapshot is drawn by writing the operations of a pickle, with shared frames as torch shares them, so that
it need not fit in memory. The unpickler that it is held against refuses every class.
"""

from __future__ import annotations

import argparse
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import traces

LARGE_BYTES = 1_000_000_000
LEAST_MB_PER_S = 60
"""A third of what the reader of Kineto traces does."""
MOST_PEAK_BYTES = 600 << 20
_BATCH = 1000


class PickleWriter:
    """Writes operations of protocol 4; texts that come again are fetched from the memo."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 20)
        self._memo: dict[str, int] = {}
        self._slots = 0
        self._file.write(b"\x80\x04")

    def op(self, code: bytes) -> None:
        """Writes operations as they are."""
        self._file.write(code)

    def kept(self, code: bytes) -> int:
        """Writes an operation whose result goes to the memo, and says where."""
        self._file.write(code + b"\x94")
        self._slots += 1
        return self._slots - 1

    def fetch(self, slot: int) -> bytes:
        """The operation that fetches a slot."""
        return b"h" + bytes([slot]) if slot < 256 else b"j" + struct.pack("<I", slot)

    def text(self, text: str) -> None:
        """Writes a text."""
        slot = self._memo.get(text)
        if slot is not None:
            self._file.write(self.fetch(slot))
            return
        raw = text.encode()
        self._memo[text] = self.kept(b"\x8c" + bytes([len(raw)]) + raw)

    def whole(self, number: int) -> None:
        """Writes a number as pickle does."""
        if number < 256:
            self._file.write(b"K" + bytes([number]))
        elif number < 1 << 31:
            self._file.write(b"J" + struct.pack("<i", number))
        else:
            raw = number.to_bytes(number.bit_length() // 8 + 1, "little")
            self._file.write(b"\x8a" + bytes([len(raw)]) + raw)

    def size(self) -> int:
        """How much there is."""
        return self._file.tell()

    def close(self) -> None:
        """Ends the pickle."""
        self._file.write(b".")
        self._file.close()


def draw(path: Path, size: int) -> int:
    """A snapshot of about that size; how many events it has."""
    out = PickleWriter(path)
    out.kept(b"}")
    out.op(b"(")
    frames = []
    out.text("frames_kept_first")
    out.kept(b"]")
    out.op(b"(")
    for number in range(4000):
        frames.append(out.kept(b"}"))
        out.op(b"(")
        for key, value in (
            ("name", f"function_{number % 700}"),
            ("filename", f"/home/me/file_{number % 90}.py"),
        ):
            out.text(key)
            out.text(value)
        out.text("line")
        out.whole(number)
        out.op(b"u")
    out.op(b"e")
    _state(out)
    out.text("device_traces")
    out.kept(b"]")
    out.kept(b"]")
    events = 0
    while out.size() < size:
        out.op(b"(")
        for _ in range(_BATCH):
            _event(out, events, frames)
            events += 1
        out.op(b"e")
    out.op(b"au")
    out.close()
    return events


def _state(out: PickleWriter) -> None:
    out.text("segments")
    out.kept(b"]")
    out.kept(b"}")
    out.op(b"(")
    for key, value in (("device", 0), ("address", 1 << 45), ("total_size", 1 << 30)):
        out.text(key)
        out.whole(value)
    out.text("blocks")
    out.kept(b"]")
    out.kept(b"}")
    out.op(b"(")
    for key, value in (("address", 1 << 45), ("size", 1 << 30), ("requested_size", 0)):
        out.text(key)
        out.whole(value)
    out.text("state")
    out.text("inactive")
    out.op(b"uaua")


def _event(out: PickleWriter, number: int, frames: list[int]) -> None:
    out.kept(b"}")
    out.op(b"(")
    out.text("action")
    out.text(("alloc", "free_requested", "free_completed")[number % 3])
    for key, value in (
        ("addr", (1 << 45) + (number // 3 % 1000) * 4096),
        ("size", 1000 + number // 3 % 3000),
        ("stream", 0),
        ("time_us", 1_700_000_000_000_000 + number),
    ):
        out.text(key)
        out.whole(value)
    out.text("compile_context")
    out.text("N/A")
    out.text("user_metadata")
    out.text("")
    out.text("frames")
    out.kept(b"]")
    first = number // 3 * 37 % 3900
    out.op(b"(" + b"".join(out.fetch(frames[first + depth]) for depth in range(30)) + b"eu")


_READ = """
import sys, time, stepscope
from pathlib import Path
start = time.perf_counter()
trace = stepscope.open(sys.argv[1], store=sys.argv[2])
took = time.perf_counter() - start
print(took, trace.meta.rows["allocator_events"])
"""
_UNPICKLE = """
import pickle, sys, time
class Plain(pickle.Unpickler):
    def find_class(self, *names): raise pickle.UnpicklingError(names)
start = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    told = Plain(file).load()
print(time.perf_counter() - start, len(told["device_traces"][0]))
"""


def measured(code: str, *words: str) -> tuple[float, int, int]:
    """Seconds, events and peak memory of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
    text, _ = process.communicate()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # the highest of all so far
    if process.returncode:
        return 0.0, 0, max(peak, before) * 1024
    seconds, events = text.split()
    return float(seconds), int(events), peak * 1024


def main() -> int:
    """Draws, reads and unpickles."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=traces.parse_size, default=LARGE_BYTES, help="size of the pickle")
    size = parser.parse_args().size
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        path = Path(folder) / "snapshot.pickle"
        start = time.perf_counter()
        events = draw(path, size)
        large = path.stat().st_size
        print(f"drawn: {large / 1e6:,.0f} MB, {events:,} events, {time.perf_counter() - start:.0f} s")
        took, found, peak = measured(_READ, str(path), folder)
        rate = large / 1e6 / took if took else 0.0
        print(f"stepscope: {took:.1f} s, {rate:.0f} MB/s, {peak / (1 << 20):,.0f} MiB, {found:,} events")
        took, _, most = measured(_UNPICKLE, str(path))
        said = f"{took:.1f} s, {large / 1e6 / took:.0f} MB/s" if took else "out of memory"
        print(f"pickle.load: {said}, {most / (1 << 20):,.0f} MiB")
    return 0 if rate >= LEAST_MB_PER_S and peak <= MOST_PEAK_BYTES and found == events else 3


if __name__ == "__main__":
    sys.exit(main())
