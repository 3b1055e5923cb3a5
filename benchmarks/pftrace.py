"""Measure how fast Perfetto traces are read, beside a Kineto trace of the same size.

python benchmarks/pftrace.py                     1 GB of each
python benchmarks/pftrace.py --size 200MB
python benchmarks/pftrace.py --repeat trace.pftrace.gz

The .pftrace holds the events of a larger JSON trace: an event takes about a quarter of the bytes there.
Slices come as they happen, as `stepscope export` and other tools write them; `--grouped` also measures the
same file with all begins before all ends, which is how PyTorch writes it, and must give the same events.
(Making that one takes minutes for 1 GB.) `--repeat FILE` measures a profile of yours instead, such as one
that PyTorch wrote, with its slices and GPU work repeated up to the size. Exit code 3 if one is read at less
than a third of the rate of the JSON, in bytes a second, or with more than 512 MiB.

`store alone` is the time of the processor that is left when the native reader's is taken away: what no
reader can save, and the rate that would be reached if reading took no time.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import traces
from ingest import run, stepscope
from rates import Measured, compared, measured

_STAMP = 8 << 3  # the tag of a packet's time, which comes first
_SMALLER = 3.6  # times, than the JSON of the same events

WRITE = """
import sys
import stepscope
from stepscope.exports.pftrace import pftrace
from stepscope.store.export import Selection
pftrace(stepscope.open(sys.argv[1]), sys.argv[2], Selection())
"""
COUNT = """
import sys
import stepscope
trace = stepscope.open(sys.argv[1], store=sys.argv[2])
for table in ("device_work", "launches", "ops", "python_frames", "memory_events"):
    sums = "count(*) AS n, sum(dur_ns)::BIGINT AS ns, sum(start_ns)::HUGEINT AS at"
    print(trace.rows(f"SELECT {sums} FROM {table}"))
"""
READ_ALONE = """
import sys, tempfile, time
from stepscope import _native
from stepscope.sources._reading import new_reader
reader, raw, began = new_reader(), open(sys.argv[1], "rb"), time.process_time()
packets = _native.PftraceReader(reader, tempfile.gettempdir(), "stepscope", {})
while piece := raw.read(1 << 20):
    packets.feed(piece)
    reader.take_batches()
while packets.finish_some(False):
    reader.take_batches()
print(time.process_time() - began, reader.events)
"""
GROUP = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from pftrace import group
group(Path(sys.argv[2]), Path(sys.argv[3]))
"""


def main() -> int:
    """Write them, read them, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=traces.parse_size, default=1_000_000_000, help="of each file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--grouped", action="store_true", help="also in PyTorch's order")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="a .pftrace, gz or not, instead of ours")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=traces.cache_folder()) as folder:
        if chosen.repeat:
            return _measure_repeated(Path(folder), chosen.size, chosen.repeats, chosen.repeat)
        return _measure(Path(folder), chosen.size, chosen.repeats, grouped=chosen.grouped)


def _json(size: int) -> tuple[Path, int]:
    plain = traces.cached(traces.Recipe(size, plain=True))
    return plain, sum(traces.summary_of(plain).events.values())


def _events_of(path: Path) -> int:
    return int(run([sys.executable, "-c", READ_ALONE, str(path)]).output.split()[1])


def _measure_repeated(folder: Path, size: int, repeats: int, file: Path) -> int:
    longer = folder / "repeated.pftrace"
    repeat(file, size, longer)
    profiles = {"Kineto JSON": _json(size), file.name[:23]: (longer, _events_of(longer))}
    found = measured(profiles, repeats)
    verdict = compared(found)
    _print_bound(file.name, longer, found[file.name[:23]], found["Kineto JSON"])
    return verdict


def _measure(folder: Path, size: int, repeats: int, *, grouped: bool) -> int:
    happening, other = folder / "happening.pftrace", folder / "grouped.pftrace"
    _write(folder, round(size * _SMALLER), happening)
    events = _events_of(happening)
    profiles = {"Kineto JSON": _json(size), ".pftrace as it happens": (happening, events)}
    if grouped:
        # In a process of its own: what a program starts counts the memory of its parent as its own.
        run([sys.executable, "-c", GROUP, str(Path(__file__).parent), str(happening), str(other)])
        profiles[".pftrace as PyTorch"] = (other, events)
    found = measured(profiles, repeats)
    verdict = compared(found)
    files = {name: path for name, (path, _) in profiles.items() if name != "Kineto JSON"}
    for name, path in files.items():
        _print_bound(name, path, found[name], found["Kineto JSON"])
    said = {
        run([sys.executable, "-c", COUNT, str(path), str(folder / path.stem)]).output
        for path in files.values()
    }
    if len(said) > 1:
        sys.exit("the two orders differ:\n" + "\n".join(sorted(said)))
    return verdict


def _write(folder: Path, json_size: int, to: Path) -> None:
    """The .pftrace of the events of a JSON trace of some size."""
    source = traces.cached(traces.Recipe(json_size, plain=True))
    first = folder / "first"
    run(stepscope("ingest", str(source), "--store", str(first)))
    (store,) = first.iterdir()
    run([sys.executable, "-c", WRITE, str(store), str(to)])
    shutil.rmtree(first)


def _print_bound(name: str, path: Path, whole: Measured, kineto: Measured) -> None:
    reading = min(
        float(run([sys.executable, "-c", READ_ALONE, str(path)]).output.split()[0]) for _ in range(2)
    )
    rest = max(whole.cost.cpu_s - reading, 0.001)
    rate = whole.size / rest
    print(
        f"{name}: {reading:.2f} s of native reading, store alone {rest:.2f} s = {rate / 1e6:.0f} MB/s, "
        f"{rate / kineto.bytes_a_second:.2f} of the rate of Kineto JSON"
    )


# ---- a profile, repeated


def repeat(file: Path, size: int, to: Path) -> None:
    """Writes a profile whose slices and GPU work come again, later each time, up to a size."""
    raw = file.read_bytes()
    whole = memoryview(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    body, places = bytearray(), []
    for packet, inside in _messages(whole):
        parts = dict(_fields(inside))
        stamp = parts.get(8)
        if isinstance(stamp, int) and ({11, 53} & parts.keys()) and packet[-len(inside)] == _STAMP:
            places.append((len(body) + len(packet) - len(inside) + 1, stamp))
            body += packet
    lasts = max(stamp for _, stamp in places) - min(stamp for _, stamp in places) + 1_000_000
    with to.open("wb") as out:
        out.write(whole)
        for turn in range(1, max(2, (size - len(whole)) // len(body) + 1)):
            for at, stamp in places:
                body[at : at + 9] = _nine_bytes(stamp + turn * lasts)
            out.write(body)


def _nine_bytes(value: int) -> bytes:
    """A number as long as a time in ns since 1970 is."""
    return bytes((value >> 7 * at) & 0x7F | (0x80 if at < 8 else 0) for at in range(9))


# ---- in the order of PyTorch


def group(happening: Path, to: Path) -> None:
    """Writes the same packets, all begins of slices before all ends, and these in the order of the begins."""
    raw = memoryview(happening.read_bytes())
    begins: list[memoryview] = []
    ends: list[memoryview | None] = []
    opened: dict[int, list[int]] = {}
    before, after = [], []
    for whole, packet in _messages(raw):
        event = next((body for number, body in _fields(packet) if number == 11), None)
        if not isinstance(event, memoryview):
            (after if begins else before).append(whole)
            continue
        told = {number: value for number, value in _fields(event) if number in (9, 11)}
        kind, track = told.get(9), told.get(11)
        assert isinstance(track, int)
        if kind == 1:
            opened.setdefault(track, []).append(len(begins))
            begins.append(whole)
            ends.append(None)
        elif kind == 2:
            ends[opened[track].pop()] = whole
        else:
            after.append(whole)
    with to.open("wb") as file:
        for part in (before, begins, ends, after):
            file.writelines(one for one in part if one is not None)


def _messages(raw: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    at = 0
    while at < len(raw):
        size, body = _varint(raw, at + 1)
        yield raw[at : body + size], raw[body : body + size]
        at = body + size


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size, at = _varint(message, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(raw: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] > 0x7F:
        value |= (raw[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | raw[at] << shift, at + 1


if __name__ == "__main__":
    sys.exit(main())
