"""Rank files in reports: from a real program to its findings, and nothing that a file says breaks one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.analyses.test_code import training_step
from tests.drawing import Drawing
from tests.rank_files import BASE, CPU, GPU, opened_with, pause, rank_document, sample
from tests.trying import tries

import stepscope
from stepscope.findings.build import build_report
from stepscope.findings.report import Report
from stepscope.present.report.json import json as as_json
from stepscope.present.report.terminal import terminal

PROGRAM = """
import gc, json, sys, time, torch
from torch.profiler import ProfilerActivity, profile, schedule
from stepscope.capture import loaders, machine
from stepscope.capture.watching import Watch

class Items:
    def __len__(self): return 64
    def __getitem__(self, place):
        time.sleep(0.001)
        return torch.ones(16)

model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
held = [[number] for number in range(400_000)]      # what the collector has to look at
gc.disable()
loaders.watch()
watch = Watch()

def step(batch):
    model(batch).sum().backward()
    optimizer.step()
    gc.collect()                                     # stands for a collection in every step

batches = iter(torch.utils.data.DataLoader(Items(), batch_size=4))
step(next(batches))
loaders.reset()
for _ in range(4):
    step(next(batches))
found = loaders.found(4)
watch.start()
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=1, active=4, repeat=1),
    on_trace_ready=lambda profiler: profiler.export_chrome_trace(sys.argv[1]),
) as profiler:
    for _ in range(5):
        step(next(batches))
        profiler.step()
seen = watch.stop()
rank = {"schema": "stepscope.rank/1", "rank": 0, "environment": machine.environment(), "loaders": found}
with open(sys.argv[2], "w") as file:
    json.dump({**rank, **seen}, file)
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report on a real program, with what was found out inside of it."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("real")
    (folder / "train.py").write_text(PROGRAM)
    trace, rank = folder / "trace.json", folder / "rank0.json"
    subprocess.run([sys.executable, folder / "train.py", trace, rank], check=True, timeout=300, cwd=folder)
    opened = stepscope.open(trace, also=[rank], store=folder / "store")
    return build_report(opened, tables=("collector_pauses", "data_loaders", "gpu_health", "run_settings"))


@pytest.mark.slow
class TestARealProgram:
    def test_a_pause_is_found_in_every_step(self, real: Report) -> None:
        rows = [row for row in real.tables["collector_pauses"] if row.step is not None]
        assert [row.generation for row in rows] == [2] * 4
        assert all(row.longest_ns > 1_000_000 for row in rows)
        finding = next(one for one in real.findings if one.id == "collector-pauses")
        assert 0 < finding.gain.low_ns <= finding.gain.high_ns
        longest = max(row.total_ns for row in rows)
        assert finding.gain.high_ns <= longest

    def test_its_loader_and_its_settings_are_there(self, real: Report) -> None:
        (loader,) = real.tables["data_loaders"]
        assert (loader.batch_size, loader.num_workers, loader.batches_per_step) == (4, 0, 1.0)
        assert loader.waited_ns > 4_000_000
        names = {row.name: row.value for row in real.tables["run_settings"]}
        assert names["cudnn_benchmark"] == "false"
        assert names["torch"].startswith("2.")

    def test_no_rule_fails(self, real: Report) -> None:
        assert not [one for one in real.not_run if one.crashed]
        assert "garbage collector" in terminal(real, width=100, color=False)


class TestDrawnOnes:
    def test_a_hot_gpu_behind_a_narrow_link_far_away(self, tmp_path: Path) -> None:
        hot = [
            sample(place, "hardware thermal slowdown", sm_clock_mhz=990, link_width=4) for place in range(20)
        ]
        document = rank_document(
            gpu_samples=hot,
            environment={
                "gpus": [{**GPU, "link_width": 4}],
                "cpu": {**CPU, "affinity_numa_nodes": [0]},
                "torch": {"cudnn_benchmark": False},
            },
        )
        drawing = Drawing(base_ns=BASE)
        for step in range(3):
            at = 1000 * step
            drawing.mark(step, at, 990)
            drawing.launch("cudaMemcpyAsync", at + 5, 5, corr=10 * step)
            drawing.memcpy(
                "Memcpy HtoD (Pinned -> Device)", at + 10, 300, corr=10 * step, args={"bytes": 2_200_000}
            )
            drawing.launch("cudaLaunchKernel", at + 20, 5, corr=10 * step + 1)
            drawing.kernel("gemm", at + 320, 600, corr=10 * step + 1)
        report = build_report(opened_with(tmp_path, drawing, document))
        found = {one.id for one in report.findings}
        assert {"throttled-device", "narrow-link", "distant-numa-node"} <= found
        assert not [one for one in report.not_run if one.crashed]

    def test_a_trace_without_one_says_nothing_of_it(self, tmp_path: Path) -> None:
        drawing = training_step()
        plain = build_report(opened_with(tmp_path, drawing, None, "plain"))
        words = {"throttled-device", "scarce-cpus", "collector-pauses", "narrow-link", "unpinned-loader"}
        assert not words & {one.id for one in plain.findings}
        assert not words & {one.id for one in plain.not_run}
        text = terminal(plain, width=100, color=False)
        assert "stepscope run" not in text

    @pytest.mark.slow
    def test_a_healthy_machine_changes_no_finding(self, tmp_path: Path) -> None:
        drawing = training_step()
        quiet = rank_document(gpu_samples=[], collector_pauses=[], loaders=[])
        plain = build_report(opened_with(tmp_path, drawing, None, "plain"))
        told = build_report(opened_with(tmp_path, drawing, quiet, "told"))
        assert [(one.id, one.gain) for one in told.findings] == [(one.id, one.gain) for one in plain.findings]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def bent(draw: st.DrawFn) -> Any:
    """A whole rank file in which some values are anything."""
    document = json.loads(json.dumps(rank_document(gpu_samples=[sample(10)], collector_pauses=[pause(5, 3)])))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.sampled_from([document, *_inside(document)]))
        if isinstance(place, dict) and place:
            place[draw(st.sampled_from(sorted(set(place) - {"schema"}) or ["x"]))] = draw(anything)
        elif isinstance(place, list):
            place.append(draw(anything))
    return document


def _inside(value: Any) -> list[Any]:
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [part for one in parts if isinstance(one, dict | list) for part in (one, *_inside(one))]


@pytest.mark.slow
@settings(max_examples=tries(2, 80), deadline=None, suppress_health_check=list(HealthCheck))
@given(document=bent())
def test_whatever_it_says_there_is_a_report(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    document["rank"] = 0
    folder = tmp_path_factory.mktemp("bent")
    report = build_report(opened_with(folder, training_step(), document))
    assert not [one for one in report.not_run if one.crashed]
    json.loads(as_json(report))
