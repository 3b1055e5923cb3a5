"""Rank files: whole, cut short, of somebody else, and hostile."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.rank_files import BASE, opened_with, pause, rank_document, sample

import stepscope
from stepscope.errors import StepscopeError
from stepscope.store.trace import Trace

DRAWN = (
    Drawing(base_ns=BASE)
    .mark(1, 0, 100)
    .op("aten::mm", 10, 20)
    .launch("cudaLaunchKernel", 12, 1, corr=7)
    .kernel("gemm", 20, 30, corr=7)
)


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def told(trace: Trace) -> Any:
    return trace.meta.sources[1].metadata["stepscope_rank"]


class TestAWholeOne:
    def test_samples_and_pauses_are_tables(self, tmp_path: Path) -> None:
        document = rank_document(gpu_samples=[sample(10), sample(60, "power cap", "idle", power_mw=700_000)])
        trace = opened_with(tmp_path, DRAWN, document)
        sql = (
            "SELECT start_ns, device, power_mw, utilization_share, reasons FROM gpu_samples ORDER BY start_ns"
        )
        assert rows(trace, sql) == [
            (BASE + 10_000, 0, 500_000, 0.98, ""),
            (BASE + 60_000, 0, 700_000, 0.98, "power cap, idle"),
        ]
        sql = (
            "SELECT start_ns, dur_ns, generation, collected, pid, tid, category, phase FROM collector_pauses"
        )
        assert rows(trace, sql) == [
            (BASE + 20_000, 5_000, 2, 10, "100", "garbage collector", "collector_pause", "X")
        ]

    def test_everything_else_is_metadata(self, tmp_path: Path) -> None:
        document = rank_document(unprofiled_step_ns={"median": 5, "low": 4, "high": 6, "steps": 40})
        trace = opened_with(tmp_path, DRAWN, document)
        kept = {
            key: value for key, value in document.items() if key not in ("gpu_samples", "collector_pauses")
        }
        assert told(trace) == kept
        assert trace.meta.sources[1].kind == "rank_file"
        assert trace.meta.damage == ()

    def test_the_trace_itself_stays_what_it_was(self, tmp_path: Path) -> None:
        with_it = opened_with(tmp_path, DRAWN, rank_document())
        alone = opened_with(tmp_path, DRAWN, None, "alone")
        for table in ("ops", "launches", "device_work", "annotations", "steps", "gaps", "host_tree"):
            sql = f"FROM {table} ORDER BY ALL"
            assert rows(with_it, sql) == rows(alone, sql)

    def test_packed(self, tmp_path: Path) -> None:
        file = tmp_path / "rank0.json.gz"
        file.write_bytes(gzip.compress(json.dumps(rank_document(), indent=1).encode()))
        trace = stepscope.open(DRAWN.write(tmp_path / "a.json"), also=[file], store=tmp_path / "s")
        assert trace.meta.rows["gpu_samples"] == 2

    def test_without_samples_the_tables_are_empty(self, tmp_path: Path) -> None:
        document = {"schema": "stepscope.rank/1"}
        trace = opened_with(tmp_path, DRAWN, document)
        assert not trace.has("gpu_samples")
        assert rows(trace, "SELECT count(*) FROM collector_pauses") == [(0,)]
        assert trace.meta.damage == ()


class TestNotOurs:
    def test_a_trace_has_to_come_first(self, tmp_path: Path) -> None:
        (tmp_path / "rank0.json").write_text(json.dumps(rank_document()))
        with pytest.raises(StepscopeError, match="is no trace") as found:
            stepscope.open(tmp_path / "rank0.json", store=tmp_path / "s")
        assert "--also" in found.value.hint

    def test_another_schema_is_not_meant(self, tmp_path: Path) -> None:
        with pytest.raises(StepscopeError, match="cannot be added"):
            opened_with(tmp_path, DRAWN, rank_document(schema="stepscope.rank/2"))

    def test_another_rank_is_refused(self, tmp_path: Path) -> None:
        drawing = (
            Drawing(base_ns=BASE).mark(1, 0, 100).op("aten::mm", 10, 20).meta(distributedInfo={"rank": 3})
        )
        with pytest.raises(StepscopeError, match=r"is of rank 0, .* of rank 3"):
            opened_with(tmp_path, drawing, rank_document())

    def test_a_second_one_is_refused(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / f"{name}.json").write_text(json.dumps(rank_document()))
        with pytest.raises(StepscopeError, match="gpu_samples"):
            stepscope.open(
                DRAWN.write(tmp_path / "t.json"),
                also=[tmp_path / "a.json", tmp_path / "b.json"],
                store=tmp_path / "s",
            )


class TestDamaged:
    @pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
    def test_cut_short_the_trace_still_opens_and_says_so(self, tmp_path: Path, share: float) -> None:
        text = json.dumps(rank_document())
        (tmp_path / "rank.json").write_text(text[: int(len(text) * share)])
        trace = stepscope.open(
            DRAWN.write(tmp_path / "a.json"), also=[tmp_path / "rank.json"], store=tmp_path / "s"
        )
        (damage,) = trace.meta.damage
        assert "ends too early" in damage.reason
        assert rows(trace, "SELECT count(*) FROM kernels") == [(1,)]
        assert "lost bytes" in [row.what for row in trace.table("trust")]

    @pytest.mark.parametrize(
        "text",
        [
            '{"schema": "stepscope.rank/1", "x": ' + "[" * 200_000,
            '{"schema": "stepscope.rank/1", "x": NaN}',
            '{"schema": "stepscope.rank/1", "x": Infinity}',
            '{"schema": "stepscope.rank/1", "x": ' + "9" * 10_000 + "}",
            '{"schema": "stepscope.rank/1"} trailing',
        ],
        ids=["deep", "nan", "infinite", "long number", "trailing"],
    )
    def test_what_is_no_json_is_damage(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "rank.json").write_text(text)
        trace = stepscope.open(
            DRAWN.write(tmp_path / "a.json"), also=[tmp_path / "rank.json"], store=tmp_path / "s"
        )
        assert len(trace.meta.damage) == 1
        assert told(trace) == {}

    def test_rows_that_cannot_be_are_counted(self, tmp_path: Path) -> None:
        odd = [
            1,
            None,
            {},
            sample(0, device="0"),
            sample(0, device=-1),
            sample(0, epoch_ns=1 << 70),
            sample(0, epoch_ns=True),
            sample(0, epoch_ns=1.5),
        ]
        pauses = [pause(0, 5), {**pause(0, 5), "dur_ns": -5}, {"epoch_ns": 3}, "x"]
        trace = opened_with(
            tmp_path, DRAWN, rank_document(gpu_samples=[*odd, sample(1)], collector_pauses=pauses)
        )
        assert (trace.meta.rows["gpu_samples"], trace.meta.rows["collector_pauses"]) == (1, 1)
        assert [(one.count, "cannot be" in one.reason) for one in trace.meta.damage] == [(11, True)]

    def test_values_that_cannot_be_are_absent(self, tmp_path: Path) -> None:
        odd = sample(
            0,
            "<b>",
            "A",
            sm_clock_mhz=-5,
            power_mw="much",
            utilization_share=7,
            temperature_c=1 << 40,
            link_width=None,
        )
        trace = opened_with(tmp_path, DRAWN, rank_document(gpu_samples=[odd]))
        columns = "sm_clock_mhz, power_mw, utilization_share, temperature_c, link_width, reasons"
        assert rows(trace, f"SELECT {columns} FROM gpu_samples") == [(None,) * 5 + ("",)]

    @pytest.mark.parametrize("table", ["gpu_samples", "collector_pauses"])
    @pytest.mark.parametrize("given", ["text", {}, 5, None, True])
    def test_a_list_that_is_none(self, tmp_path: Path, table: str, given: Any) -> None:
        trace = opened_with(tmp_path, DRAWN, rank_document(**{table: given}))
        assert not trace.has(table)
        assert [one.count for one in trace.meta.damage] == [1]

    def test_metadata_has_bounds(self, tmp_path: Path) -> None:
        deep: Any = 1
        for _ in range(50):
            deep = {"a": deep}
        document = rank_document(
            deep=deep, long="x" * 10_000, many=list(range(100_000)), huge=1 << 100, lone="\ud800", odd=[[]]
        )
        trace = opened_with(tmp_path, DRAWN, document)
        kept = told(trace)
        assert len(json.dumps(kept)) < 400_000
        assert len(kept["long"]) == 2_000
        assert "huge" not in kept
        assert len(kept["many"]) < 20_000
        kept["lone"].encode()
        (damage,) = trace.meta.damage
        assert damage.count > 80_000
