"""Rows of compile logs: puts entries of torch's logs together to compilations, breaks, caches, kernels."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from stepscope.schema import SIDE
from stepscope.sources._compile_kernels import RegionKernels
from stepscope.sources._compile_messages import LONGEST, graph_break, graph_skip, guard_failures
from stepscope.sources._compile_phases import Phases

if TYPE_CHECKING:
    from stepscope.sources._torch_log import Entry
    from stepscope.store.writer import StoreWriter

__all__ = ["CompileRows"]

_ZONES_NS = 15 * 60 * 1_000_000_000
"""Clocks of the world differ by multiples of it."""
_FULL = 1 << 16
_CACHES = {"fx_graph_cache": "fx graph", "aotautograd_cache": "aot autograd"}
_RESULTS = ("hit", "miss", "bypass")
_TABLES = tuple(table.name for table in SIDE if table.name.startswith("logged_"))


class CompileRows:
    """Takes the entries of one file after the other, and writes rows when a file ends."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._file_rank: int | None = None
        self.said_ranks: set[int] = set()
        """Ranks that entries say, whatever the names of the files do."""
        self.counts: Counter[str] = Counter()
        """How many rows each table has."""
        self.entries = 0
        self.unreadable = 0
        self.torch_version: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
        self._texts: dict[tuple[int, int], str] = {}
        self._process_ranks: dict[int, int] = {}
        self._open: dict[tuple[int, str | None], dict[str, Any]] = {}
        self._turns: Counter[tuple[int, str | None]] = Counter()
        self._announced: dict[tuple[int | None, int, str | None], dict[str, Any]] = {}
        """By messages of TORCH_LOGS: what announced a compilation, and its row."""
        self._kernels: defaultdict[tuple[int, str | None], RegionKernels] = defaultdict(RegionKernels)
        self._artifacts: Counter[tuple[Any, ...]] = Counter()
        self._bytes: Counter[tuple[Any, ...]] = Counter()
        self._unnamed: defaultdict[tuple[int, str | None], list[dict[str, Any]]] = defaultdict(list)
        self._recompiled: set[tuple[int, str | None]] = set()
        self._because: dict[tuple[int, str | None], str] = {}
        """Of what is about to be compiled again, the guard that failed: it is said before it begins."""
        self._phases = Phases()
        self._offset_ns: int | None = None

    def begin_file(self, rank: int | None) -> None:
        """Another file begins, of this rank if its name says one."""
        self._file_rank = rank
        self._begin()

    def end_file(self) -> int:
        """Writes what is left; the number of phases that have no end."""
        for key, kernels in self._kernels.items():
            self._rows["logged_kernels"] += kernels.rows(self._whose(key[0], key[1]))
        for (rank, process, region, name), count in self._artifacts.items():
            whose = {"rank": rank, "process": process, "region": region}
            size = self._bytes[rank, process, region, name]
            self._rows["logged_artifacts"].append({**whose, "name": name, "entries": count, "bytes": size})
        for name in _TABLES:
            self._write(name)
        return self._phases.unfinished + self._phases.still_open

    # ------------------------------------------------------------ structured entries

    def add(self, entry: Entry) -> None:
        """Takes an entry of TORCH_TRACE."""
        self.entries += 1
        # Most entries are of these kinds, and their heads say nothing that is kept.
        if entry.text.startswith(b'{"chromium_event"'):
            self._chromium(entry)
        elif not entry.text.startswith(_DESCRIBED) or b"_modules[" in entry.text:
            self._parsed(entry)

    def _parsed(self, entry: Entry) -> None:
        """Takes an entry whose head matters."""
        try:
            told = json.loads(entry.text)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            self.unreadable += 1
            self.entries -= 1
            return
        if isinstance(rank := told.get("rank"), int) and 0 <= rank < 1 << 31:
            self.said_ranks.add(rank)
            self._process_ranks[entry.process] = rank
            entry.rank = rank if entry.rank is None else entry.rank
        entry.region = _region(told)
        running = self._open.get((entry.process, entry.region))
        if running is not None:
            running["attempts"] = max(running["attempts"], min(_whole(told.get("attempt")) or 0, 1 << 20) + 1)
        if isinstance(told.get("describe_source"), dict):
            self._layer(running, told["describe_source"])
        else:
            self._told(entry, told)

    def _told(self, entry: Entry, told: dict[str, Any]) -> None:
        if "str" in told:
            self._intern(entry, told["str"])
        elif "dynamo_start" in told:
            self._start(entry, told)
        elif isinstance(metrics := told.get("compilation_metrics"), dict):
            self._metrics(entry, metrics, "backward" if metrics.get("is_forward") is False else "frame")
        elif isinstance(metrics := told.get("bwd_compilation_metrics"), dict):
            self._metrics(entry, metrics, "backward")
        elif isinstance(metrics := _of_runtime(told), dict):
            self._metrics(entry, metrics, "runtime")
        elif isinstance(artifact := told.get("artifact"), dict):
            self._artifact(entry, str(artifact.get("name"))[:LONGEST], told)
        elif "chromium_event" in told:
            self._chromium(entry)
        else:
            name = next((key for key in told if key not in _CONTEXT), "")
            self._named(entry, name)

    def _intern(self, entry: Entry, pair: Any) -> None:
        if (
            isinstance(pair, list)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], int)
        ):
            self._texts[entry.process, pair[1]] = pair[0]

    def _chromium(self, entry: Entry) -> None:
        try:
            event = json.loads(entry.below)
            moment = round(float(event["ts"]) * 1000)
        except (ValueError, RecursionError, KeyError, TypeError, OverflowError):
            self.unreadable += 1
            return
        if self._offset_ns is None:
            self._take_clock(moment, entry)
        row = self._phases.add(entry.process, event, moment)
        if row:
            rank = self._process_ranks.get(entry.process, entry.rank)
            self._rows["logged_phases"].append(self._whose(entry.process, row.pop("region"), rank) | row)
            if len(self._rows["logged_phases"]) >= _FULL:
                self._write("logged_phases")

    def _take_clock(self, epoch_ns: int, entry: Entry) -> None:
        """From the first moment that is given since 1970: prefixes tell neither the year nor the zone."""
        self._offset_ns = round((epoch_ns - entry.clock_ns) / _ZONES_NS) * _ZONES_NS

    def _start(self, entry: Entry, told: dict[str, Any]) -> None:
        key = (entry.process, entry.region)
        if key in self._open and told.get("attempt"):
            return  # the same one, begun again
        stack = told["dynamo_start"].get("stack") if isinstance(told["dynamo_start"], dict) else None
        frames = [one for one in stack if isinstance(one, dict)] if isinstance(stack, list) else []
        callee = self._frame(entry, frames[-1]) if frames else (None, None, None)
        caller = next(filter(_is_user, (self._frame(entry, one) for one in reversed(frames[:-1]))), None)
        row = self._compilation(entry, "frame")
        row |= dict(zip(("file", "line", "function"), callee, strict=True))
        row["called_from"] = f"{caller[0]}({caller[1]}): {caller[2]}" if caller else None
        row["recompiled_because"] = self._because.pop(key, None)
        self._open[key] = row
        for waiting in self._unnamed.pop(key, ()):  # its guards failed before it began
            waiting |= {name: waiting[name] or row[name] for name in ("function", "file", "line")}

    def _compilation(self, entry: Entry, kind: str) -> dict[str, Any]:
        key = (entry.process, entry.region)
        row = self._whose(entry.process, entry.region, entry.rank)
        row |= {
            "kind": kind,
            "turn": self._turns[key] if kind == "frame" else 0,
            "attempts": 1,
            "clock_ns": entry.clock_ns,
        }
        self._turns[key] += kind == "frame"
        self._rows["logged_compilations"].append(row)
        return row

    def _frame(self, entry: Entry, frame: dict[str, Any]) -> tuple[str | None, int | None, str | None]:
        file = frame.get("filename")
        if isinstance(file, int):
            file = self._texts.get((entry.process, file))
        name, line = frame.get("name"), _whole(frame.get("line"))
        return (_text(file), line, _text(name))

    def _metrics(self, entry: Entry, metrics: dict[str, Any], kind: str) -> None:
        key = (entry.process, entry.region)
        row = self._open.pop(key, None) if kind == "frame" else None
        if row is None:
            row = self._compilation(entry, kind)
        for column, keys in _TIMES.items():
            times = [_time(metrics, name) for name in keys]
            row[column] = next((time for time in times if time is not None), None)
        began = _time(metrics, "start_time_us") or _time(metrics, "start_time")
        if began:
            row["epoch_ns"] = began
            if self._offset_ns is None:
                self._take_clock(began, entry)
        for column, name in (("function", "co_name"), ("file", "co_filename")):
            row[column] = _text(metrics.get(name)) or row.get(column)
        row["line"] = _whole(metrics.get("co_firstlineno")) or row.get("line")
        row["graph_ops"], row["guards"] = (
            _whole(metrics.get("graph_op_count")),
            _whole(metrics.get("guard_count")),
        )
        restarts = metrics.get("restart_reasons")
        row["restarts"] = (
            _text("; ".join(_first_line(one) for one in restarts)) if isinstance(restarts, list) else None
        )
        row["failed"] = _text(
            ": ".join(filter(None, (_text(metrics.get(f"fail_{of}")) for of in ("type", "reason"))))
        )
        told_before = self._because.pop(key, None) if kind == "frame" else None
        because = _text(metrics.get("recompile_reason")) or row.get("recompiled_because") or told_before
        row["recompiled_because"] = because
        if row["recompiled_because"] and key not in self._recompiled:
            self._recompiles(entry, [row["recompiled_because"]])
        if reason := _text(metrics.get("cudagraph_skip_reason")):
            skip = graph_skip(reason) or {"reason": reason, "place": None}
            self._put("logged_graph_skips", entry, skip)
        if kind != "runtime" and key in self._kernels:
            self._rows["logged_kernels"] += self._kernels.pop(key).rows(self._whose(*key, entry.rank))

    def _artifact(self, entry: Entry, name: str, told: dict[str, Any]) -> None:
        self._count(entry, name)
        if name == "dynamo_graph_break_reason":
            attempt = _whole(told.get("attempt"))
            self._put("logged_breaks", entry, {"attempt": attempt, **graph_break(_payload(entry))})
        elif name == "recompile_reasons":
            reasons = self._json(entry)
            self._recompiles(entry, reasons if isinstance(reasons, list) else [reasons])
        elif name == "torch_version":
            self.torch_version = _text(_payload(entry).strip().strip('"'))
        elif (cache := name.rpartition("_"))[0] in _CACHES:
            self._cache(entry, _CACHES[cache[0]], cache[2])
        elif "cudagraph" in name and (skip := graph_skip(_payload(entry))):
            self._put("logged_graph_skips", entry, skip)
        elif self._kernels_of(entry).wants(name):
            self._kernels_of(entry).add(name, _payload(entry), entry.clock_ns)

    def _named(self, entry: Entry, name: str) -> None:
        """An entry of a kind of its own: graphs and code."""
        self._count(entry, name)
        if self._kernels_of(entry).wants(name):
            self._kernels_of(entry).add(name, _payload(entry), entry.clock_ns)

    def _layer(self, running: dict[str, Any] | None, told: dict[str, Any]) -> None:
        """Notes which layers of lists of modules are in the graph, by the names of their parameters."""
        found = _LAYER.search(str(told.get("source")))
        if running is not None and found:
            lists = running.setdefault("lists", defaultdict(set))
            lists[found[1]].add(found[2])
            running["layers"] = max(map(len, lists.values()))

    def _kernels_of(self, entry: Entry) -> RegionKernels:
        return self._kernels[entry.process, entry.region]

    def _count(self, entry: Entry, name: str) -> None:
        key = (self._rank(entry.rank), entry.process, entry.region, name[:200])
        self._artifacts[key] += 1
        self._bytes[key] += len(entry.below) + entry.cut

    def _cache(self, entry: Entry, cache: str, result: str) -> None:
        told = self._json(entry)
        told = told if isinstance(told, dict) else {}
        if result not in _RESULTS:  # older versions say it inside
            result = str(told.get("cache_state"))
        if result in _RESULTS:
            reason = told.get("cache_bypass_reason") or told.get("cache_status_detailed")
            saved = _whole(told.get("time_saved_ns")) or (
                _whole(told.get("time_taken_ns")) if result == "hit" else None
            )
            found = {"cache": cache, "result": result, "key": _text(told.get("key")), "reason": _text(reason)}
            self._put("logged_caches", entry, {**found, "saved_ns": saved})

    def _json(self, entry: Entry) -> Any:
        try:
            return json.loads(_payload(entry))
        except (ValueError, RecursionError):
            return _payload(entry)[:LONGEST]

    # ------------------------------------------------------------ messages of TORCH_LOGS

    def add_message(self, entry: Entry, text: str) -> None:
        """Takes a whole message of TORCH_LOGS."""
        self.entries += 1
        if "Graph break in user code" in text or (entry.channel == "graph_breaks" and "raph break" in text):
            self._put("logged_breaks", entry, {"attempt": None, **graph_break(text)})
        elif _is_recompiling(entry.channel, text):
            self._recompiles(entry, [text])
        elif skip := graph_skip(text):
            self._put("logged_graph_skips", entry, skip)
        elif "torchdynamo start compiling" in text or "torchdynamo start tracing" in text:
            self._message_start(entry, text)

    def _message_start(self, entry: Entry, text: str) -> None:
        """A compilation is announced when it begins, and again at each attempt to trace."""
        words = text.partition("start ")[2].split()  # "tracing f /path/file.py:12"
        key = (entry.rank, entry.process, entry.region)
        began = self._announced.get(key)
        if began and words[:1] == ["tracing"] and (entry.attempt or began["by"] == "compiling"):
            row = began["row"]
            row["attempts"] = max(row["attempts"], entry.attempt + 1)
            return
        row = self._compilation(entry, "frame")
        row["recompiled_because"] = self._because.pop((entry.process, entry.region), None)
        self._announced[key] = {"by": words[0] if words else "", "row": row}
        if len(words) >= 3 and words[2].rpartition(":")[2].isdigit():
            row["function"], (row["file"], _, line) = words[1], words[2].rpartition(":")
            row["line"] = int(line[:9])

    def _recompiles(self, entry: Entry, reasons: list[Any]) -> None:
        key = (entry.process, entry.region)
        self._recompiled.add(key)
        running = self._open.get(key, {})
        failures = guard_failures([str(reason) for reason in reasons])
        if failures and not failures[0]["limit"]:
            first = failures[0]
            because = f"{first['version']}: {first['guard']}" if first["version"] else first["guard"]
            if running:
                running["recompiled_because"] = running.get("recompiled_because") or because
            else:
                self._because[key] = because
        for one in failures:
            known = {name: one[name] or running.get(name) for name in ("function", "file", "line")}
            row = self._put("logged_recompiles", entry, {**one, **known})
            if not known["function"]:
                self._unnamed[key].append(row)

    # ------------------------------------------------------------ rows

    def _rank(self, said: int | None = None) -> int | None:
        return said if self._file_rank is None else self._file_rank

    def _whose(self, process: int, region: str | None, rank: int | None = None) -> dict[str, Any]:
        return {"rank": self._rank(rank), "process": process, "region": region}

    def _put(self, table: str, entry: Entry, row: dict[str, Any]) -> dict[str, Any]:
        row = {**self._whose(entry.process, entry.region, entry.rank), **row, "clock_ns": entry.clock_ns}
        self._rows[table].append(row)
        return row

    def _write(self, name: str) -> None:
        import pyarrow as pa

        rows = self._rows[name]
        self._rows[name] = []
        if not rows:
            return
        table = next(table for table in SIDE if table.name == name)
        types = {"int64": pa.int64(), "string": pa.string()}
        columns = {}
        for column in table.columns:
            values: list[Any]
            if column.name == "start_ns":
                columns["epoch_ns"] = pa.array([self._moment(row) for row in rows], pa.int64())
                continue
            values = [row.get(column.name) for row in rows]
            columns[column.name] = pa.array(values, types[column.type])
        self._writer.add_rows(name, pa.table(columns))
        self.counts[name] += len(rows)

    def _moment(self, row: dict[str, Any]) -> int | None:
        if "epoch_ns" in row:
            return row["epoch_ns"]  # type: ignore[no-any-return]
        if self._offset_ns is None:
            return None
        return row["clock_ns"] + self._offset_ns  # type: ignore[no-any-return]


_LAYER = re.compile(r"^(.{0,1000}?_modules\['\w+'\](?:\._modules)?)\[?\D{0,3}(\d{1,5})'?\]")
_DESCRIBED = (b'{"describe_storage"', b'{"describe_tensor"', b'{"describe_source"')
"""Entries on inputs of graphs; of these, the places of parameters tell the layers."""
_CONTEXT = ("rank", "compiled_autograd_id", "frame_id", "frame_compile_id", "attempt", "has_payload", "stack")
_TIMES = {
    "dur_ns": (
        "duration_us",
        "entire_frame_compile_time_s",
        "dynamo_cumulative_compile_time_us",
        "backward_cumulative_compile_time_us",
    ),
    "backend_ns": ("backend_compile_time_s", "aot_autograd_cumulative_compile_time_us"),
    "inductor_ns": ("inductor_compile_time_s", "inductor_cumulative_compile_time_us"),
    "code_ns": ("code_gen_time_s", "inductor_code_gen_cumulative_compile_time_us"),
    "restarts_ns": ("dynamo_time_before_restart_s",),
}
"""Versions of torch give the same time by different names: the first that is there counts."""


def _of_runtime(told: dict[str, Any]) -> Any:
    """The metrics of what was compiled while the program ran, of forward or backward."""
    return told.get("compilation_metrics_runtime") or told.get("bwd_compilation_metrics_runtime")


def _region(told: dict[str, Any]) -> str | None:
    frame, version = _whole(told.get("frame_id")), _whole(told.get("frame_compile_id"))
    autograd = _whole(told.get("compiled_autograd_id"))
    if frame is None:
        return None if autograd is None else f"!{autograd}"
    around = "" if autograd is None else f"!{autograd}/"
    return f"{around}{frame}/{version or 0}"


def _is_recompiling(channel: str, text: str) -> bool:
    gave_up = "hit config." in text and "_limit" in text
    return gave_up or (channel.startswith("recompiles") and "ecompil" in text)


def _is_user(frame: tuple[str | None, int | None, str | None]) -> bool:
    return bool(frame[0]) and "/torch/" not in (frame[0] or "") and frame[1] is not None


def _payload(entry: Entry) -> str:
    return entry.below[1:].replace(b"\n\t", b"\n").rstrip(b"\n").decode("utf-8", "replace")


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value[:LONGEST].encode("utf-8", "replace").decode()


def _first_line(value: Any) -> str:
    return next(iter(str(value).splitlines()), "")


def _whole(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return value if fits else None


def _time(metrics: dict[str, Any], name: str) -> int | None:
    """A time of these names as ns: in µs if the name says so, else in seconds."""
    value = metrics.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 4e18:
        return None
    ns = round(value * 1000) if name.endswith("_us") else round(value * 1_000_000_000)
    return ns if ns < 1 << 62 else None
