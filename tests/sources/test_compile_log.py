"""Compile logs: real ones against a count of their own, drawn ones for what those lack, and damaged ones."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import Drawing
from tests.samples import DATA
from tests.trying import tries

import stepscope
from stepscope.errors import StepscopeError
from stepscope.findings.build import build_report
from stepscope.sources._compile_messages import graph_break, graph_skip, guard_failures, kernels_in_code
from stepscope.sources._torch_log import entries, looks_like_log
from stepscope.store.trace import Trace

Find = Callable[[str], Path]
STRUCTURED = DATA / "compile_logs" / "breaks_and_recompiles.log.gz"
MESSAGES = DATA / "compile_logs" / "torch_logs.txt"
CONTEXT = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0}


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def entry(told: dict[str, Any], payload: str = "", *, at: str = "12:00:00.000000", process: int = 7) -> str:
    """An entry as torch writes it."""
    below = "".join(f"\t{line}\n" for line in payload.split("\n")) if payload else ""
    return f"V0401 {at} {process} torch/_dynamo/utils.py:1] {json.dumps(told)}\n{below}"


def counted(path: Path) -> Counter[str]:
    """What a log holds, by a slow loop over its lines that knows nothing of our reader."""
    found: Counter[str] = Counter()
    raw = path.read_bytes()
    with io.StringIO((gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()) as file:
        payload: list[str] | None = None
        for line in file:
            if line.startswith("\t"):
                if payload is not None:
                    payload.append(line[1:])
                continue
            if payload:
                found["phases"] += json.loads("".join(payload)).get("ph") == "E"
            payload = None
            if not re.match(r"V\d{4} ", line):
                continue
            told = json.loads(line[line.index("] {") + 2 :])
            found["entries"] += 1
            found["starts"] += "dynamo_start" in told
            name = told.get("artifact", {}).get("name", "")
            found["breaks"] += name == "dynamo_graph_break_reason"
            found["recompilations"] += name == "recompile_reasons"
            found["caches"] += bool(re.fullmatch(r"(fx_graph|aotautograd)_cache_(hit|miss|bypass)", name))
            if "chromium_event" in told:
                payload = []
        if payload:
            found["phases"] += json.loads("".join(payload)).get("ph") == "E"
    return found


def ours(trace: Trace) -> Counter[str]:
    asked = {
        "starts": "SELECT count(*) FROM logged_compilations WHERE kind = 'frame'",
        "breaks": "SELECT count(*) FROM logged_breaks",
        "recompilations": "SELECT count(DISTINCT (rank, process, region)) FROM logged_recompiles",
        "caches": "SELECT count(*) FROM logged_caches",
        "phases": "SELECT count(*) FROM logged_phases",
    }
    return Counter({name: rows(trace, sql)[0][0] for name, sql in asked.items()})


def test_our_own_log_has_what_a_slow_count_finds() -> None:
    trace = stepscope.open(STRUCTURED)
    slow = counted(STRUCTURED)
    del slow["entries"]
    assert ours(trace) == slow
    assert slow["breaks"] == 5
    assert slow["starts"] == 8
    assert not trace.meta.damage
    assert trace.meta.kind == "compile_log"


REAL = {
    "compile_logs/simple.log": (1, 1),
    "compile_logs/artifacts.log": (1, 1),
    "compile_logs/cache_hit_miss.log.gz": (6, 2),
    "compile_logs/provenance_jit_cuda.log.gz": (1, 1),
}


@pytest.mark.parametrize("name", REAL)
def test_logs_of_others_have_their_known_counts(name: str, sample: Find) -> None:
    trace = stepscope.open(sample(name))
    starts, ids = REAL[name]
    found = rows(
        trace, "SELECT count(*), count(DISTINCT region) FROM logged_compilations WHERE kind = 'frame'"
    )
    assert found == [(starts, ids)]
    slow = counted(sample(name))
    assert (slow["starts"], slow["phases"], slow["breaks"]) == (starts, ours(trace)["phases"], 0)
    assert not trace.meta.damage


def test_ranks_come_from_the_names_of_files(sample: Find) -> None:
    folder = sample("compile_logs/multi_rank_schedule")
    trace = stepscope.open(folder)
    assert rows(
        trace, "SELECT rank, count(DISTINCT region) FROM logged_compilations GROUP BY rank ORDER BY rank"
    ) == [(0, 2), (1, 2), (2, 2)]
    assert "the names are believed" in " ".join(trace.meta.sources[0].notes)


def test_provenance_names_the_lines_of_kernels(sample: Find) -> None:
    trace = stepscope.open(sample("compile_logs/provenance_jit_cuda.log.gz"))
    (found,) = rows(trace, "SELECT ops, nodes, lines, code, configs, compile_ns FROM logged_kernels"
                           " WHERE name = 'triton_poi_fused_addmm_relu_sigmoid_0'")  # fmt: skip
    assert found[0] == "aten.addmm, aten.relu, aten.sigmoid"
    assert found[1] == "add_tensor_1, relu, sigmoid"
    assert [place.rpartition(":")[2] for place in found[2].split(", ")] == ["29", "30", "31"]
    assert found[3:] == ("x = self.fc1(x)", 1, 330_723_000)


def test_the_second_start_finds_its_work_in_the_caches() -> None:
    asked = "SELECT cache, result, count(*) FROM logged_caches GROUP BY ALL ORDER BY ALL"
    cold = stepscope.open(DATA / "compile_logs" / "cold_cache.log.gz")
    warm = stepscope.open(DATA / "compile_logs" / "warm_cache.log.gz")
    assert {result for _, result, _ in rows(cold, asked)} == {"miss"}
    assert {result for _, result, _ in rows(warm, asked)} == {"hit"}
    (kernel,) = cold.table("generated_kernels")
    assert (kernel.name, kernel.lines) == ("cpp_fused_add_mul_relu_sin_0", "/app/fused.py:6, /app/fused.py:7")
    for trace, name in ((cold, "cold_cache"), (warm, "warm_cache")):
        slow = counted(DATA / "compile_logs" / f"{name}.log.gz")
        assert (slow["starts"], slow["caches"], slow["phases"]) == tuple(
            ours(trace)[key] for key in ("starts", "caches", "phases")
        )


class TestWhatItSays:
    def test_breaks_have_line_reason_and_hint(self) -> None:
        found = stepscope.open(STRUCTURED).table("graph_break_lines")
        assert [(row.place, row.breaks, row.reason) for row in found] == [
            ("/app/train.py(22): forward", 3, "Failed to trace builtin operator"),
            (
                "/app/train.py(20): forward",
                2,
                "Unsupported Tensor.item() call with capture_scalar_outputs=False",
            ),
        ]
        assert all(row.hint for row in found)

    def test_messages_say_the_same_as_the_structured_log(self) -> None:
        sql = "SELECT region, file, line, reason FROM logged_breaks ORDER BY ALL"
        assert rows(stepscope.open(MESSAGES), sql) == rows(stepscope.open(STRUCTURED), sql)
        sql = "SELECT region, function, line, version, guard FROM logged_recompiles ORDER BY ALL"
        assert rows(stepscope.open(MESSAGES), sql) == rows(stepscope.open(STRUCTURED), sql)

    def test_guards_have_the_time_that_they_cost(self) -> None:
        trace = stepscope.open(STRUCTURED)
        found = trace.table("recompile_guards")
        assert sum(row.recompilations for row in found) == 5
        timed = rows(trace, "SELECT sum(dur_ns)::BIGINT FROM logged_compilations WHERE region NOT LIKE '%/0'")
        assert [(sum(row.compiling_ns or 0 for row in found),)] == timed
        assert {row.guard for row in found} >= {"scale == 1.0"}

    def test_phases_add_up_to_compiling(self) -> None:
        trace = stepscope.open(STRUCTURED)
        outermost = rows(trace, "SELECT sum(dur_ns)::BIGINT FROM logged_phases WHERE depth = 0")
        assert sum(row.self_ns for row in trace.table("compile_phases")) == outermost[0][0]

    def test_a_report_on_a_log_alone_is_plain_about_what_it_lacks(self) -> None:
        report = build_report(stepscope.open(STRUCTURED))
        assert "has no steps" in report.verdict.sentence
        assert "10 compilations took 23.9 s" in report.verdict.sentence
        ids = [one.id for one in report.findings]
        assert ids == ["graph-breaks", "recompilations"]
        assert not any(one.gain.is_known for one in report.findings)
        assert str(report.findings[0].advice.locations[0]) == "/app/train.py:22 forward"
        assert not [one for one in report.not_run if one.crashed]


def drawn_log(folder: Path, text: str, name: str = "a.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


class TestDrawn:
    def test_generated_kernels_are_joined_with_the_trace_by_name(self, tmp_path: Path) -> None:
        code = """\
# Topologically Sorted Source Nodes: [z], Original ATen: [aten.add, aten.relu]
# Graph fragment:
#   %add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%a, 1), kwargs = {})
triton_poi_fused_add_relu_0 = async_compile.triton('triton_poi_fused_add_relu_0', '''
''')
other = async_compile.triton('other', '''
''')"""
        graph = "# File: /app/m.py:12 in forward, code: z = a + 1\n"
        graph += 'add: "f32[4]" = torch.ops.aten.add.Tensor(a, 1)'
        log = drawn_log(
            tmp_path,
            entry({"inductor_post_grad_graph": {}, **CONTEXT}, graph)
            + entry({"inductor_output_code": {"filename": "x.py"}, **CONTEXT}, code),
        )
        drawing = (
            Drawing(base_ns=1_700_000_000_000_000_000)
            .mark(1, 0, 100)
            .launch("cudaLaunchKernel", 12, 1, corr=7)
            .kernel("triton_poi_fused_add_relu_0", 20, 30, corr=7)
            .launch("cudaLaunchKernel", 14, 1, corr=8)
            .kernel("gemm", 60, 10, corr=8)
        )
        profile = drawing.write(tmp_path / "trace.json")
        found = stepscope.open(profile, also=[log]).table("generated_kernels")
        first, second = found
        assert (first.name, first.calls, first.device_ns, first.share) == (
            "triton_poi_fused_add_relu_0",
            1,
            30_000,
            0.75,
        )
        assert (first.ops, first.lines, first.code) == ("aten.add, aten.relu", "/app/m.py:12", "z = a + 1")
        assert (second.name, second.calls, second.ops) == ("other", 0, None)
        assert "1 of 2 generated kernels" in found.notes[0]

    def test_times_come_from_entries_that_have_them(self, tmp_path: Path) -> None:
        at = 1_743_508_800_000_000  # noon in UTC; the prefix is of a zone two hours east of it
        event = json.dumps({"name": "dynamo", "ph": "B", "ts": at, "args": {}, "pid": 0, "tid": 0})
        text = entry({"dynamo_start": {"stack": []}, **CONTEXT}, at="13:59:59.500000")
        text += entry({"chromium_event": {}, **CONTEXT}, event, at="14:00:00.001000")
        trace = stepscope.open(drawn_log(tmp_path, text))
        assert rows(trace, "SELECT start_ns FROM logged_compilations") == [(at * 1000 - 500_000_000,)]
        assert [one.reason for one in trace.meta.damage] == [
            "a phase of compiling without its begin or end: the log was cut short"
        ]

    def test_caches_say_what_they_found(self, tmp_path: Path) -> None:
        bypass = json.dumps({"cache_bypass_reason": "Unsupported op", "cache_state": "bypass", "key": None})
        hit = json.dumps({"key": "f1", "time_saved_ns": 5})
        miss = json.dumps({"key": "f2", "cache_state": "miss"})
        text = entry({"artifact": {"name": "aotautograd_cache_bypass"}, **CONTEXT}, bypass)
        text += entry({"artifact": {"name": "fx_graph_cache_hit"}, **CONTEXT}, hit)
        text += entry({"artifact": {"name": "fx_graph_cache_hash"}, **CONTEXT}, miss)
        trace = stepscope.open(drawn_log(tmp_path, text))
        assert rows(trace, "SELECT cache, result, key, reason, saved_ns FROM logged_caches ORDER BY ALL") == [
            ("aot autograd", "bypass", None, "Unsupported op", None),
            ("fx graph", "hit", "f1", None, 5),
            ("fx graph", "miss", "f2", None, None),
        ]

    def test_layers_of_a_list_are_counted(self, tmp_path: Path) -> None:
        def source(n: int) -> str:
            told = f"L['self']._modules['blocks']._modules['{n}']._modules['up']._parameters['weight']"
            return entry({"describe_source": {"describer_id": 0, "id": n, "source": told}, **CONTEXT})

        text = entry({"dynamo_start": {"stack": []}, **CONTEXT})
        text += "".join(source(n % 12) for n in range(24))
        metrics = {
            "co_name": "forward",
            "co_filename": "/app/m.py",
            "co_firstlineno": 3,
            "graph_op_count": 900,
        }
        text += entry({"compilation_metrics": {**metrics, "duration_us": 30_000_000}, **CONTEXT})
        report = build_report(stepscope.open(drawn_log(tmp_path, text)))
        (found,) = report.findings
        assert found.id == "layers-compiled-together"
        assert found.advice.evidence == {
            "layers": 12,
            "graph_ops": 900,
            "compiling_ns": 30_000_000_000,
            "graphs": 1,
        }

    def test_a_folder_of_ranks_is_one_log(self, tmp_path: Path) -> None:
        start = entry({"dynamo_start": {"stack": []}, "rank": 0, **CONTEXT})
        for rank in (0, 3):
            drawn_log(tmp_path, start, f"dedicated_log_torch_trace_rank_{rank}_abc.log")
        trace = stepscope.open(tmp_path)
        assert rows(trace, "SELECT rank FROM logged_compilations ORDER BY rank") == [(0,), (3,)]

    def test_output_of_the_program_between_entries_does_no_harm(self, tmp_path: Path) -> None:
        text = "epoch 1\n" + MESSAGES.read_text().replace("\nV1116", "\nloss 0.5\n[rank2]:V1116", 3)
        trace = stepscope.open(drawn_log(tmp_path, text))
        assert len(rows(trace, "SELECT 1 FROM logged_recompiles")) == 7

    def test_launchers_may_put_the_rank_before_each_line(self, tmp_path: Path) -> None:
        text = "".join(f"[default3]:[rank3]:{line}\n" for line in MESSAGES.read_text().splitlines())
        trace = stepscope.open(drawn_log(tmp_path, text))
        assert rows(trace, "SELECT DISTINCT rank FROM logged_recompiles") == [(3,)]
        assert len(rows(trace, "SELECT 1 FROM logged_breaks")) == 5

    def test_lines_of_two_ranks_may_be_mixed(self, tmp_path: Path) -> None:
        lines = MESSAGES.read_text().splitlines()
        others = [re.sub(r"^(\w\d{4} \S+ )\d+", r"\g<1>4711", line) for line in lines]
        mixed = "".join(
            f"[rank{rank}]:{line}\n"
            for both in zip(lines, others, strict=True)
            for rank, line in enumerate(both)
        )
        found = [
            rows(
                stepscope.open(drawn_log(tmp_path, text, name)),
                "SELECT file, line, reason FROM logged_breaks ORDER BY ALL",
            )
            for name, text in (("one.log", "\n".join(lines)), ("two.log", mixed))
        ]
        assert found[1] == sorted(found[0] * 2, key=lambda row: [str(one) for one in row])

    def test_a_compilation_is_announced_several_times_and_counts_once(self, tmp_path: Path) -> None:
        said = [
            ("0/0", "torchdynamo start compiling f /app/a.py:3, stack (elided 5 frames):"),
            ("0/0", "torchdynamo start tracing f /app/a.py:3"),
            ("0/0_1", "torchdynamo start tracing f /app/a.py:3"),
            ("0/1", "torchdynamo start tracing f /app/a.py:3"),  # of a log without the first kind
            ("0/1_1", "torchdynamo start tracing f /app/a.py:3"),
            ("0/1_2", "torchdynamo start tracing f /app/a.py:3"),
        ]
        text = "".join(
            f"I0401 12:00:0{at}.000000 7 torch/_dynamo/convert_frame.py:1] [{region}] {words}\n"
            for at, (region, words) in enumerate(said)
        )
        trace = stepscope.open(drawn_log(tmp_path, text))
        asked = "SELECT region, attempts FROM logged_compilations ORDER BY region"
        assert rows(trace, asked) == [("0/0", 2), ("0/1", 3)]

    def test_what_backward_compiles_counts(self, tmp_path: Path) -> None:
        metrics = {"entire_frame_compile_time_s": 5.0, "is_forward": False, "co_name": "f"}
        told = [{"bwd_compilation_metrics": metrics}, {"bwd_compilation_metrics_runtime": metrics}]
        text = "".join(entry({**one, **CONTEXT}) for one in told)
        trace = stepscope.open(drawn_log(tmp_path, text))
        assert rows(trace, "SELECT kind FROM logged_compilations ORDER BY kind") == [
            ("backward",),
            ("runtime",),
        ]


OLD_BREAK = """\
Graph break in user code at /app/a.py:5
Reason: Unsupported: builtin: print [<class 'ConstantVariable'>] False
User code traceback:
  File "/app/a.py", line 5, in f
    print(x)
"""
LIMIT = """\
torch._dynamo hit config.recompile_limit (8)
   function: 'f' (/app/a.py:3)
   last reason: 0/7: tensor 'x' size mismatch at index 0. expected 8, actual 12
To log all recompilation reasons, use TORCH_LOGS="recompiles"."""


SKIPPED = """\
Graph break in user code at /app/train.py:73
Graph Break Reason: Failed to handle graph break gracefully. Skipping the function and falling back to eager. Graph break encountered:

Unsupported Tensor.item() call with capture_scalar_outputs=False
  Explanation: Dynamo does not support tracing `Tensor.item()` with config.capture_scalar_outputs=False.
  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True`

*** While handling this graph break, another graph break occurred: ***

graph break in loop
  Explanation: torch.compile detected a graph break in a for/while loop. Skipping the frame and falling back to eager.

User code traceback:
  File "/app/train.py", line 73, in forward
    largest = x.abs().max().item()
"""  # noqa: E501  # as torch 2.11 writes it


class TestMessages:
    def test_a_break_for_which_the_whole_function_is_left(self) -> None:
        found = graph_break(SKIPPED)
        assert found["reason"] == "Unsupported Tensor.item() call with capture_scalar_outputs=False"
        assert found["hint"] == "Set `torch._dynamo.config.capture_scalar_outputs = True`"
        assert (found["line"], found["code"]) == (73, "largest = x.abs().max().item()")
        assert found["skipped"] == 1

    def test_an_older_version_of_a_break(self) -> None:
        found = graph_break(OLD_BREAK)
        assert found == {
            "file": "/app/a.py",
            "line": 5,
            "function": "f",
            "code": "print(x)",
            "reason": "Unsupported: builtin: print [<class 'ConstantVariable'>] False",
            "hint": None,
            "skipped": 0,
        }

    def test_the_prefixes_of_older_versions(self, tmp_path: Path) -> None:
        said = "[2023-11-16 16:41:38,267] [3/1] torch._dynamo.symbolic_convert.__graph_breaks: [DEBUG] "
        text = f"{said}Graph break: builtin: print [] False from user code at:\n"
        text += f'{said}  File "/app/a.py", line 5, in f\n{said}    print(x)\n'
        guards = said.replace("symbolic_convert.__graph_breaks", "guards.__recompiles")
        text += f"{guards}Recompiling function f in /app/a.py:3\n"
        text += f"{guards}    triggered by the following guard failure(s):\n{guards}    - L['x'] == 4\n"
        trace = stepscope.open(drawn_log(tmp_path, text))
        assert rows(trace, "SELECT region, file, line, code, reason FROM logged_breaks") == [
            ("3/1", "/app/a.py", 5, "print(x)", "builtin: print [] False")
        ]
        assert rows(trace, "SELECT region, function, line, guard FROM logged_recompiles") == [
            ("3/1", "f", 3, "L['x'] == 4")
        ]

    def test_torch_gives_up_at_the_limit(self) -> None:
        (found,) = guard_failures([LIMIT])
        assert (found["function"], found["file"], found["line"], found["limit"]) == ("f", "/app/a.py", 3, 1)
        assert found["guard"].startswith("tensor 'x' size mismatch")

    def test_a_skipped_graph_has_its_line(self) -> None:
        text = "skipping cudagraphs due to mutated inputs (1 instances). Found from :\n"
        text += '   File "/app/a.py", line 7, in f'
        assert graph_skip(text) == {"reason": "mutated inputs (1 instances)", "place": "/app/a.py:7"}
        assert graph_skip("all is well") is None

    def test_kernels_without_comments_are_known_by_name(self) -> None:
        found = kernels_in_code("cpp_fused_0 = async_compile.cpp_pybinding(['x'], '''\n''')")
        assert found == {"cpp_fused_0": {"ops": None, "nodes": []}}


class TestDamaged:
    def test_one_without_entries_is_refused(self, tmp_path: Path) -> None:
        path = drawn_log(tmp_path, "V0401 12:00:00.000000 7 torch/a.py:1] {broken\n")
        with pytest.raises(StepscopeError) as caught:
            stepscope.open(path)
        assert "no entry of torch.compile" in str(caught.value)
        assert "TORCH_TRACE" in (caught.value.hint or "")

    def test_one_that_is_cut_is_read_so_far(self, tmp_path: Path) -> None:
        whole = gzip.decompress(STRUCTURED.read_bytes())
        path = tmp_path / "cut.log"
        path.write_bytes(whole[: len(whole) // 2])
        trace = stepscope.open(path)
        assert 0 < len(rows(trace, "SELECT 1 FROM logged_compilations")) < 8
        assert any("cut short" in one.reason for one in trace.meta.damage)

    def test_other_logs_are_not_taken(self) -> None:
        assert not looks_like_log(b"I0401 12:00:00.000000 7 nccl/init.cc:12] hello\n")
        assert not looks_like_log(b"2024-01-01 INFO something\n")
        assert looks_like_log(b'noise\nV0401 12:00:00.000000 7 torch/a.py:1] {"str": ["a", 0]}\n')

    @given(st.lists(st.integers(1, 400), min_size=1, max_size=40))
    def test_pieces_may_end_anywhere(self, sizes: list[int]) -> None:
        text = MESSAGES.read_bytes()[:6000] + entry({"str": ["a", 0]}, "b\nc").encode()
        pieces, at = [], 0
        for size in sizes:
            pieces.append(text[at : at + size])
            at += size
        assert list(entries([*pieces, text[at:]])) == list(entries([text]))

    @settings(max_examples=tries(30, 1000))
    @given(st.binary(max_size=60), st.integers(0, 5000), st.integers(0, 200))
    def test_damage_anywhere_raises_nothing_odd(self, noise: bytes, at: int, gone: int) -> None:
        import tempfile

        text = gzip.decompress(STRUCTURED.read_bytes())[:60_000]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.log"
            path.write_bytes(text[: at * 11] + noise + text[at * 11 + gone :])
            try:
                stepscope.open(path, store=Path(folder) / "store")
            except StepscopeError:
                assert at == 0
