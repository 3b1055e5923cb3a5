"""Real runs of several ranks: who comes last, by how much, and how far their clocks can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
from tests.samples import open_shared

from stepscope.runs.many import ManyRanks
from stepscope.runs.summarizing import summarize

pytestmark = pytest.mark.slow

Sample = Callable[[str], Path]


@cache
def _run(files: tuple[Path, ...]) -> ManyRanks:
    return ManyRanks("real", [summarize(open_shared(path)) for path in files], world_size=len(files))


def _of(sample: Sample, names: Iterable[str]) -> ManyRanks:
    return _run(tuple(sample(name) for name in names))


@pytest.fixture
def mi300(sample: Sample) -> ManyRanks:
    """Four ranks of a ResNet on one node, with sequence numbers."""
    return _of(sample, (f"ranks/ddp_mi300_4/rank{rank}.json.gz" for rank in range(4)))


@pytest.fixture
def v100(sample: Sample) -> ManyRanks:
    """Eight ranks of DLRM, one step, without names of groups or sequence numbers."""
    folder = sample("ranks/dlrm_v100_8")
    return _run(tuple(sorted(folder.iterdir())))


@pytest.fixture
def gloo(sample: Sample) -> ManyRanks:
    """Two ranks whose hosts sum the gradients."""
    return _of(sample, (f"h200_ddp_gloo_rank{rank}.pt.trace.json.gz" for rank in range(2)))


def test_rank_3_comes_last_in_all_collectives(mi300: ManyRanks) -> None:
    table = list(mi300.table("collectives"))
    assert [row.kind for row in table] == (["broadcast"] * 2 + ["all-reduce"] * 5) * 3
    assert [row.step for row in table] == [9] * 7 + [10] * 7 + [11] * 7
    assert {(row.last_rank, row.ranks, row.group_ranks) for row in table} == {(3, 4, "0,1,2,3")}
    assert {(row.matched_by, row.missing_ranks) for row in table} == {("sequence", None)}


def test_its_clocks_are_one_to_within_the_spread_of_ends(mi300: ManyRanks) -> None:
    # All-reduces end within 1.7 to 24 µs of each other, by the clock of the one host.
    for row in mi300.table("clocks"):
        assert abs(row.offset_ns) < 24_000
        assert 0 < row.error_ns < 24_000
        assert row.collectives == 15
        assert row.drift_ppm is None


def test_the_straggler_is_rank_3_and_costs_what_others_spend_in_their_kernels(mi300: ManyRanks) -> None:
    rows = list(mi300.table("stragglers"))
    assert {(row.rank, row.last_share, row.steps) for row in rows} == {(3, 1.0, 3)}
    assert rows[0].cause == "host"
    # The kernels of the others take so much longer than its own: 64.5, 47.0 and 49.8 ms against 3.6.
    waited = 64_471_378 + 46_984_875 + 49_845_198 - 3 * 3_591_089
    assert 3 * sum(row.cost_ns for row in rows) == pytest.approx(waited, rel=0.01)
    assert sum(row.exposed_cost_ns for row in rows) < sum(row.cost_ns for row in rows)


def test_bus_bandwidth_is_that_of_the_last_arrival(mi300: ManyRanks) -> None:
    (reduced,) = (row for row in mi300.table("collectives", by="kind") if row.kind == "all-reduce")
    # On rank 0 alone, with its waits, it would be 17 GB/s.
    assert 110 < reduced.bus_gb_per_s < 130
    assert reduced.bytes == 284_555_184


def test_ranks_without_names_of_groups_are_one_if_they_leave_together(v100: ManyRanks) -> None:
    table = v100.table("collectives")
    assert [row.kind for row in table] == ["all-to-all"] * 4 + ["all-reduce", "all-to-all"] + [
        "all-reduce"
    ] * 2
    assert {(row.ranks, row.matched_by, row.group) for row in table} == {
        (8, "order", "ranks 0,1,2,3,4,5,6,7")
    }
    assert any(note.startswith("No profile names the process groups") for note in table.notes)
    assert all(row.error_ns < 10_000 for row in v100.table("clocks"))
    first = next(iter(v100.table("stragglers")))
    assert (first.rank, first.cause, first.last_share) == (7, "host", 5 / 8)
    (group,) = v100.table("process_groups")
    assert (group.role, group.hosts) == ("all", None)


def test_hosts_that_sum_are_as_sure_as_their_threads(gloo: ManyRanks) -> None:
    table = gloo.table("collectives")
    assert len(table) == 12
    assert {(row.backend, row.kind, row.ranks) for row in table} == {("gloo", "all-reduce", 2)}
    errors = {row.error_ns for row in gloo.table("clocks")}
    assert len(errors) == 1
    assert 100_000 < errors.pop() < 2_000_000
    first = next(iter(gloo.table("stragglers")))
    assert (first.rank, first.cause, first.steps) == (1, "host", 3)


def test_exposed_communication_is_divided_and_nothing_is_lost(
    mi300: ManyRanks, v100: ManyRanks, gloo: ManyRanks
) -> None:
    for run in (mi300, v100, gloo):
        for row in run.table("collective_ranks", by="rank"):
            (of_rank,) = (one for one in run.summaries if one.facts.rank == row.rank)
            whole = sum(of_rank.tables["exposed"].arrow["dur_ns"].to_pylist())
            assert row.exposed_wait_ns + row.exposed_transfer_ns == row.exposed_ns == whole
        for step in run.table("rank_steps"):
            assert step.own_ns + step.exposed_ns == step.step_ns
            assert step.exposed_unmatched_ns == 0
