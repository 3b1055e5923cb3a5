"""Samples of the CPU: perf, py-spy, collapsed stacks and speedscope, against counts of their own."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drawing import Drawing

import stepscope
from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.findings.build import build_report
from stepscope.sources._perf_lines import perf_lines
from stepscope.sources._sampled_frames import part_of
from stepscope.store.trace import Trace

Find = Callable[[str], Path]

PERF = """\
# ========
# captured on: Mon Nov 16 12:00:00 2026
# ========
#
python 100/101 [002] 12.000001: 1000 cpu-clock:
\t 7f01 take_gil+0x1f (/usr/lib/libpython3.11.so)
\t 7f02 _PyEval_EvalFrameDefault (/usr/lib/libpython3.11.so)

pt_main thread 100/100 12.000002: 3000 cpu-clock:
\t 8001 at::_ops::add::call(at::Tensor const&) (/site/torch/lib/libtorch_cpu.so)
\t    model.py:12
\t 8001 _PyEval_EvalFrameDefault (/usr/lib/libpython3.11.so)
\t 8001 _PyEval_EvalFrameDefault (/usr/lib/libpython3.11.so)

swapper 0 [000] 12.000003: cycles:u:
\tffffffff81 [unknown] ([kernel.kallsyms])"""
"""Three samples: comm with a blank, with and without pid, processor and period; the last one is not ended."""


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def written(folder: Path, text: str, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def plain(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace")


def slow_stacks(text: str) -> Counter[tuple[str, ...]]:
    """The stacks of a text of perf script, by a plain loop."""
    found: Counter[tuple[str, ...]] = Counter()
    stack: list[str] | None = None
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if stack is not None:
                found[tuple(stack)] += 1
            stack = None
        elif not line[0].isspace():
            stack = []
        elif stack is not None and (frame := re.match(r"\s+[0-9a-f]+ (.*?)(?: \(([^()]*|.*)\))?$", line)):
            stack.append(re.sub(r"\+0x[0-9a-f]+$", "", frame[1]))
    return found


def our_stacks(trace: Trace) -> Counter[tuple[str, ...]]:
    frames = dict(rows(trace, "SELECT frame, name FROM sampled_frames"))
    stacks: dict[int, list[str]] = {}
    for stack, frame in rows(trace, "SELECT stack, frame FROM sampled_stacks ORDER BY stack, depth"):
        stacks.setdefault(stack, []).append(frames[frame])
    found: Counter[tuple[str, ...]] = Counter()
    for stack, count in rows(trace, "SELECT stack, samples FROM cpu_samples"):
        found[tuple(stacks.get(stack, ()))] += count
    return found


class TestPerf:
    def test_heads_of_all_kinds(self, tmp_path: Path) -> None:
        trace = stepscope.open(written(tmp_path, PERF))
        sql = (
            "SELECT process, thread, command, cpu, clock_ns, event, weight FROM cpu_samples ORDER BY clock_ns"
        )
        assert rows(trace, sql) == [
            (100, 101, "python", 2, 12_000_001_000, "cpu-clock", 1000.0),
            (100, 100, "pt_main thread", None, 12_000_002_000, "cpu-clock", 3000.0),
            (None, 0, "swapper", 0, 12_000_003_000, "cycles:u", 1.0),
        ]
        assert our_stacks(trace) == slow_stacks(PERF)
        assert not trace.meta.damage

    def test_without_call_chains_each_line_is_a_sample(self, tmp_path: Path) -> None:
        add = "     7f1 work+0x1a (/site/torch/lib/libtorch_cpu.so)\n"
        text = "".join(f"          python    4242 [003]  10.00000{n}:  101 cycles:P: {add}" for n in range(3))
        text += (
            "              dd    4250 [001]  10.000007:  101 cycles:P:      7f2 take_gil (/bin/python3.12)\n"
        )
        text += "  thread 2 of me    4251 [001]  10.000008:  101 cycles:P:  ffffffffa7 [unknown] ([unknown])"
        trace = stepscope.open(written(tmp_path, text))
        sql = "SELECT thread, command, clock_ns, weight FROM cpu_samples ORDER BY clock_ns"
        assert rows(trace, sql) == [
            *((4242, "python", 10_000_000_000 + 1000 * n, 101.0) for n in range(3)),
            (4250, "dd", 10_000_007_000, 101.0),
            (4251, "thread 2 of me", 10_000_008_000, 101.0),
        ]
        assert our_stacks(trace) == {("work",): 3, ("take_gil",): 1, ("[unknown]",): 1}
        assert not trace.meta.damage

    @pytest.mark.parametrize("comments", ["", "# a long header\n" * 1000])
    def test_without_times_the_thread_is_not_the_period(self, comments: str, tmp_path: Path) -> None:
        stack = "\t 7f1 work+0x1 (/lib/a.so)\n\n"
        heads = (
            "python 4242 [003] 1010101 cycles:P:",
            "pool 3 42/4250  7 cycles:P:",
            "x 4251 [001] cycles:P:",
        )
        text = comments + "".join(f"{head} \n{stack}" for head in heads)
        trace = stepscope.open(written(tmp_path, text.replace("# a", "# captured on # perf version a", 1)))
        sql = "SELECT process, thread, command, cpu, clock_ns, event, weight FROM cpu_samples ORDER BY thread"
        assert rows(trace, sql) == [
            (None, 4242, "python", 3, None, "cycles:P", 1010101.0),
            (42, 4250, "pool 3", None, None, "cycles:P", 7.0),
            (None, 4251, "x", 1, None, "cycles:P", 1.0),
        ]
        assert our_stacks(trace) == {("work",): 3}

    @pytest.mark.parametrize("place", ["7 cycl", "7 cycles:", "7", "7 cycles:P: "])
    def test_a_head_that_is_cut_is_no_event(self, place: str, tmp_path: Path) -> None:
        text = (
            f"python 1/2 [000] 12.5: 7 cycles:P: \n\t 7f1 work (/lib/a.so)\n\npython 1/2 [000] 12.6:  {place}"
        )
        trace = stepscope.open(written(tmp_path, text))
        assert rows(trace, "SELECT event, samples FROM cpu_samples") == [("cycles:P", 1)]
        assert [(one.reason, one.count) for one in trace.meta.damage] == [
            ("a line that is no part of a sample, left out", 1)
        ]

    def test_modules_with_parentheses(self, tmp_path: Path) -> None:
        text = "python 1/2 [000] 12.5: 7 cycles:P: \n\t 7f1 [unknown] (/memfd:nvidia (deleted))\n"
        text += "\t 7f2 f(int)+0x10 (/opt/python3.12 (deleted))\n\t 7f3 g(int) (/opt/a (1)/b.so)\n"
        trace = stepscope.open(written(tmp_path, text))
        assert rows(trace, "SELECT name, module, part FROM sampled_frames ORDER BY frame") == [
            ("[unknown]", "/memfd:nvidia (deleted)", "program"),
            ("f(int)", "/opt/python3.12 (deleted)", "interpreter"),
            ("g(int)", "/opt/a (1)/b.so", "program"),
        ]

    def test_functions_count_recursion_once(self, tmp_path: Path) -> None:
        table = stepscope.open(written(tmp_path, PERF)).table("cpu_functions")
        told = {row.name: (row.self_samples, row.total_samples, row.total_share) for row in table}
        assert told["_PyEval_EvalFrameDefault"] == (0, 2, 1.0)
        assert told["take_gil"] == (1, 1, 0.25)
        assert told["at::_ops::add::call(at::Tensor const&)"] == (1, 1, 0.75)

    def test_parts(self, tmp_path: Path) -> None:
        profile = Drawing().mark(1, 0, 100).op("aten::mm", 10, 20, thread=101).write(tmp_path / "trace.json")
        table = stepscope.open(profile, also=[written(tmp_path, PERF)]).table("cpu_parts")
        assert {(row.thread, row.part): (row.samples, row.ops) for row in table} == {
            (101, "gil"): (1, 1),
            (100, "dispatcher"): (1, 0),
            (0, "kernel"): (1, 0),
        }
        assert "1 of 3 sampled threads are in the trace" in table.notes[1]

    KNOWN = {  # noqa: RUF012
        "perf/iperf_pidtid.perf.txt.gz": 201,
        "perf/cycles_instructions.perf.txt.gz": 444,
        "perf/with_header.perf.txt": 136,
        "perf/forks.perf.txt.gz": 561,
        "perf/one_sample.perf.txt": 1,
    }

    @pytest.mark.parametrize("name", KNOWN)
    def test_samples_of_others(self, name: str, sample: Find) -> None:
        trace = stepscope.open(sample(name))
        found = our_stacks(trace)
        assert found.total() == self.KNOWN[name]
        assert found == slow_stacks(plain(sample(name)))
        assert not trace.meta.damage

    def test_events_are_told_apart(self, sample: Find) -> None:
        trace = stepscope.open(sample("perf/cycles_instructions.perf.txt.gz"))
        sql = (
            "SELECT regexp_extract(event, '[a-z]+', 0) AS e, count(*) FROM cpu_samples GROUP BY e ORDER BY e"
        )
        assert rows(trace, sql) == [("cycles", 111), ("instructions", 333)]

    def test_stat_as_text(self, sample: Find) -> None:
        trace = stepscope.open(sample("perf/perf_stat.txt"))
        table = {row.event: row for row in trace.table("cpu_totals")}
        assert table["cycles"].value == 93_026_790_157
        assert table["instructions"].per_cycle == pytest.approx(1.51, abs=0.005)
        assert (table["task-clock"].value, table["task-clock"].unit) == (18_003.70, "msec")

    def test_stat_with_separators(self, tmp_path: Path) -> None:
        text = "1800.5,msec,task-clock,1800500000,100.00,1.000,CPUs utilized\n"
        text += "200,,cycles,900,50.00,,\n<not counted>,,cache-misses,0,0.00,,\n"
        trace = stepscope.open(written(tmp_path, text))
        found = rows(trace, "SELECT event, unit, value, counted_share FROM cpu_counters ORDER BY event")
        assert found == [
            ("cache-misses", None, None, 0.0),
            ("cycles", None, 200.0, 0.5),
            ("task-clock", "msec", 1800.5, None),
        ]

    @pytest.mark.parametrize("mark, point", [(";", ","), (";", "."), ("\t", "."), ("\t", ","), (",", ".")])
    def test_stat_with_other_separators_and_decimal_points(
        self, mark: str, point: str, tmp_path: Path
    ) -> None:
        lines = ["CPU0 2001@5 msec task-clock 2001504321 100@00 1@998 CPUs", "CPU0 200 - cycles 900 50@00"]
        text = "".join(f"{line}\n" for line in lines).replace(" ", mark).replace("-\t", "\t")
        text = text.replace(f"{mark}-{mark}", mark * 2).replace("@", point)
        trace = stepscope.open(written(tmp_path, f"# started on Mon Jan 12 10:00:00 2026\n\n{text}"))
        found = rows(
            trace, "SELECT scope, event, unit, value, counted_share FROM cpu_counters ORDER BY event"
        )
        assert found == [
            ("CPU0", "cycles", None, 200.0, 0.5),
            ("CPU0", "task-clock", "msec", 2001.5, None),
        ]

    def test_stat_of_several_kinds_of_cores(self, tmp_path: Path) -> None:
        """As perf writes it for a program that moved from one kind of core to the other."""
        text = "0.65,msec,task-clock:u,648266,100.00,0.534,CPUs utilized\n91,,page-faults:u,648266,100.00,,\n"
        text += "400,,cpu_atom/cycles/u,276334,25.00,1.196,GHz\n800,,cpu_core/cycles/u,371932,75.00,,\n"
        text += "200,,cpu_atom/instructions/u,1,25.00,0.5,insn per cycle\n"
        text += "1600,,cpu_core/instructions/u,1,75.00,2.0,insn per cycle\n"
        text += "30,,cpu_atom/branches/u,1,25.00,,\n<not counted>,,cpu_core/branches/u,0,0.00,,\n"
        text += ",648266,100.00,,,,TopdownL1 (cpu_atom)\n,,,,,87.9,%  tma_bad_speculation\n"
        table = stepscope.open(written(tmp_path, text)).table("cpu_totals")
        found = {row.event: (row.value, row.per_cycle, row.counted_share) for row in table}
        assert found == {
            "task-clock:u": (0.65, None, None),
            "page-faults:u": (91.0, 91 / 700, None),
            "cpu_atom/cycles/u": (400.0, 1.0, 0.25),
            "cpu_core/cycles/u": (800.0, 1.0, 0.75),
            "cycles:u": (700.0, 1.0, None),  # 100 on one kind, 600 on the other
            "cpu_atom/instructions/u": (200.0, 0.5, 0.25),
            "cpu_core/instructions/u": (1600.0, 2.0, 0.75),
            "instructions:u": (1250.0, 1250 / 700, None),
            "cpu_atom/branches/u": (30.0, 30 / 400, 0.25),
            "cpu_core/branches/u": (None, None, 0.0),
            "branches:u": (30.0, 30 / 700, 0.25),
        }
        assert table.notes[0].startswith("The processor has several kinds of cores, and each was counted")

    def test_stat_of_a_whole_machine_with_several_kinds_of_cores(self, tmp_path: Path) -> None:
        text = " Performance counter stats for 'system wide':\n\n"
        text += "         5,438,125      cpu_core/cycles/\n         3,914,586      cpu_atom/cycles/\n"
        text += "     <not counted>      cpu_atom/branches/                               (0.00%)\n"
        text += "           148,652      cpu_core/branches/               #    6.175 K/sec\n"
        table = stepscope.open(written(tmp_path, text)).table("cpu_totals")
        found = {row.event: row.value for row in table}
        assert found["cycles"] == 5_438_125 + 3_914_586
        assert found["branches"] == 148_652
        assert found["cpu_atom/branches/"] is None

    def test_stat_of_threads(self, sample: Find) -> None:
        trace = stepscope.open(sample("perf/perf_report.txt"))  # which is of perf stat --per-thread
        sql = "SELECT scope, value FROM cpu_counters WHERE event = 'cycles'"
        assert rows(trace, sql) == [("main.exe-3595323", 64_691_610_875.0)]

    def test_what_is_no_text_of_samples_is_refused(self, tmp_path: Path) -> None:
        binary = tmp_path / "perf.data"
        binary.write_bytes(b"PERFILE2" + bytes(100))
        with pytest.raises(StepscopeError) as caught:
            stepscope.open(binary)
        assert caught.value.hint == "print it: perf script -i perf.data > samples.txt"
        report = "# To display the perf.data header info, use --header\n#\n# Samples: 4K of event 'cycles'\n"
        report += "# Overhead  Command  Shared Object  Symbol\n    12.00%  python   libc.so  [.] malloc\n"
        with pytest.raises(StepscopeError, match="is a report of perf"):
            stepscope.open(written(tmp_path, report))


class TestCollapsed:
    def test_py_spy_raw(self, tmp_path: Path) -> None:
        text = "<module> (a.py:1);load (/site/torch/utils/data/loader.py:9) 30\n"
        text += "<module> (a.py:1);work (a.py:5) 10\n"
        text += "work (a.py:5) 2\nodd line\n" + "<module> (a.py:1);work (a.py:5) 1\n" * 20
        trace = stepscope.open(written(tmp_path, text))
        assert {row.part: row.samples for row in trace.table("cpu_parts")} == {
            "data loader": 30,
            "python": 32,
        }
        assert rows(trace, "SELECT name, module, line FROM sampled_frames WHERE name = 'load'") == [
            ("load", "/site/torch/utils/data/loader.py", 9)
        ]
        assert [(one.reason, one.count) for one in trace.meta.damage] == [
            ("a line that is no stack with a count, left out", 1)
        ]

    def test_processes_and_threads_of_py_spy(self, tmp_path: Path) -> None:
        main, spawned = 'process 42:"python a.py"', 'process 43:"python -c import a; run(b)"'
        text = f"{main};thread (0x7F11): MainThread;<module> (a.py:4);f (b.py:1) 60\n"
        text += f"{main};thread (42): Thread-1 (_pin);run (t.py:1) 40\n"
        text += f"{main};{spawned};thread (0x11);g (c.py:5) 25\n"
        text += f'{main};f (b.py:1) 5\nprocess 7:"cut;h (b.py:2) 3\n'
        trace = stepscope.open(written(tmp_path, text))
        sql = "SELECT process, thread, command, samples FROM cpu_samples ORDER BY samples DESC"
        assert rows(trace, sql) == [
            (42, 0x7F11, "MainThread", 60),
            (42, 42, "Thread-1 (_pin)", 40),
            (43, 0x11, "python -c import a", 25),
            (42, None, "python a.py", 5),
            (7, None, "cut", 3),
        ]
        assert our_stacks(trace) == {("f", "<module>"): 60, ("run",): 40, ("g",): 25, ("f",): 5, ("h",): 3}
        names = rows(trace, "SELECT name FROM sampled_frames ORDER BY name")
        assert [name for (name,) in names] == ["<module>", "f", "g", "h", "run"]

    @pytest.mark.parametrize("written_as, thread", [("py-1-42/43", 43), ("py-1-42", None)])
    def test_processes_and_threads_of_perf(self, written_as: str, thread: int | None, tmp_path: Path) -> None:
        trace = stepscope.open(written(tmp_path, f"{written_as};a;b 7\n{written_as};take_gil 3\n"))
        sql = "SELECT process, thread, command, samples FROM cpu_samples ORDER BY samples DESC"
        assert rows(trace, sql) == [(42, thread, "py-1", 7), (42, thread, "py-1", 3)]
        assert our_stacks(trace) == {("b", "a"): 7, ("take_gil",): 3}

    def test_a_function_with_a_number_is_no_process(self, tmp_path: Path) -> None:
        trace = stepscope.open(written(tmp_path, "worker-1;a 7\nmain;b 3\n"))
        assert our_stacks(trace) == {("a", "worker-1"): 7, ("b", "main"): 3}
        assert rows(trace, "SELECT DISTINCT process FROM cpu_samples") == [(None,)]

    @pytest.mark.parametrize(
        "name", ["iperf_pidtid.collapsed-tid.txt.gz", "cycles_instructions.collapsed-all.txt"]
    )
    def test_samples_of_others(self, name: str, sample: Find) -> None:
        path = sample(f"perf/{name}")
        slow: Counter[tuple[str, ...]] = Counter()
        first = 1 if "-tid" in name else 0  # the program with its process and thread
        for line in plain(path).splitlines():
            stack, _, count = line.rpartition(" ")
            slow[tuple(reversed(stack.split(";")[first:]))] += int(count)
        assert our_stacks(stepscope.open(path)) == slow


class TestSpeedscope:
    def test_sampled_and_evented(self, tmp_path: Path) -> None:
        frames = [{"name": "main", "file": "a.py", "line": 1}, {"name": "work"}]
        sampled = {"type": "sampled", "name": "Thread 0x10", "unit": "seconds", "samples": [[0, 1], [0]]}
        evented = {"type": "evented", "name": "other", "unit": "none", "startValue": 0, "endValue": 9}
        events = [("O", 0, 0), ("O", 1, 2), ("C", 1, 5), ("C", 0, 9)]
        document = {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": frames},
            "profiles": [
                {**sampled, "weights": [0.5, 0.25]},
                {
                    **evented,
                    "events": [{"type": kind, "frame": frame, "at": at} for kind, frame, at in events],
                },
                {**sampled, "samples": [[7]], "weights": [1]},
            ],
        }
        trace = stepscope.open(written(tmp_path, json.dumps(document), "a.json"))
        assert our_stacks(trace) == {("work", "main"): 2, ("main",): 3}
        sql = "SELECT thread, event, sum(weight) FROM cpu_samples GROUP BY ALL ORDER BY thread NULLS LAST"
        assert rows(trace, sql) == [(16, None, 750_000_000.0), (None, "none", 9.0)]
        assert [one.count for one in trace.meta.damage] == [1]

    def test_samples_of_others(self, sample: Find) -> None:
        path = sample("perf/py_spy_0.4.2.speedscope.json.gz")
        document = json.loads(plain(path))
        names = [frame["name"] for frame in document["shared"]["frames"]]
        slow = Counter(
            tuple(names[one] for one in reversed(stack))
            for p in document["profiles"]
            for stack in p["samples"]
        )
        trace = stepscope.open(path)
        assert our_stacks(trace) == slow
        assert "samples of 4 threads" in build_report(trace).verdict.sentence

    def test_one_that_is_cut(self, tmp_path: Path) -> None:
        text = '{"$schema":"https://www.speedscope.app/file-format-schema.json","profiles":[{"type"'
        with pytest.raises(StepscopeError, match="no whole JSON"):
            stepscope.open(written(tmp_path, text, "a.json"))


class TestHostile:
    @given(st.lists(st.integers(1, 60), max_size=40))
    def test_pieces_may_end_anywhere(self, sizes: list[int]) -> None:
        whole, pieces = _native.StackReader(False), _native.StackReader(False)
        text, at = PERF.encode(), 0
        whole.feed(text)
        taken = []
        for size in [*sizes, len(text)]:
            pieces.feed(text[at : at + size])
            at += size
            taken += [bytes(pieces.take_samples()[-1][0])]
        whole.finish()
        pieces.finish()
        assert whole.samples == pieces.samples == 3
        taken += [bytes(pieces.take_samples()[-1][0])]
        assert b"".join(taken) == bytes(whole.take_samples()[-1][0])

    @given(st.lists(st.integers(1, 60), max_size=40))
    def test_lines_are_made_alike_wherever_pieces_end(self, sizes: list[int]) -> None:
        text, at, pieces = PERF.encode(), 0, []
        for size in [*sizes, len(text)]:
            pieces.append(text[at : at + size])
            at += size
        assert b"".join(perf_lines(pieces)) == text

    @given(st.binary(max_size=200), st.integers(0, len(PERF)), st.booleans())
    def test_no_bytes_harm_the_reader(self, noise: bytes, at: int, collapsed: bool) -> None:
        reader = _native.StackReader(collapsed)
        reader.feed(PERF.encode()[:at] + noise + PERF.encode()[at:])
        reader.finish()
        columns = reader.take_samples()
        assert {len(values) for values, _ in columns} == {reader.samples}
        offsets, frames = reader.take_stacks()
        assert offsets[-1] == len(frames)

    @pytest.mark.parametrize(
        "name, module, part",
        [
            ("take_gil", "/usr/bin/python3.11", "gil"),
            ("cuLaunchKernel", "/usr/lib/libcuda.so.550", "driver"),
            ("__memmove_avx", "/usr/lib/libc.so.6", "libc"),
            ("_PyEval_EvalFrameDefault", "/usr/bin/python3.11", "interpreter"),
            ("fetch", "/site/torch/utils/data/_utils/fetch.py", "data loader"),
            ("forward", "/app/model.py", "python"),
            ("main", "/app/a.out", "program"),
            ("do_syscall_64", "[kernel.kallsyms]", "kernel"),
            ("ncclAllReduce", "/site/nvidia/nccl/lib/libnccl.so.2", "communication"),
        ],
    )
    def test_parts_of_frames(self, name: str, module: str, part: str) -> None:
        assert part_of(name, module) == part
