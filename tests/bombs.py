"""Small files that would fill the memory: one for each thing of which a trace can have too many or too long.

    python -m tests.bombs FOLDER [NAME…]     writes each, ingests and reports it, prints what that took

A bomb gives its text in pieces, so that making it takes no memory either. `size` is in bytes, about.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BOMBS", "Taken", "take", "write"]

MIB = 1 << 20
FULL = 256 * MIB
Bomb = Callable[[int], Iterator[str]]

BOMBS: dict[str, Bomb] = {}


def bomb(function: Bomb) -> Bomb:
    BOMBS[function.__name__] = function
    return function


def event(name: str = "k", *, cat: str = "kernel", tid: object = 7, ts: int = 5, args: str = "") -> str:
    more = f', "args": {{{args}}}' if args else ""
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 0, "tid": {tid}, "ts": {ts}, "dur": 1{more}}}'
    )


def listed(size: int, make: Callable[[int], str]) -> Iterator[str]:
    """A trace of the events that `make` gives for 0, 1, 2 …, until they have that many bytes."""
    yield '{"traceEvents": [' + event("first")
    written, number, piece = 0, 0, []
    while written < size:
        piece.append("," + make(number))
        number += 1
        written += len(piece[-1])
        if len(piece) == 1000 or written >= size or len(piece[-1]) > MIB:
            yield "".join(piece)
            piece = []
    yield '], "baseTimeNanoseconds": 7}'


# ------------------------------------------------ the header


@bomb
def header_keys(size: int) -> Iterator[str]:
    """Millions of keys in the header."""
    yield "{"
    for first in range(0, size // 16, 1000):
        yield "".join(f'"key{n:08}": 1,' for n in range(first, first + 1000))
    yield f'"traceEvents": [{event()}]}}'


@bomb
def header_texts(size: int) -> Iterator[str]:
    """Keys of the header with texts of 32 MiB."""
    yield "{"
    for number in range(max(1, size // (32 * MIB))):
        yield f'"long{number}": "'
        for _ in range(32):
            yield "x" * MIB
        yield '",'
    yield f'"traceEvents": [{event()}]}}'


@bomb
def header_lists(size: int) -> Iterator[str]:
    """Keys of the header with lists of millions of small lists, which are large objects in Python."""
    yield "{"
    for number in range(max(1, size // (16 * MIB))):
        yield f'"list{number}": ['
        for _ in range(16):
            yield "[],{}," * (MIB // 6)
        yield "0],"
    yield f'"traceEvents": [{event()}]}}'


@bomb
def header_repeated(size: int) -> Iterator[str]:
    """The same key of the header again and again, each time with another text."""
    yield "{"
    for number in range(size // (64 << 10)):
        yield f'"deviceProperties": "{number}{"y" * (64 << 10)}",'
    yield f'"traceEvents": [{event()}]}}'


# ------------------------------------------------ threads


@bomb
def threads(size: int) -> Iterator[str]:
    """Operators, each on a thread of its own."""
    return listed(size, lambda n: event("aten::mm", cat="cpu_op", tid=n, ts=n))


@bomb
def streams(size: int) -> Iterator[str]:
    """Kernels, each on a stream of its own, with a launch on a thread of its own."""

    def make(n: int) -> str:
        launch = event("cudaLaunchKernel", cat="cuda_runtime", tid=n, ts=n, args=f'"correlation": {n}')
        return launch + "," + event(tid=n, ts=n, args=f'"device": {n % 8}, "stream": {n}, "correlation": {n}')

    return listed(size, make)


@bomb
def long_threads(size: int) -> Iterator[str]:
    """Threads whose ids are texts of 64 KiB."""
    return listed(size, lambda n: event(tid=f'"{n}{"t" * (64 << 10)}"'))


@bomb
def thread_names(size: int) -> Iterator[str]:
    """Metadata events that name millions of threads."""
    return listed(
        size,
        lambda n: (
            f'{{"ph":"M","name":"thread_name","pid":{n % 1000},"tid":{n},"args":{{"name":"thread {n}"}}}}'
        ),
    )


# ------------------------------------------------ texts


@bomb
def names(size: int) -> Iterator[str]:
    """Kernels, each with a name of its own."""
    return listed(size, lambda n: event(f"kernel number {n}", ts=n))


@bomb
def frames(size: int) -> Iterator[str]:
    """Python frames, each with a name of its own and inside the one before: paths of any length."""
    last = size // 100

    def make(n: int) -> str:
        return (
            f'{{"ph":"X","cat":"python_function","name":"f{n}.py({n}): call","pid":1,"tid":1,'
            f'"ts":{n},"dur":{2 * (last - n) + 5},"args":{{"Python id":{n}}}}}'
        )

    return listed(size, make)


@bomb
def long_names(size: int) -> Iterator[str]:
    """Kernels with names of 4 MiB, that differ in their last letters."""
    return listed(size, lambda n: event("k" * (4 * MIB) + str(n), ts=n))


@bomb
def escaped_names(size: int) -> Iterator[str]:
    """Kernels with long names that are written in escapes, each differently."""
    return listed(size, lambda n: event("\\u0041" * 10_000 + str(n), ts=n))


@bomb
def long_args(size: int) -> Iterator[str]:
    """Kernels with an argument of 4 MiB, each another."""
    return listed(size, lambda n: event(ts=n, args=f'"note": "{"a" * (4 * MIB)}{n}"'))


@bomb
def arg_keys(size: int) -> Iterator[str]:
    """Operators, each with an argument of another name: skeletons and layouts without end."""
    return listed(size, lambda n: event("aten::mm", cat="cpu_op", ts=n, args=f'"key{n}": {n}'))


@bomb
def arg_values(size: int) -> Iterator[str]:
    """Operators whose tensor shapes never come twice."""
    return listed(size, lambda n: event("aten::mm", cat="cpu_op", ts=n, args=f'"Input Dims": [[{n}, 2], []]'))


@bomb
def deep_args(size: int) -> Iterator[str]:
    """Arguments nested as deeply as is read, each another."""
    return listed(size, lambda n: event(ts=n, args=f'"deep": {"[" * 250}{n}{"]" * 250}'))


@bomb
def categories(size: int) -> Iterator[str]:
    """Events, each of a category of its own."""
    return listed(size, lambda n: event(cat=f"category {n}", ts=n))


@bomb
def long_categories(size: int) -> Iterator[str]:
    """Events with categories of 64 KiB."""
    return listed(size, lambda n: event(cat=f"{n}{'c' * (64 << 10)}", ts=n))


@bomb
def counters(size: int) -> Iterator[str]:
    """Counters with series that never come twice."""
    return listed(
        size, lambda n: f'{{"ph":"C","name":"counter {n}","pid":1,"tid":1,"ts":{n},"args":{{"s{n}":{n}}}}}'
    )


@bomb
def steps(size: int) -> Iterator[str]:
    """Step marks, millions of them, each with a number of its own."""

    def make(n: int) -> str:
        mark = event(f"ProfilerStep#{n}", cat="user_annotation", tid=1, ts=10 * n)
        return mark.replace('"dur": 1', '"dur": 9') + "," + event(f"k{n % 50}", ts=10 * n + 2)

    return listed(size, make)


@bomb
def long_events(size: int) -> Iterator[str]:
    """Events of 32 MiB with millions of members, each in a layout of its own."""

    def make(n: int) -> str:
        return '{"ph":"X","ts":1' + "".join(f',"k{n}_{k}":1' for k in range(32 * MIB // 14)) + "}"

    return listed(size, make)


@bomb
def long_layouts(size: int) -> Iterator[str]:
    """Events of 2 MiB, each in a layout of its own: a key of that length."""
    return listed(size, lambda n: f'{{"ph":"X","ts":1,"dur":1,"name":"k","{"k" * (2 * MIB)}{n}":1}}')


@bomb
def damages(size: int) -> Iterator[str]:
    """Damage of every kind, event after event."""
    return listed(
        size, lambda n: '{"ph": "X", "name": "a' + "\\q\x01" + f'{n}", "ts": inf, "dur": -{n}' + "]}"
    )


# ------------------------------------------------ writing and taking them


def write(name: str, path: Path, size: int = FULL) -> Path:
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        for piece in BOMBS[name](size):
            file.write(piece)
    return path


@dataclass(frozen=True)
class Taken:
    """What a command took of the machine, and how it ended."""

    code: int
    peak_bytes: int
    wall_s: float
    said: str


_WATCH = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[2:], stderr=subprocess.STDOUT)
_, status, used = os.wait4(process.pid, 0)
open(sys.argv[1], "w").write(f"{os.waitstatus_to_exitcode(status)} {used.ru_maxrss}")
"""
"""The peak of a process is at least that of the one that started it, so a small one starts it."""


def take(command: list[str], cache: Path) -> Taken:
    """Runs stepscope to its end; the peak is that of this process alone."""
    began = time.monotonic()
    peak = cache.parent / f"{cache.name}.peak"
    done = subprocess.run(
        [sys.executable, "-S", "-c", _WATCH, str(peak), sys.executable, "-m", "stepscope", *command],
        env={**os.environ, "STEPSCOPE_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        check=True,
    )
    code, kib = map(int, peak.read_text().split())
    unit = 1 if sys.platform == "darwin" else 1024
    return Taken(code, kib * unit, time.monotonic() - began, done.stdout.decode("utf-8", "replace"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[*BOMBS, []])
    parser.add_argument("--size", type=int, default=FULL // MIB, help="MiB of text")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.names or BOMBS:
        path = asked.folder / f"{name}.json.gz"
        if not path.exists():
            write(name, path, asked.size * MIB)
        row = [f"{name:16}", f"{path.stat().st_size / 1e6:7.1f} MB"]
        for verb in ("ingest", "report"):
            taken = take([verb, str(path)], asked.folder / "cache")
            (asked.folder / f"{name}.{verb}.txt").write_text(taken.said)
            row.append(f"{verb} {taken.code:4} {taken.peak_bytes / MIB:7.0f} MiB {taken.wall_s:6.1f} s")
        sys.stdout.write("  ".join(row) + "\n")
        sys.stdout.flush()
        subprocess.run(["rm", "-rf", str(asked.folder / "cache")], check=True)


if __name__ == "__main__":
    main()
