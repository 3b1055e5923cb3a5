"""Draws small profiles in code, for tests.

    trace = (
        Drawing()
        .op("aten::mm", 0, 10)
        .launch("cudaLaunchKernel", 2, 1, corr=7)
        .kernel("gemm", 5, 3, corr=7)
    )
    trace.json()                                 # the text, laid out as torch prints it
    trace.write(tmp_path / "mm.json.gz")         # plain, .gz or .zst by the name

Times are microseconds, as in the file: an int, a Decimal, a float (its shortest decimal form is meant), or a
:class:`Literal` to set the very text of the number ("1e3", "inf").
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from typing import Literal as OneOf

Event = dict[str, Any]
Time = Any

DEVICE = {
    "id": 0, "name": "Drawn device", "totalGlobalMem": 1 << 36, "computeMajor": 9, "computeMinor": 0,
    "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, "warpSize": 32,
    "sharedMemPerBlock": 49152, "numSms": 132, "regsPerMultiprocessor": 65536,
    "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472,
}  # fmt: skip


@dataclass(frozen=True)
class Literal:
    """A piece of JSON (or of what some writers take for JSON) written as it stands."""

    text: str


@dataclass(frozen=True)
class Layout:
    """How a profile is laid out in its file."""

    style: OneOf["kineto", "dumps", "compact", "indented"] = "kineto"
    root: OneOf["object", "list"] = "object"
    metadata: OneOf["before", "after"] = "before"
    base: OneOf["before", "after"] = "before"


KINETO = Layout()
LAYOUTS = [
    KINETO,
    Layout(metadata="after", base="after"),
    Layout("dumps"),
    Layout("dumps", metadata="after", base="after"),
    Layout("compact"),
    Layout("compact", base="after"),
    Layout("indented"),
]
LIST_LAYOUTS = [Layout(style, root="list") for style in ("kineto", "dumps", "compact", "indented")]


class Drawing:
    """A profile being drawn: every method adds an event and returns the drawing."""

    def __init__(self, *, pid: Any = 100, thread: Any = 1, base_ns: int | None = None) -> None:
        self.pid = pid
        self.thread = thread
        self.base_ns = base_ns
        self.events: list[Event] = []
        self.metadata: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [DEVICE]}

    # ------------------------------------------------ host

    def op(self, name: str, start: Time, dur: Time, *, cat: str = "cpu_op", **more: Any) -> Drawing:
        return self._host(cat, name, start, dur, more)

    def launch(
        self, name: str, start: Time, dur: Time, *, corr: Any = None, cat: str = "cuda_runtime", **more: Any
    ) -> Drawing:
        return self._host(cat, name, start, dur, more, correlation=corr)

    def annotation(
        self, name: str, start: Time, dur: Time, *, cat: str = "user_annotation", **more: Any
    ) -> Drawing:
        return self._host(cat, name, start, dur, more)

    def mark(self, step: int, start: Time, dur: Time, **more: Any) -> Drawing:
        return self.annotation(f"ProfilerStep#{step}", start, dur, **more)

    def frame(self, name: str, start: Time, dur: Time, **more: Any) -> Drawing:
        return self._host("python_function", name, start, dur, more)

    # ------------------------------------------------ device

    def kernel(
        self, name: str, start: Time, dur: Time, *, corr: Any = None, cat: str = "kernel", **more: Any
    ) -> Drawing:
        return self._device(cat, name, start, dur, more, correlation=corr)

    def memcpy(
        self, name: str, start: Time, dur: Time, *, corr: Any = None, cat: str = "gpu_memcpy", **more: Any
    ) -> Drawing:
        return self._device(cat, name, start, dur, more, correlation=corr)

    def memset(
        self, name: str, start: Time, dur: Time, *, corr: Any = None, cat: str = "gpu_memset", **more: Any
    ) -> Drawing:
        return self._device(cat, name, start, dur, more, correlation=corr)

    # ------------------------------------------------ the rest

    def memory(self, start: Time, n_bytes: int, *, thread: Any = None) -> Drawing:
        """One `[memory]` instant; a negative size frees."""
        event: Event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]"}
        args = {"Total Reserved": 1 << 20, "Total Allocated": 1 << 19, "Bytes": n_bytes, "Device Id": 0}
        event |= {"pid": self.pid, "tid": self.thread if thread is None else thread, "ts": start}
        return self.add({**event, "args": {**args, "Device Type": 1, "Addr": 4096}})

    def flow(self, phase: str, corr: Any, start: Time, *, pid: Any = None, tid: Any = None) -> Drawing:
        """One end of an `ac2g` arrow."""
        event = {"ph": phase, "id": corr, "pid": self.pid if pid is None else pid}
        event |= {"tid": self.thread if tid is None else tid, "ts": start, "cat": "ac2g", "name": "ac2g"}
        return self.add(event | ({"bp": "e"} if phase == "f" else {}))

    def named_thread(self, name: str, *, thread: Any = None) -> Drawing:
        event = {"name": "thread_name", "ph": "M", "ts": 0, "pid": self.pid}
        return self.add(event | {"tid": self.thread if thread is None else thread, "args": {"name": name}})

    def add(self, event: Event) -> Drawing:
        """An event as it shall be written."""
        self.events.append(event)
        return self

    def meta(self, **entries: Any) -> Drawing:
        """Entries of the top level."""
        self.metadata |= entries
        return self

    def shuffled(self, seed: int) -> Drawing:
        random.Random(seed).shuffle(self.events)
        return self

    def _host(
        self, cat: str, name: str, start: Time, dur: Time, more: dict[str, Any], **args: Any
    ) -> Drawing:
        pid, thread = more.pop("pid", self.pid), more.pop("thread", self.thread)
        return self._complete(cat, name, start, dur, (pid, thread), args | more.pop("args", {}) | more)

    def _device(
        self, cat: str, name: str, start: Time, dur: Time, more: dict[str, Any], **args: Any
    ) -> Drawing:
        """Process id = device, thread id = stream; `device=None` writes none and `pid` stands alone."""
        device, stream = more.pop("device", 0), more.pop("stream", 7)
        place = more.pop("pid", device), more.pop("thread", stream)
        args = {"device": device, "stream": stream, **args}
        return self._complete(cat, name, start, dur, place, args | more.pop("args", {}) | more)

    def _complete(
        self, cat: str, name: str, start: Time, dur: Time, place: tuple[Any, Any], args: dict[str, Any]
    ) -> Drawing:
        event: Event = {"ph": "X", "cat": cat, "name": name, "pid": place[0], "tid": place[1]}
        event |= {"ts": start, "dur": dur}
        kept = {key: value for key, value in args.items() if value is not None}
        return self.add(event | ({"args": kept} if kept else {}))

    # ------------------------------------------------ out

    def json(self, layout: Layout = KINETO) -> str:
        """The text of the profile."""
        if layout.style == "kineto":
            written = "[\n" + ",\n".join(kineto_event(event) for event in self.events) + "\n  ]"
        else:
            written = dump(self.events, layout.style)
        if layout.root == "list":
            return written
        before: dict[str, Any] = {}
        after: dict[str, Any] = {"traceName": "drawn.json"}
        (before if layout.metadata == "before" else after).update(self.metadata)
        if self.base_ns is not None:
            (before if layout.base == "before" else after)["baseTimeNanoseconds"] = self.base_ns
        entries = {**before, "traceEvents": Literal(written), **after}
        return kineto_root(entries) if layout.style == "kineto" else dump(entries, layout.style)

    def write(self, path: Path, layout: Layout = KINETO) -> Path:
        """The profile in a file: plain, or packed as the name says (.gz, .zst)."""
        raw = self.json(layout).encode()
        if path.suffix == ".gz":
            raw = gzip.compress(raw, mtime=0)
        elif path.suffix == ".zst":
            raw = zstd_compress(raw)
        path.write_bytes(raw)
        return path


# ---------------------------------------------------------------- text


_encoded = json.JSONEncoder(ensure_ascii=False).encode
"""As `json.dumps`, which makes an encoder for every value: some tests draw thousands of events."""


def scalar(value: Any) -> str:
    if isinstance(value, Literal):
        return value.text
    if isinstance(value, Decimal):
        return format(value, "f")
    return _encoded(value)


def dump(value: Any, style: str = "dumps", depth: int = 0) -> str:
    """JSON of a value, as `json.dumps` writes it by default, without blanks, or indented by two."""
    if not value or not isinstance(value, dict | list | tuple):
        return scalar(value)
    comma, colon, inner, outer = {
        "dumps": (", ", ": ", "", ""),
        "compact": (",", ":", "", ""),
        "indented": (",\n" + "  " * (depth + 1), ": ", "\n" + "  " * (depth + 1), "\n" + "  " * depth),
    }[style]
    if isinstance(value, dict):
        pairs = [scalar(key) + colon + dump(item, style, depth + 1) for key, item in value.items()]
        return "{" + inner + comma.join(pairs) + outer + "}"
    return "[" + inner + comma.join([dump(item, style, depth + 1) for item in value]) + outer + "]"


def kineto_time(value: Any) -> str:
    """Kineto prints three decimals; what has more is written in full."""
    if type(value) is int:
        return f"{value}.000"
    if isinstance(value, Literal | str):
        return scalar(value)
    number = Decimal(str(value))
    return format(number.quantize(Decimal("0.001")) if number == round(number, 3) else number, "f")


def kineto_event(event: Event) -> str:
    """One event over several lines, keys in the order of Kineto's printer."""
    pairs = {
        key: kineto_time(v) if key in ("ts", "dur") else dump(v) for key, v in event.items() if key != "args"
    }
    args = event.get("args")
    lines = [
        ", ".join(f'"{key}": {pairs.pop(key)}' for key in line if key in pairs) for line in KEYS[of(event)]
    ]
    if pairs:
        lines.append(", ".join(f'"{key}": {value}' for key, value in pairs.items()))
    if args is not None:
        inside = ", ".join(f"{scalar(key)}: {dump(value)}" for key, value in args.items())
        lines.append('"args": {\n      ' + inside + "\n    }")
    return "  {\n    " + ",\n    ".join(line for line in lines if line) + "\n  }"


KEYS = {
    "X": [["ph", "cat", "name", "pid", "tid"], ["ts", "dur"]],
    "i": [["ph", "cat", "s", "name"], ["pid", "tid"], ["ts"]],
    "flow": [["ph", "id", "pid", "tid", "ts"], ["cat", "name", "bp"]],
    "M": [["name", "ph", "ts", "pid", "tid"]],
}


def of(event: Event) -> str:
    phase = event.get("ph", "X")
    return "flow" if phase in ("s", "f") else phase if phase in KEYS else "X"


def kineto_root(entries: dict[str, Any]) -> str:
    return "\n  {\n" + ",\n".join(f"  {scalar(key)}: {dump(value)}" for key, value in entries.items()) + "\n}"


def zstd_compress(raw: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return bytes(zstd.compress(raw))
