"""Rules about runs: each names the drawn fault, stays silent without it, and promises what a fix gains."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import mean

import pyarrow as pa
import pytest
from tests.runs.drawn import Drawn, Fault, Group, Join, Op, Plan, Program, Talk, Work, draw
from tests.runs.programs import data_parallel, experts, pipeline, sharded

from stepscope.findings import Advice, Finding
from stepscope.runs.analyses.collectives import Collective
from stepscope.runs.judging import JudgedRun, judged_run
from stepscope.runs.many import ManyRanks
from stepscope.runs.mean_step import RunFacts, run_facts_of, run_mean_step_of
from stepscope.runs.rules.gloo_for_device import gloo_for_device
from stepscope.runs.rules.slow_link import slow_link
from stepscope.runs.summary import WorkShape
from stepscope.tables import Table

pytestmark = pytest.mark.slow

MS = 1_000_000
RANKS, STEPS = 4, 6
RULE_OF = {
    "input": "input-imbalance",
    "more work": "straggling-rank",
    "slower device": "slower-device",
    "host": "host-bound-rank",
    "memory": "straggling-rank",
    "collector": "unsynchronised-collector",
    "compiling": "straggling-rank",
}


def plan(program: Program, *faults: Fault, **told: object) -> Plan:
    given = {"ranks": RANKS, "steps": STEPS, "hosts": 2, "offsets_ns": (0, 3 * MS), "jitter_ns": 2000, **told}
    return Plan(program, faults=faults, **given)  # type: ignore[arg-type]


def true_step_ns(drawn: Drawn) -> float:
    """The run's mean step by the true clock."""
    steps = {step for _, step in drawn.truth.steps}
    lengths = []
    for step in steps:
        ends = [ends for (_, one), ends in drawn.truth.steps.items() if one == step]
        lengths.append(max(end for _, end in ends) - min(start for start, _ in ends))
    return mean(lengths)


def only(judged: JudgedRun, name: str) -> Finding:
    (found,) = [one for one in judged.findings if one.id == name]
    return found


@cache
def clean() -> tuple[float, JudgedRun]:
    drawn = draw(plan(data_parallel(RANKS)))
    return true_step_ns(drawn), judged_run(drawn.run)


def test_a_run_without_faults_has_no_findings() -> None:
    _, judged = clean()
    assert judged.findings == ()
    assert judged.not_run == ()
    assert judged.mean_step.simulator.is_usable


@pytest.mark.parametrize("cause", RULE_OF)
def test_the_late_rank_its_cause_and_its_gain(cause: str) -> None:
    drawn = draw(plan(data_parallel(RANKS), Fault(2, cause, 5 * MS)))
    judged = judged_run(drawn.run)
    assert judged.not_run == ()
    assert [one.id for one in judged.findings] == [RULE_OF[cause]]
    (found,) = judged.findings
    assert found.advice.evidence["rank"] == 2
    assert found.advice.evidence["ranks"] == "2"
    gained = 1 - clean()[0] / true_step_ns(drawn)
    assert found.gain.low_share <= gained <= found.gain.high_share
    assert found.gain.low_share > 0.5 * gained
    assert found.gain.high_share < 1.5 * gained
    low, high = found.advice.saving.waited_ns
    assert 0 <= low <= high <= judged.mean_step.step_ns


@pytest.mark.parametrize("cause", RULE_OF)
def test_a_rank_that_is_hardly_late_is_left_alone(cause: str) -> None:
    assert judged_run(draw(plan(data_parallel(RANKS), Fault(2, cause, MS // 20))).run).findings == ()


def test_what_all_ranks_have_alike_makes_none_late() -> None:
    faults = [Fault(rank, "input", 5 * MS) for rank in range(RANKS)]
    assert judged_run(draw(plan(data_parallel(RANKS), *faults)).run).findings == ()


def test_two_late_ranks_are_named_together() -> None:
    faults = [Fault(rank, "input", 5 * MS) for rank in (1, 3)]
    drawn = draw(plan(data_parallel(8), *faults, ranks=8))
    found = only(judged_run(drawn.run), "input-imbalance")
    assert found.advice.evidence["ranks"] in ("1,3", "3,1")
    without = true_step_ns(draw(plan(data_parallel(8), ranks=8)))
    assert found.gain.low_share <= 1 - without / true_step_ns(drawn) <= found.gain.high_share


def test_pauses_of_different_ranks_in_different_steps() -> None:
    faults = [Fault(step % RANKS, "collector", 5 * MS, (step,)) for step in range(STEPS)]
    drawn = draw(plan(data_parallel(RANKS), *faults))
    found = only(judged_run(drawn.run), "unsynchronised-collector")
    assert found.advice.evidence["ranks"] == "0,1,2,3"
    # Ranks 0 and 1 pause twice: if all collect together, two pauses of six are left.
    assert found.advice.evidence["apart_ns"] == pytest.approx(5 * MS * 4 / 6, rel=0.02)
    gained = 1 - clean()[0] / true_step_ns(drawn)
    assert gained / 2 < found.gain.low_share <= gained <= found.gain.high_share


def test_pauses_of_all_ranks_in_one_step_are_no_matter_of_ranks() -> None:
    faults = [Fault(rank, "collector", 2 * MS, (3,)) for rank in range(RANKS)]
    found = only(judged_run(draw(plan(data_parallel(RANKS), *faults)).run), "unsynchronised-collector")
    assert found.advice.evidence["apart_ns"] == pytest.approx(0, abs=1000)
    assert found.gain.low_share < 0.001
    assert found.severity == "low"


def test_a_rank_that_saves_alone_in_one_step() -> None:
    drawn = draw(plan(data_parallel(RANKS), Fault(0, "host", 50 * MS, (3,))))
    judged = judged_run(drawn.run)
    found = only(judged, "lone-checkpoint")
    assert "host-bound-rank" not in [one.id for one in judged.findings]
    assert found.advice.evidence["long_steps"] == 1
    assert found.advice.evidence["steps_numbers"] == "3"
    assert (found.gain.low_share, found.advice.certainty) == (0, "possible")
    assert 1 - clean()[0] / true_step_ns(drawn) <= found.gain.high_share


def test_transfers_that_nothing_hides() -> None:
    judged = judged_run(draw(plan(sharded(RANKS), hosts=1, offsets_ns=())).run)
    found = only(judged, "exposed-transfer")
    assert found.advice.evidence["collective"] == "all-gather"
    assert "set_modules_to_forward_prefetch" in found.advice.fix
    exposed = found.advice.evidence["exposed_transfer_ns"]
    assert isinstance(exposed, int)
    assert found.advice.saving.waited_ns[1] <= exposed + 1
    assert found.gain.low_share == 0


WORLD = Group("world", tuple(range(RANKS)))


def many_small(rank: int, step: int) -> list[Op]:
    """Forty all-reduces of a kilobyte each with nothing beside them."""
    return [op for _ in range(40) for op in (Work(50_000), Talk("all-reduce", WORLD, 1024))]


def test_many_small_collectives() -> None:
    judged = judged_run(draw(plan(many_small)).run)
    found = only(judged, "small-collectives")
    assert found.advice.evidence["small_per_step"] == 40
    exposed = found.advice.evidence["exposed_transfer_ns"]
    assert isinstance(exposed, int)
    assert found.advice.saving.waited_ns == pytest.approx((0, exposed * 39 / 40), abs=2)


def hidden(rank: int, step: int) -> list[Op]:
    """The same, but each runs beside compute."""
    parts: list[Op] = []
    for place in range(40):
        tag = f"{step}/{place}"
        parts += [Talk("all-reduce", WORLD, 1024, wait=False, tag=tag), Work(200_000), Join(tag)]
    return parts


def test_small_collectives_that_are_hidden_cost_nothing() -> None:
    assert judged_run(draw(plan(hidden)).run).findings == ()


def large(rank: int, step: int) -> list[Op]:
    """All-reduces of 64 MiB with nothing beside them."""
    return [Work(2 * MS), Talk("all-reduce", WORLD, 64 << 20)]


def tables(run: ManyRanks, **columns: object) -> dict[str, Table[object]]:
    """The tables of collectives of a run, with a column of them set to one value."""
    found: dict[str, Table[object]] = {}
    for name in ("collective_ranks", "collectives"):
        table = run.table(name)
        arrow = table.arrow
        for column, value in columns.items():
            if column in arrow.column_names:
                place = arrow.schema.get_field_index(column)
                arrow = arrow.set_column(place, column, pa.array([value] * arrow.num_rows))
        found[name] = Table(Collective if name == "collectives" else table.row, arrow)
    return found


def test_gloo_between_devices() -> None:
    run = draw(plan(large, hosts=1, offsets_ns=())).run
    step, facts = run_mean_step_of(run), run_facts_of(run)
    given = tables(run, backend="gloo")
    found = gloo_for_device(step, facts, given["collective_ranks"], given["collectives"])
    assert isinstance(found, Advice)
    low, high = found.saving.waited_ns
    assert low == pytest.approx(0.75 * high)
    exposed = found.evidence["exposed_transfer_ns"]
    assert isinstance(exposed, int)
    assert high <= exposed + 1 <= step.step_ns
    far = RunFacts(facts.ranks, facts.world_size, ("a", "b"), facts.devices, ())
    apart = gloo_for_device(step, far, given["collective_ranks"], given["collectives"])
    assert apart is not None
    assert apart.saving.waited_ns[0] == 0
    on_hosts = RunFacts(facts.ranks, facts.world_size, facts.hosts, (), ())
    assert gloo_for_device(step, on_hosts, given["collective_ranks"], given["collectives"]) is None
    plain = tables(run)
    assert gloo_for_device(step, facts, plain["collective_ranks"], plain["collectives"]) is None


def test_a_link_far_below_its_peak() -> None:
    run = draw(plan(large, hosts=1, offsets_ns=())).run
    step = run_mean_step_of(run)
    rows = run.table("collectives", by="size")
    (row,) = rows
    assert row.link_share is not None
    found = slow_link(step, rows, most_link_share=1.0)
    assert found is not None
    assert found.evidence["link_share"] == row.link_share
    assert found.saving.waited_ns[0] == 0
    assert found.saving.waited_ns[1] <= (1 - row.link_share) * row.transfer_ns / STEPS
    assert slow_link(step, rows, most_link_share=0.01) is None


def test_a_group_whose_link_is_slower_than_anothers() -> None:
    first, second = Group("a", (0, 1)), Group("b", (2, 3))

    def program(rank: int, step: int) -> list[Op]:
        group, ns = (first, 2 * MS) if rank < 2 else (second, 10 * MS)
        return [
            Work(2 * MS),
            Talk("all-reduce", group, 64 << 20, transfer_ns=ns),
            Talk("all-reduce", WORLD, 1024),
        ]

    run = draw(plan(program, hosts=4, offsets_ns=())).run
    found = slow_link(run_mean_step_of(run), run.table("collectives", by="size"))
    assert found is not None
    assert (found.evidence["group"], found.evidence["group_ranks"]) == ("b", "2,3")
    assert "a reaches" in found.because


def test_bubbles_of_a_pipeline() -> None:
    judged = judged_run(draw(plan(pipeline(RANKS))).run)
    found = only(judged, "pipeline-bubbles")
    assert found.advice.evidence["micro_batches"] == 4
    assert found.advice.saving.waited_ns[1] <= found.advice.evidence["least_bubble_ns"]  # type: ignore[operator]
    assert 0 == found.gain.low_share < found.gain.high_share <= 3 / 7 + 0.02
    fewer = judged_run(draw(plan(pipeline(2, micro_batches=32), ranks=2)).run)
    assert "pipeline-bubbles" not in [one.id for one in fewer.findings]


def test_experts_with_uneven_loads() -> None:
    drawn = draw(plan(experts(RANKS, [10_000, 40_000, 10_000, 5_000])))
    judged = judged_run(drawn.run)
    found = only(judged, "expert-imbalance")
    assert found.advice.evidence["rank"] == 1
    assert [(one.id, one.by) for one in judged.replaced] == [("straggling-rank", "expert-imbalance")]
    even = draw(plan(experts(RANKS, [16_250] * RANKS)))
    gained = 1 - true_step_ns(even) / true_step_ns(drawn)
    assert found.gain.low_share <= gained <= found.gain.high_share
    assert "expert-imbalance" not in [one.id for one in judged_run(even.run).findings]


def test_without_a_common_collective_nothing_is_promised_and_nothing_crashes() -> None:
    judged = judged_run(draw(plan(lambda rank, step: [Work(MS)])).run)
    assert judged.findings == ()
    assert not any(one.crashed for one in judged.not_run)
    assert judged.mean_step.simulator.reason == "no two ranks have collectives in common"


def test_a_rule_that_crashes_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw(plan(data_parallel(RANKS), Fault(2, "input", 5 * MS)))
    honest = ManyRanks.table

    def broken(run: ManyRanks, name: str, /, **options: object) -> Table[object]:
        if name == "rank_steps":
            raise ValueError("no such table")
        return honest(run, name, **options)

    monkeypatch.setattr(ManyRanks, "table", broken)
    judged = judged_run(drawn.run)
    assert "input-imbalance" in [one.id for one in judged.findings]
    assert {one.id for one in judged.not_run if one.crashed} >= {
        "unsynchronised-collector",
        "lone-checkpoint",
    }


def slowed(beside_ns: int) -> ManyRanks:
    """A run with kernels that take so long beside collectives, and 1 ms alone."""
    run = draw(plan(data_parallel(RANKS))).run
    work = [WorkShape("gemm", "[8,1,1] [32,1,1]", 120, 0, 60, 60 * MS, 60, 60 * beside_ns)]
    summaries = [
        replace(one, tables={**one.tables, "work": Table.of(WorkShape, work)}) for one in run.summaries
    ]
    return ManyRanks("drawn", summaries, world_size=RANKS)


def test_overlap_that_costs_more_than_it_hides() -> None:
    found = only(judged_run(slowed(2 * MS)), "harmful-overlap")
    assert found.advice.evidence["lost_ns"] == 60 * MS // STEPS
    assert "1.00 ms alone, 2.00 ms beside them" in found.advice.because
    assert 0 < found.gain.high_ns <= 60 * MS // STEPS


def test_overlap_that_costs_little_is_not_told() -> None:
    assert "harmful_overlap" not in judged_run(slowed(MS + 1000)).advices
    assert "harmful_overlap" not in clean()[1].advices
