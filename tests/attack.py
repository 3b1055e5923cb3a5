"""Attacks stepscope for a bounded time, each kind for an equal part of it, and prints what held.

    python -m tests.attack [--seconds 300] [--seed 7] [NAME …]

An attack is a function of dice and a folder of its own. It tries once and gives what is wrong, or nothing. A
failure is printed with the seed that makes it again.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from tests.bombs import BOMBS, take, write
from tests.cli.test_interrupts import COMMANDS, run
from tests.commands import DATA, SLOW_ITEM
from tests.hostile import LINES, MARK, MARKUP, SIGNS, check_text, hostile_trace
from tests.store.test_damage import Whole, changed, made_whole
from tests.store.test_read_only import AROUND, READS, WRITES, digests

import stepscope
from stepscope.errors import StepscopeError

__all__ = ["ATTACKS", "Attack"]

ROOT = Path(__file__).parent.parent
MIB = 1 << 20
RAW = argparse.RawDescriptionHelpFormatter
Attack = Callable[[random.Random, Path], str]

ATTACKS: dict[str, Attack] = {}
CLANGS = ("clang++", *(f"clang++-{version}" for version in range(14, 21)))


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


@dataclass(frozen=True)
class Ended:
    code: int
    out: bytes
    err: bytes


def ended(command: Sequence[str], place: Path, prepare: Callable[[], None] | None = None) -> Ended:
    """Runs stepscope with a cache of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", *command],
        env={**os.environ, "STEPSCOPE_CACHE": str(place / "cache"), "TMPDIR": str(place)},
        capture_output=True,
        timeout=300,
        preexec_fn=prepare,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def on(command: Sequence[str], file: Path) -> list[str]:
    """A command about a file, which comes after the name of a table where one is shown."""
    before = 2 if command[0] == "show" else 1
    return [*command[:before], str(file), *command[before:]]


def wrong(found: Ended, *, codes: Sequence[int] = (0, 1)) -> str:
    """What no command may ever do: die, show a traceback, or say nothing."""
    if found.code not in codes:
        return f"exit code {found.code}: {found.err[-500:]!r}"
    if b"Traceback" in found.err:
        return f"a traceback: {found.err[-800:].decode('utf-8', 'replace')}"
    if not (found.err if found.code in (1, 2) else found.out):
        return f"exit code {found.code} and not a word"
    return ""


SCRAPS = (
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\\u", b"\\ud800", b"\xff", b"\x00", b"\x1b]0;"),
    *(b"null", b"NaN", b"-Infinity", b"1e999", b"9223372036854775807", b"-9223372036854775808"),
    *(b"99999999999999999999", b'"ts": 9223372036854775', b'"dur": -1', b'"traceEvents": [', b"]}"),
    *(b'"name": ""', b'"args": {}', b"[[[["),
)


def mutated(raw: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.randrange(1, 8)):
        at = dice.randrange(len(raw) or 1)
        length = dice.choice((1, 4, 50, 5000))
        kind = dice.randrange(6)
        if kind == 0:
            raw = raw[:at] + bytes([dice.randrange(256)]) + raw[at + 1 :]
        elif kind == 1:
            raw = raw[:at] + raw[at + length :]
        elif kind == 2:
            raw = raw[:at] + raw[at : at + length] * 2 + raw[at + length :]
        elif kind == 3:
            raw = raw[:at] + dice.choice(SCRAPS) + raw[at + dice.randrange(3) :]
        elif kind == 4 and dice.random() < 0.3:
            raw = raw[:at]
        else:
            digits = raw.find(b"1", at)
            raw = raw[:digits] + dice.choice(SCRAPS) + raw[digits + 1 :] if digits >= 0 else raw
    return raw


@attack
def mutated_traces(dice: random.Random, place: Path) -> str:
    """A real trace, changed as text or in its compressed form, through a command."""
    raw = dice.choice(sorted(DATA.glob("*.json.gz"))).read_bytes()
    text = gzip.decompress(raw)
    packed = dice.randrange(3)
    given = mutated(raw, dice) if packed == 0 else mutated(text, dice)
    file = place / "mutated.json"
    file.write_bytes(gzip.compress(given, 1) if packed == 1 else given)
    command = dice.choice(
        (("report",), ("info",), ("show", "ops"), ("check", "--budget", "finding any = none"))
    )
    return wrong(ended(on(command, file), place), codes=(0, 1, 3))


@cache
def answer_to(command: tuple[str, ...]) -> tuple[int, bytes, float]:
    with tempfile.TemporaryDirectory() as place:
        whole = run(command, Path(place) / "cache")
        return whole.code, whole.out, whole.took_s


@attack
def signals(dice: random.Random, place: Path) -> str:
    """Ctrl-C or SIGTERM at any moment: the whole answer, or none and the exit code of the signal."""
    command = dice.choice(COMMANDS)
    code, out, took_s = answer_to(command)
    number = dice.choice((signal.SIGINT, signal.SIGTERM))
    found = run(command, place / "cache", number, dice.uniform(0.25, 1.1) * took_s)
    if found.code == -number and not found.out:  # before the first line of stepscope
        return ""
    if found.left:
        return f"{number.name} left {found.left}"
    if found.code == code:
        return "" if found.out == out else f"{number.name}: another answer with exit code {code}"
    if found.code != 128 + number or found.err or not out.startswith(found.out):
        return f"{number.name}: exit code {found.code}, {found.err[-500:]!r}"
    return ""


@attack
def damaged_stores(dice: random.Random, place: Path) -> str:
    """One file of a store changed: the answers are the same as before, because it is made again."""
    whole = kept_store()
    profile, store, name = changed(whole, place, dice.randrange(1 << 30))
    command = ("report", "--format", "json", "--store")
    found = ended(on((*command, str(place)), profile), place)
    if said := wrong(found, codes=(0,)):
        return f"{name}: {said}"
    again = ended(on((*command, str(place / "fresh")), profile), place)
    return "" if found.out == again.out else f"{name} of {store.name}: another answer"


@cache
def kept_store() -> Whole:
    return made_whole(Path(tempfile.mkdtemp(prefix="stepscope-attack-")))


@attack
def sql(dice: random.Random, place: Path) -> str:
    """A statement that writes, in a query that reads: refused, and no file changes."""
    trace = stepscope.open(SLOW_ITEM, store=place / "stores")
    (place / "secret.txt").write_text("the secret")
    inner = dice.choice((*WRITES, *READS))
    for _ in range(dice.randrange(1, 4)):
        inner = dice.choice(AROUND).replace("{}", inner)
    inner = inner.replace(" ", dice.choice((" ", "  ", "\n", "/**/ ", "\t", " --x\n")))
    inner = dice.choice((inner, inner.upper(), inner.lower(), inner.swapcase()))
    text = inner.replace("{root}", str(place)).replace("{store}", str(trace.folder))
    before = digests(place)
    with suppress(StepscopeError):
        answer = trace.arrow(text)
        if "the secret" in str(answer.to_pylist()):
            return f"it read a file: {text}"
    trace.arrow("SELECT count(*) FROM ops")
    return "" if digests(place) == before else f"it wrote a file: {text}"


@attack
def injection(dice: random.Random, place: Path) -> str:
    """Hostile names of everything, in any command and format."""
    parts = [SIGNS, LINES, MARKUP, *SIGNS, "\n", "\r\n", "::error::PWNED", "\x1b[31m", "\u202e"]
    evil = MARK + "".join(dice.choices(parts, k=dice.randrange(1, 12)))
    file = hostile_trace(place / f"{MARK}\x1b[31m\u202e.json", evil=evil)
    formats = ("terminal", "markdown")
    commands: tuple[tuple[str, ...], ...] = (
        ("report", "--format", dice.choice(formats)),
        ("info",),
        ("show", dice.choice(("ops", "kernels", "categories", "trust", "lines"))),
        ("query", "SELECT name, args FROM events LIMIT 50"),
        ("query", f'SELECT nothing FROM "{evil.replace(chr(34), "")}"'),
        ("check", "--budget", "finding any = none"),
        ("ingest", "--also", evil.replace("\0", "")),
    )
    command = dice.choice(commands)
    found = ended(on(command, file), place)
    try:
        check_text((found.out + found.err).decode("utf-8", "surrogateescape"))
    except AssertionError as held:
        return f"{command}: {held}"
    return wrong(found, codes=(0, 1, 2, 3))


@attack
def bombs(dice: random.Random, place: Path) -> str:
    """A small file that unpacks to much: less than 1 GiB of memory."""
    name = dice.choice(sorted(BOMBS))
    file = write(name, place / "bomb.json.gz", dice.choice((16, 64)) * MIB)
    taken = take([dice.choice(("ingest", "report")), str(file)], place / "cache")
    if taken.peak_bytes > 1024 * MIB:
        return f"{name}: {taken.peak_bytes // MIB} MiB"
    return wrong(Ended(taken.code, taken.said.encode(), taken.said.encode()))


@attack
def memory_limits(dice: random.Random, place: Path) -> str:
    """Any limit on the address space: it works, or says in a line that there is not enough."""
    limit = dice.randrange(300, 4000) * 1_000_000
    command = dice.choice((("report",), ("info",), ("query", "SELECT count(*) FROM ops")))
    prepare = partial(resource.setrlimit, resource.RLIMIT_AS, (limit, limit))
    found = ended(on(command, SLOW_ITEM), place, prepare)
    said = wrong(found)
    return f"with {limit:,} bytes: {said}" if said else ""


FUZZERS = ("reader", "reader-guided") if any(map(shutil.which, CLANGS)) else ("reader",)


def fuzzed(program: str, dice: random.Random, seconds: float) -> str:
    """The reader alone with sanitizers, for as long as a kind of attack has."""
    made = subprocess.run(["make", "-s", f"build/fuzz/{program}", "build/fuzz/traces"], cwd=ROOT, check=False)
    if made.returncode:
        return f"build/fuzz/{program} cannot be made"
    folder = ROOT / "build" / "fuzz"
    traces = sorted(map(str, (folder / "traces").glob("*.json")))
    command = [f"./{program}", str(dice.randrange(1 << 30)), str(int(seconds)), "0", *traces]
    if program == "reader-guided":
        (folder / "corpus").mkdir(exist_ok=True)
        command = [f"./{program}", f"-max_total_time={int(seconds)}", "-max_len=4000", "-rss_limit_mb=1024"]
        command += ["-verbosity=0", "corpus", "excerpts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{program}: {done.stderr[-1500:]}"


def tried(name: str, seed: int, seconds: float, most: int | None = None) -> tuple[int, list[str], float]:
    """Tries one kind until its time is over, at least once: how often, what failed, how long it took."""
    began, done, failures = time.monotonic(), 0, []
    while not done or (time.monotonic() - began < seconds and done != most):
        place = Path(tempfile.mkdtemp(prefix="stepscope-attack-"))
        try:
            said = ATTACKS[name](random.Random(f"{seed} {name} {done}"), place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        done += 1
        if said:
            failures.append(f"{name} --seed {seed}, try {done}: {said}")
    return done, failures, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RAW)
    parser.add_argument("names", nargs="*", help="kinds of attacks; default: all")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    names = asked.names or [*ATTACKS, *FUZZERS]
    each = asked.seconds / len(names)
    print(f"{'attack':<18}{'tries':>8}{'failed':>8}{'time':>9}", flush=True)
    failures: list[str] = []
    for name in names:
        if name in ATTACKS:
            done, failed, took_s = tried(name, asked.seed, each)
        else:
            began = time.monotonic()
            failed = [one for one in [fuzzed(name, random.Random(asked.seed), each)] if one]
            done, took_s = 1, time.monotonic() - began
        print(f"{name:<18}{done:>8}{len(failed):>8}{took_s:>7.1f} s", flush=True)
        failures += failed
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
