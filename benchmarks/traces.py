"""Write a realistic Kineto trace of any size, always the same for the same size and seed.

python benchmarks/traces.py 1GB                 a .json.gz in the cache folder; prints its path
python benchmarks/traces.py 50MB --plain        the same, not compressed
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

SOURCES = Path(__file__).parent / "make_trace"
CHUNK_BYTES = 4 << 20
WINDOW_BYTES = 32 << 10
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to generate: equal recipes give equal bytes."""

    raw_bytes: int
    seed: int = 1
    plain: bool = False
    base_last: bool = False

    @property
    def file_name(self) -> str:
        """The name under which the cache folder keeps the trace."""
        base = "-base_last" if self.base_last else ""
        ending = ".json" if self.plain else ".json.gz"
        return f"kineto-{size_text(self.raw_bytes)}-seed{self.seed}{base}.pt.trace{ending}"


@dataclass(frozen=True, slots=True)
class Summary:
    """What is in a generated trace; events by category and phase, as in "kernel X"."""

    raw_bytes: int
    steps: int
    events: dict[str, int]


def size_text(raw_bytes: int) -> str:
    """Write a size so that `parse_size` reads it back."""
    for unit in ("g", "m", "k"):
        if raw_bytes % UNITS[unit] == 0:
            return f"{raw_bytes // UNITS[unit]}{unit.upper()}B"
    return f"{raw_bytes}B"


def parse_size(text: str) -> int:
    """Read a size such as 50MB, 1.5GB or 2000000; units are powers of ten."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"not a size: {text!r} (try 50MB or 1GB)")
    return round(float(match[1]) * UNITS[match[2]])


def cache_folder() -> Path:
    """Return the folder that keeps generated traces, outside the repository."""
    default = Path(tempfile.gettempdir()) / "stepscope-bench"
    folder = Path(os.environ.get("STEPSCOPE_BENCH_DIR", default))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compiled_generator(folder: Path) -> Path:
    """Compile the generator, or reuse the one made from the same sources."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    program = folder / f"make_trace-{digest.hexdigest()[:12]}"
    if not program.exists():
        fresh = program.with_suffix(f".{os.getpid()}")
        compiler = os.environ.get("CXX", "g++")
        subprocess.run([compiler, "-std=c++20", "-O2", "-o", fresh, SOURCES / "main.cpp"], check=True)
        fresh.replace(program)
    return program


def chunks_of(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the stream in whole chunks; the last may be shorter."""
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def deflated(chunk: bytes, window: bytes) -> bytes:
    """Compress one chunk so that it continues the stream that ends with `window`."""
    # Level 6 comes nearest to the files that torch writes (level 9), at four times the speed.
    parts = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, window)
    return parts.compress(chunk) + parts.flush(zlib.Z_SYNC_FLUSH)


def write_gzip(chunks: Iterable[bytes], target: IO[bytes], jobs: int) -> int:
    """Compress chunks side by side into ONE gzip member, as torch writes it; return the raw size."""
    target.write(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")
    checksum = raw_bytes = 0
    window = b""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = deque[Callable[[], bytes]]()
        for chunk in chunks:
            if len(waiting) > jobs:
                target.write(waiting.popleft()())
            waiting.append(pool.submit(deflated, chunk, window).result)
            window = chunk[-WINDOW_BYTES:]
            checksum = zlib.crc32(chunk, checksum)
            raw_bytes += len(chunk)
        for result in waiting:
            target.write(result())
    target.write(b"\x03\0" + struct.pack("<II", checksum, raw_bytes & 0xFFFFFFFF))
    return raw_bytes


def write_plain(chunks: Iterable[bytes], target: IO[bytes]) -> int:
    """Write the chunks as they are; return their size."""
    return sum(target.write(chunk) for chunk in chunks)


def widen_pipe(stream: IO[bytes]) -> None:
    """Let the pipe hold a megabyte where the system can: fewer switches between the two sides."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, 1 << 20)


def summary_of(trace: Path) -> Summary:
    """Return what the generator wrote down about a trace."""
    return Summary(**json.loads(summary_path(trace).read_text()))


def summary_path(trace: Path) -> Path:
    """Return where the summary of a trace is kept."""
    return trace.with_name(trace.name + ".summary")


def generate(recipe: Recipe, target: Path, *, jobs: int | None = None) -> None:
    """Write the trace to `target` and a summary beside it."""
    program = compiled_generator(cache_folder())
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    command = [str(program), str(recipe.raw_bytes), str(recipe.seed), str(int(recipe.base_last))]
    with (
        tempfile.TemporaryFile() as report,
        fresh.open("wb") as out,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=report) as maker,
    ):
        assert maker.stdout is not None
        widen_pipe(maker.stdout)
        chunks = chunks_of(maker.stdout)
        raw_bytes = write_plain(chunks, out) if recipe.plain else write_gzip(chunks, out, jobs or cpu_count())
        maker.wait()
        report.seek(0)
        rows = [line.split("\t") for line in report.read().decode().splitlines()]
    counts = {f"{name} {phase}".strip(): int(number) for name, phase, number in rows if number != "0"}
    if maker.returncode != 0 or counts.pop("bytes -") != raw_bytes:
        fresh.unlink()
        raise RuntimeError("the trace generator stopped early")
    summary = Summary(raw_bytes, counts.pop("steps -"), counts)
    summary_path(target).write_text(json.dumps(asdict(summary), indent=1) + "\n")
    fresh.replace(target)


def cpu_count() -> int:
    """Return how many processors there are."""
    return os.cpu_count() or 1


def cpu_name() -> str:
    """Return what the processor is called, as far as the system says it."""
    info = Path("/proc/cpuinfo")
    said = info.read_text() if info.exists() else ""
    # ARM gives numbers in place of a name: the maker and the part.
    fields = dict(re.findall(r"^(model name|CPU implementer|CPU part)\s*:\s*(.*)$", said, re.MULTILINE))
    return fields.get("model name") or " ".join(fields.values()) or platform.processor() or platform.machine()


def cached(recipe: Recipe) -> Path:
    """Return the trace from the cache folder; generate it first where it is not there."""
    path = cache_folder() / recipe.file_name
    if not path.exists():
        generate(recipe, path)
    return path


def main(arguments: list[str]) -> int:
    """Generate one trace and print where it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", type=parse_size, help="size of the JSON text, such as 50MB, 1GB, 20GB")
    parser.add_argument("--seed", type=int, default=1, help="another seed, another program")
    parser.add_argument("--plain", action="store_true", help="do not compress")
    parser.add_argument(
        "--base-last", action="store_true", help="baseTimeNanoseconds after the events, as older torch"
    )
    parser.add_argument("--output", type=Path, help="write here and not into the cache folder")
    options = parser.parse_args(arguments)
    recipe = Recipe(options.size, options.seed, options.plain, options.base_last)
    if options.output is None:
        print(cached(recipe))
    else:
        generate(recipe, options.output)
        print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
