"""What reports say about the collectives of other people's programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.samples import open_shared, reported

from stepscope.analyses.collective_kinds import collective_kinds
from stepscope.findings import Finding
from stepscope.findings.report import Report

Sample = Callable[[str], Path]


def report_on(name: str, sample: Sample) -> Report:
    return reported(sample(name))


def finding(report: Report, name: str) -> Finding:
    (found,) = (one for one in report.findings if one.id == name)
    return found


@pytest.mark.slow
def test_eight_gpus_of_one_machine_at_a_hundredth_of_the_link(sample: Sample) -> None:
    report = report_on("verdicts/resnet_ddp_mi300.json.gz", sample)
    first = report.findings[0]
    assert first.id == "slow-collectives"
    assert first.advice.because.startswith("A rank is late, or the fast path was not taken")
    for part in (
        "17.6 MB",
        "8 ranks of one machine",
        "8.93 ms",
        "3.45 GB/s bus bandwidth",
        "448 GB/s of xGMI",
    ):
        assert part in first.advice.because
    assert "NCCL_DEBUG=INFO" in first.advice.fix
    assert "rocm-smi" in first.advice.fix
    assert not any("bucket_cap_mb=100" in one.advice.fix for one in report.findings)


@pytest.mark.slow
def test_all_to_alls_of_embeddings_are_not_all_reduces(sample: Sample) -> None:
    path = sample("verdicts/torchrec_a100.json.gz")
    exposed = finding(reported(path), "exposed-communication")
    assert exposed.advice.evidence["collective"] == "all-to-all"
    assert "TrainPipelineSparseDist" in exposed.advice.fix
    assert "DistributedDataParallel" not in exposed.advice.fix
    rows = list(collective_kinds(open_shared(path)))
    parts = {
        kind: sum(row.exposed_ns for row in rows if row.kind == kind) / 1e6 for kind in {r.kind for r in rows}
    }
    assert parts["all-to-all"] == pytest.approx(82.5, rel=0.02)
    assert parts["all-reduce"] == pytest.approx(4.1, rel=0.15)


@pytest.mark.slow
def test_four_hundred_all_reduces_are_said(sample: Sample) -> None:
    report = report_on("verdicts/two_v100.json.gz", sample)
    assert "small-buckets" in [one.id for one in report.findings[:2]]
    small = finding(report, "small-buckets")
    assert small.advice.evidence["all_reduces_per_step"] == 404
    assert "404 all-reduces" in small.advice.because


@pytest.mark.slow
def test_kernels_that_contradict_their_callers_are_not_called_all_reduce(sample: Sample) -> None:
    report = report_on("verdicts/dlrm_graphs_a100.json.gz", sample)
    for one in report.findings:
        assert "all-reduce" not in one.advice.because + one.advice.title
        assert "all_reduce" not in one.advice.fix


@pytest.mark.slow
def test_a_region_in_four_denoising_steps_is_no_graph_break(sample: Sample) -> None:
    report = report_on("verdicts/xdit_sd35_mi300.json.gz", sample)
    assert "graph-breaks" not in [one.id for one in report.findings]


@pytest.mark.slow
def test_a_group_of_one_has_nothing_to_say_about_communication(sample: Sample) -> None:
    report = report_on("verdicts/h200_ddp_one_rank.json.gz", sample)
    assert not [one.id for one in report.findings if one.category == "communication"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hta_nccl_data.json.gz", "ranks/ddp_mi300_4/rank0.json.gz"])
def test_copies_of_buffers_are_no_loop_over_weights(name: str, sample: Sample) -> None:
    report = report_on(name, sample)
    assert not [one for one in report.findings if "in a loop" in one.advice.title]
    buffers = finding(report, "buffer-broadcasts")
    assert buffers.advice.evidence["copies_per_step"] == 159
    assert "broadcast_buffers=False" in buffers.advice.fix


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(8))
def test_every_rank_of_a_recommender_has_its_all_to_alls(rank: int, sample: Sample) -> None:
    folder = sample("ranks/dlrm_v100_8")
    (path,) = folder.glob(f"worker{rank}_*.json.gz")
    rows = list(collective_kinds(open_shared(path)))
    assert {row.kind for row in rows} <= {"all-to-all", "all-reduce"}
    assert sum(row.calls for row in rows if row.kind == "all-to-all") >= 4
    assert all(row.group_size == 8 and row.one_machine for row in rows)
