"""What groups are for, how long stages wait, and who sends how much to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.runs.drawn import Op, Plan, Program, Talk, draw
from tests.runs.programs import data_parallel, experts, pipeline, sharded, tensor_data

from stepscope.runs.analyses.expert_loads import ExpertLoad
from stepscope.runs.analyses.traffic import Traffic
from stepscope.runs.many import ManyRanks
from stepscope.runs.summary import CollectiveCall, RankSummary
from stepscope.tables import Table


def _plainly_named(program: Program, names: dict[str, str]) -> Program:
    """The same with groups whose names say nothing, as torch numbers them."""

    def renamed(rank: int, step: int) -> Sequence[Op]:
        return [
            replace(op, group=replace(op.group, name=names.setdefault(op.group.name, str(len(names)))))
            if isinstance(op, Talk)
            else op
            for op in program(rank, step)
        ]

    return renamed


@pytest.mark.parametrize(
    "program, ranks, roles",
    [
        (data_parallel(4), 4, {"0,1,2,3": "data"}),
        (sharded(4), 4, {"0,1,2,3": "data"}),
        (
            tensor_data(4, 2, layers=6),
            8,
            {
                "0,1,2,3": "tensor",
                "4,5,6,7": "tensor",
                "0,4": "data",
                "1,5": "data",
                "2,6": "data",
                "3,7": "data",
            },
        ),
        (pipeline(4), 4, {"0,1,2,3": "pipeline"}),
        (experts(4, [1000, 2000, 3000, 4000]), 4, {"0,1,2,3": "expert"}),
    ],
)
def test_roles_follow_from_ranks_and_calls(program: Program, ranks: int, roles: dict[str, str]) -> None:
    named = _plainly_named(program, {})
    table = draw(Plan(named, ranks=ranks, steps=3)).run.table("process_groups")
    found = {row.ranks: row.role for row in table if row.bytes != 4 * 3 * ranks}
    assert found == roles
    assert all(row.why.endswith(".") and row.hosts == 1 for row in table)


@pytest.mark.parametrize("schedule, said", [("GPipe", "GPipe-like"), ("1F1B", "1F1B-like")])
def test_bubbles_are_those_of_the_schedule(schedule: str, said: str) -> None:
    stages, batches, work = 4, 8, 2_000_000
    program = pipeline(stages, micro_batches=batches, schedule=schedule, work_ns=work)
    table = list(draw(Plan(program, ranks=stages, steps=4)).run.table("pipeline_stages"))
    assert [(row.stage, row.ranks, row.micro_batches, row.schedule) for row in table] == [
        (stage, str(stage), batches, said) for stage in range(stages)
    ]
    # Each stage is idle while the pipeline fills and drains: (stages - 1) · (forward + backward).
    for row in table:
        assert row.bubble_ns == pytest.approx((stages - 1) * 3 * work, rel=0.08)
        assert row.bubble_share == pytest.approx(row.bubble_ns / row.step_ns)
        assert row.warm_up_ns == pytest.approx(row.stage * work, rel=0.06)
        assert row.drain_ns == pytest.approx(row.stage * 2 * work, rel=0.1)


def test_stages_are_in_the_order_of_the_forward_pass() -> None:
    program = pipeline(3, micro_batches=4)

    def turned(rank: int, step: int) -> Sequence[Op]:
        def other(one: int | None) -> int | None:
            return None if one is None else 2 - one

        return [
            replace(op, source=other(op.source), target=other(op.target)) if isinstance(op, Talk) else op
            for op in program(2 - rank, step)
        ]

    table = draw(Plan(turned, ranks=3, steps=3, noise=0.02)).run.table("pipeline_stages")
    assert [(row.stage, row.ranks) for row in table] == [(0, "2"), (1, "1"), (2, "0")]


def test_loads_of_experts() -> None:
    drawn = draw(Plan(experts(2, [300, 100], layers=1), ranks=2, steps=2))
    there, back = 2 * (300 + 100), 2 * 2 * 300
    assert list(drawn.run.table("expert_loads")) == [
        ExpertLoad(
            group="ep", rank=0, calls=4, sent_bytes=2 * (there + back), received_bytes=2 * (there + back),
            load_bytes=4 * back, share=0.75, imbalance=1.5,
        ),
        ExpertLoad(
            group="ep", rank=1, calls=4, sent_bytes=2 * (there + 400), received_bytes=2 * (there + 400),
            load_bytes=4 * 400, share=0.25, imbalance=1.5,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("missing", [(), (1,)])
def test_traffic_is_known_though_a_rank_is_missing(missing: tuple[int, ...]) -> None:
    drawn = draw(Plan(experts(2, [300, 100], layers=1), ranks=2, steps=2, missing=missing))
    rows = list(drawn.run.table("traffic"))
    whole = [
        Traffic("ep", "all-to-all", 0, 0, 2 * 2 * (300 + 300), 4),
        Traffic("ep", "all-to-all", 0, 1, 2 * 2 * (100 + 300), 4),
        Traffic("ep", "all-to-all", 1, 0, 2 * 2 * (300 + 100), 4),
        Traffic("ep", "all-to-all", 1, 1, 2 * 2 * (100 + 100), 4),
    ]
    assert rows == (whole[:3] if missing else whole)


def test_messages_count_once() -> None:
    rows = draw(Plan(pipeline(3, micro_batches=5), ranks=3, steps=2)).run.table("traffic")
    assert [(row.from_rank, row.to_rank, row.bytes, row.calls) for row in rows] == [
        (of, to, 10 * 8_000_000, 10) for of, to in ((0, 1), (1, 0), (1, 2), (2, 1))
    ]


def test_sizes_that_nobody_recorded_are_not_guessed() -> None:
    drawn = draw(Plan(experts(2, [300, 100], layers=1), ranks=2, steps=1))
    unsized = []
    for one in drawn.run.summaries:
        calls = one.tables["calls"].arrow
        for name in ("bytes", "in_bytes", "out_bytes"):
            place, column = calls.column_names.index(name), calls.schema.field(name)
            calls = calls.set_column(place, column, pa.nulls(len(calls), pa.int64()))
        unsized.append(RankSummary(one.facts, {**one.tables, "calls": Table(CollectiveCall, calls)}))
    run = ManyRanks("unsized", unsized, world_size=2)
    assert {row.bytes for row in run.table("traffic")} == {None}
    assert {(row.load_bytes, row.share, row.imbalance) for row in run.table("expert_loads")} == {
        (None, None, None)
    }
    assert {(row.bytes, row.bus_gb_per_s) for row in run.table("collectives")} == {(None, None)}
