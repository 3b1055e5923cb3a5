"""Single collectives of one rank: group, sequence, sizes, peers, arrival; by whatever the profile says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import open_shared

import stepscope
from stepscope.analyses.collective_calls import CollectiveCall, collective_calls
from stepscope.analyses.collective_kinds import collective_kinds
from stepscope.analyses.exposed_parts import exposed_parts
from stepscope.analyses.steps import steps
from stepscope.costs.collectives import ranks_in, ranks_text
from stepscope.store.trace import Trace

GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
RANKS = ["ranks/ddp_mi300_4/rank0.json.gz", "ranks/ddp_mi300_4/rank3.json.gz"]
REAL = [*RANKS, "ranks/hta_rank1_of_2_v100.json.gz", "h200_ddp_gloo_rank0.pt.trace.json.gz"]


def opened(drawing: Drawing, folder: Path) -> Trace:
    folder.mkdir(exist_ok=True)
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def calls(drawing: Drawing, folder: Path) -> list[CollectiveCall]:
    return list(collective_calls(opened(drawing, folder)))


def told(collective: str, elements: int, out: int | None = None, **more: Any) -> dict[str, Any]:
    """The arguments of a kernel of NCCL."""
    args: dict[str, Any] = {"Collective name": collective, "In msg nelems": elements}
    args |= {"Out msg nelems": elements if out is None else out, "dtype": "BFloat16", "Group size": 2}
    return args | {"Process Group Name": "dp", "Process Group Ranks": "[1, 3]", **more}


def test_the_arguments_of_a_kernel_say_everything(tmp_path: Path) -> None:
    drawing = Drawing().mark(4, 0, 100).launch("cudaLaunchKernel", 5, 2, corr=1)
    drawing.kernel(GENERIC, 10, 20, corr=1, stream=9, args=told("allreduce", 1000, Seq=17))
    drawing.kernel("gemm", 25, 10).kernel(GENERIC, 200, 5, stream=9, args=told("_allgather_base", 10, 20))
    first, second = calls(drawing, tmp_path)
    assert first == CollectiveCall(
        call=0, step=4, kind="all-reduce", backend="device", group="dp", group_ranks="1,3", group_size=2,
        sequence=17, dtype="bf16", bytes=2000, in_bytes=2000, out_bytes=2000, in_splits=None,
        out_splits=None, source=None, target=None, stream="0/9", asked_ns=5_000, start_ns=10_000,
        dur_ns=20_000, exposed_ns=15_000,
    )  # fmt: skip
    assert second == CollectiveCall(
        call=1, step=None, kind="all-gather", backend="device", group="dp", group_ranks="1,3", group_size=2,
        sequence=None, dtype="bf16", bytes=40, in_bytes=20, out_bytes=40, in_splits=None, out_splits=None,
        source=None, target=None, stream="0/9", asked_ns=None, start_ns=200_000, dur_ns=5_000, exposed_ns=0,
    )  # fmt: skip


def test_sends_and_receives_have_a_peer_and_one_side(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100)
    drawing.kernel(SEND, 0, 5, args=told("send", 8, **{"Dst Rank": 3}))
    drawing.kernel(SEND, 10, 5, args=told("recv", 8, **{"Src Rank": 1}))
    drawing.kernel(SEND, 20, 5, args=told("recv", 8, Rank=1))  # the second of the group is rank 3
    drawing.kernel(GENERIC, 30, 5, args=told("broadcast", 8, Rank=0))
    drawing.kernel(GENERIC, 40, 5, args=told("reduce", 8, Rank=1))
    found = [
        (one.kind, one.source, one.target, one.in_bytes, one.out_bytes) for one in calls(drawing, tmp_path)
    ]
    assert found == [
        ("send-receive", None, 3, 16, 0),
        ("send-receive", 1, None, 0, 16),
        ("send-receive", 3, None, 0, 16),
        ("broadcast", 1, None, 16, 16),
        ("reduce", None, 3, 16, 16),
    ]


def test_uneven_parts(tmp_path: Path) -> None:
    uneven = {"In split size": "[3, 5]", "Out split size": "[8, 1]"}
    drawing = Drawing().mark(1, 0, 100).kernel(SEND, 0, 5, args=told("all_to_allv", 8, 9, **uneven))
    cut_short = {"In split size": "[3, 5, ...]", "Out split size": "[]"}
    drawing.kernel(SEND, 10, 5, args=told("all_to_allv", 8, 9, **cut_short))
    found = [
        (one.kind, one.in_splits, one.out_splits, one.in_bytes, one.out_bytes)
        for one in calls(drawing, tmp_path)
    ]
    assert found == [("all-to-all", "3,5", "8,1", 16, 18), ("all-to-all", None, None, 16, 18)]


def inside(given: list[str] | None, **args: Any) -> Drawing:
    """A kernel without arguments, launched inside the operator that torch puts around a collective."""
    drawing = Drawing().mark(1, 0, 100).op("c10d::allreduce_", 10, 20)
    drawing.op("record_param_comms", 11, 15, args={"Concrete Inputs": given, **args})
    drawing.annotation("nccl:all_reduce", 12, 10, args={"Input Dims": [[50]], "Input type": ["float"]})
    return drawing.launch("cudaLaunchKernel", 14, 2, corr=1).kernel(GENERIC, 20, 9, corr=1)


def test_the_operator_around_the_launch_tells_by_place(tmp_path: Path) -> None:
    """Tensors, sequence number, group, rank, collective, sizes in and out, first rank, distance, size."""
    given = ["", "66", "", "0", "", "[]", "[]", "2", "4", "3"]
    (call,) = calls(inside(given), tmp_path)
    assert (call.kind, call.sequence, call.group_size, call.bytes) == ("all-reduce", 66, 3, 200)
    # Where the first rank and the distance are given and no name, other groups may have the same ranks.
    assert (call.group, call.group_ranks) == (None, None)
    (named,) = calls(inside(given, **{"Process Group Name": "tp"}), tmp_path / "named")
    assert (named.group, named.group_ranks) == ("tp", "2,6,10")
    (older,) = calls(inside(None), tmp_path / "older")
    assert (older.sequence, older.group_size, older.kind) == (None, None, "all-reduce")
    (newer,) = calls(inside(["", "", "", "0"], Seq=5), tmp_path / "newer")
    assert newer.sequence == 5


def test_the_header_names_the_only_group(tmp_path: Path) -> None:
    def drawn(*groups: dict[str, Any]) -> Drawing:
        drawing = Drawing().mark(1, 0, 100).annotation("gloo:all_reduce", 10, 20, thread=5)
        info = {"backend": "gloo", "rank": 1, "world_size": 2, "pg_config": list(groups)}
        return drawing.meta(distributedInfo=info)

    one = {"pg_name": "0", "ranks": [0, 1]}
    (call,) = calls(drawn(one), tmp_path)
    assert (call.backend, call.group, call.group_ranks, call.group_size) == ("gloo", "0", "0,1", 2)
    (call,) = calls(drawn(one, {"pg_name": "1", "ranks": [0]}), tmp_path / "two")
    assert (call.group, call.group_ranks, call.group_size) == (None, None, None)


def test_ranks_of_a_group_may_stand_in_the_header(tmp_path: Path) -> None:
    """torch cuts long lists short in arguments."""
    members = list(range(0, 1024, 8))
    cut: dict[str, Any] = {"Process Group Ranks": "[0, 8, 16, ...]", "Group size": 128}
    drawing = Drawing().mark(1, 0, 100).kernel(GENERIC, 0, 5, args=told("allreduce", 8, **cut))
    info = {"rank": 0, "world_size": 1024}
    groups = [{"pg_name": "dp", "ranks": members}, {"pg_name": "tp", "ranks": [0, 1]}]
    drawing.meta(distributedInfo={**info, "pg_config": groups})
    (call,) = calls(drawing, tmp_path)
    assert (call.group_ranks, call.group_size) == ("0-1016:8", 128)
    assert ranks_in(call.group_ranks or "") == tuple(members)


@pytest.mark.parametrize(
    "ranks,text",
    [
        ((0,), "0"), ((3, 1), "3,1"), (range(64), ",".join(map(str, range(64)))), (range(65), "0-64"),
        (range(5, 400, 5), "5-395:5"), ((*range(70), 90), ",".join(map(str, (*range(70), 90)))),
    ],
)  # fmt: skip
def test_ranks_as_text(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text
    assert ranks_in(text) == tuple(ranks)


def test_a_text_of_too_many_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="too many"):
        ranks_in("0-999999999")


def test_without_any(tmp_path: Path) -> None:
    table = collective_calls(opened(Drawing().mark(1, 0, 100).kernel("gemm", 0, 10), tmp_path))
    assert (len(table), table.notes) == (0, ("No collectives in this profile.",))


# ---------------------------------------------------------------- real profiles


@pytest.mark.slow
@pytest.mark.parametrize("rank,kernel_ns", list(enumerate([64_471_378, 46_984_875, 49_845_198, 3_591_089])))
def test_a_real_run_on_four_devices(sample: Callable[[str], Path], rank: int, kernel_ns: int) -> None:
    table = list(collective_calls(open_shared(sample(f"ranks/ddp_mi300_4/rank{rank}.json.gz"))))
    assert sum(one.dur_ns for one in table) == kernel_ns
    assert [one.kind for one in table].count("broadcast") == 6
    assert [one.kind for one in table].count("all-reduce") == 15
    # The kernels have no sequence number; the operators around their launches have one.
    assert [one.sequence for one in table] == list(range(66, 87))
    assert {(one.group, one.group_ranks, one.group_size) for one in table} == {("0", "0,1,2,3", 4)}
    assert {one.source for one in table if one.kind == "broadcast"} == {0}
    assert [one.step for one in table] == [9] * 7 + [10] * 7 + [11] * 7
    assert table[6].in_bytes == table[6].bytes == table[6].out_bytes


@pytest.mark.slow
@pytest.mark.parametrize("worker", range(8))
def test_a_real_run_without_groups(sample: Callable[[str], Path], worker: int) -> None:
    (file,) = sample("ranks/dlrm_v100_8").glob(f"worker{worker}_*")
    trace = open_shared(file)
    kernels = trace.rows("SELECT count(*) AS n FROM kernels")[0]["n"]
    assert kernels == [245, 310, 246, 315, 251, 245, 246, 246][worker]
    table = list(collective_calls(trace))
    assert [one.kind for one in table].count("all-to-all") == 5
    assert [one.kind for one in table].count("all-reduce") == len(table) - 5 == 3
    assert {(one.group, one.group_ranks, one.sequence) for one in table} == {(None, None, None)}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_what_is_exposed_is_the_communication_of_the_steps(sample: Callable[[str], Path], name: str) -> None:
    trace = open_shared(sample(name))
    parts = list(exposed_parts(trace))
    by_step = {row.step: row.communication_ns for row in steps(trace, by="any")}
    found = {step: sum(one.dur_ns for one in parts if one.step == step) for step in by_step}
    assert found == by_step
    table = list(collective_calls(trace))
    assert {one.call: one.exposed_ns for one in table if one.exposed_ns} == {
        call: sum(one.dur_ns for one in parts if one.call == call) for call in {one.call for one in parts}
    }
    assert all(0 <= one.exposed_ns <= one.dur_ns for one in table)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_calls_are_those_that_kinds_sum_up(sample: Callable[[str], Path], name: str) -> None:
    trace = open_shared(sample(name))
    inside = [one for one in collective_calls(trace) if one.step is not None]
    kinds = list(collective_kinds(trace))
    for kind in {row.kind for row in kinds}:
        rows, ours = [row for row in kinds if row.kind == kind], [one for one in inside if one.kind == kind]
        assert sum(row.calls for row in rows) == len(ours)
        assert sum(row.total_ns for row in rows) == sum(one.dur_ns for one in ours)
        assert sum(row.bytes or 0 for row in rows) == sum(one.bytes or 0 for one in ours)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_over_gloo(sample: Callable[[str], Path], rank: int) -> None:
    table = list(collective_calls(open_shared(sample(f"h200_ddp_gloo_rank{rank}.pt.trace.json.gz"))))
    assert [one.kind for one in table] == ["all-reduce"] * 12
    assert {(one.backend, one.group, one.group_ranks) for one in table} == {("gloo", "0", "0,1")}
    assert sum(one.dur_ns for one in table) == (550_328_487, 376_489_546)[rank]
    assert [one.call for one in table] == list(range(12))
