"""Pages of Nsight Compute: real ones against a count of their own, and what is damaged or not to be read."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import Drawing
from tests.samples import DATA
from tests.trying import tries

import stepscope
from stepscope.errors import StepscopeError
from stepscope.findings.build import build_report
from stepscope.schema.kernel_names import function_of
from stepscope.sources._ncu_numbers import notation_of
from stepscope.store.trace import Trace

Find = Callable[[str], Path]
RAW = DATA / "ncu" / "h200_raw_page.csv"


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def slow(path: Path) -> dict[tuple[int, str], float]:
    """The figures of a page as CSV, by a plain loop."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("==")]
    names, *given = csv.reader(lines)
    found: dict[tuple[int, str], float] = {}
    for row in given:
        cells = dict(zip(names, row, strict=True))
        if not cells["ID"]:
            continue
        metrics = (
            {cells["Metric Name"]: cells["Metric Value"]}
            if "Metric Name" in cells
            else dict(list(cells.items())[11:])
        )
        for name, text in metrics.items():
            try:
                found[int(cells["ID"]), name] = float(text.replace(",", ""))
            except ValueError:
                continue
    return found


def ours(trace: Trace) -> dict[tuple[int, str], float]:
    found = rows(trace, "SELECT launch, metric, value FROM kernel_counters")
    return {(launch, metric): value for launch, metric, value in found}


def test_a_raw_page_has_what_a_plain_loop_reads() -> None:
    trace = stepscope.open(RAW)
    assert ours(trace) == slow(RAW)
    units = dict(rows(trace, "SELECT DISTINCT metric, unit FROM kernel_counters"))
    assert units["gpu__time_duration.sum"] == "ns"
    assert rows(trace, "SELECT count(DISTINCT launch), min(grid), min(block) FROM kernel_counters") == [
        (21, "[1, 528, 1]", "[128, 1, 1]")
    ]


@pytest.mark.parametrize("name, launches", [("h200_ncu_raw.csv", 21), ("ncu/a10g_details_page.csv", 9)])
def test_whole_pages_have_what_a_plain_loop_reads(name: str, launches: int, sample: Find) -> None:
    path = sample(name)
    found = ours(stepscope.open(path))
    assert found == slow(path)
    assert len({launch for launch, _ in found}) == launches


def continental(path: Path, between: str = ",") -> str:
    """The same page as a machine with points between thousands and decimal commas writes it."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("==")]
    names, units, *given = csv.reader(lines)
    swapped = str.maketrans(",.", ".,")
    turned = [names, units, *([*row[:11], *(cell.translate(swapped) for cell in row[11:])] for row in given)]
    out = io.StringIO()
    csv.writer(out, delimiter=between, quoting=csv.QUOTE_ALL if between == "," else 0).writerows(turned)
    return out.getvalue()


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_decimal_commas_are_told_from_points(between: str, tmp_path: Path) -> None:
    page = tmp_path / "german.csv"
    page.write_text("==PROF== Connected to process 7\n" + continental(RAW, between))
    assert ours(stepscope.open(page)) == slow(RAW)


def test_semicolons_and_points(tmp_path: Path) -> None:
    page = tmp_path / "english.csv"
    page.write_text(RAW.read_text().replace('","', '";"'))
    assert ours(stepscope.open(page)) == slow(RAW)


@pytest.mark.parametrize(
    "texts, semicolons, last, value",
    [
        (["1.234,5", "0,25"], False, "1.234", 1234.0),
        (["1,234.5", "0.25"], True, "1,234", 1234.0),
        (["1.234.567"], False, "12,5", 12.5),
        (["n/a", "1.234"], True, "12,5", 12.5),
        (["n/a", "1,234"], False, "12.5", 12.5),
        (["12,34", "0,5"], False, "1\u202f234,5", 1234.5),
        (["0.25"], False, "1'234.5", 1234.5),
        (["0.25"], False, "(!) nan", None),
    ],
)
def test_the_notation_of_numbers(texts: list[str], semicolons: bool, last: str, value: float | None) -> None:
    notation = notation_of(texts, semicolons=semicolons)
    assert notation.number(last) == value
    plain = notation.plain(pa.array([last]))
    assert [
        float(one) if there else None
        for one, there in zip(plain.to_pylist(), notation.are_numbers(plain).to_pylist(), strict=True)
    ] == [value]


def test_measured_flops_are_those_of_the_matrices() -> None:
    table = {row.kernel[:20]: row for row in stepscope.open(RAW).table("measured_kernels")}
    tensor, plain = table["nvjet_sm90_tst_256x1"], table["sm80_xmma_gemm_f32f3"]
    assert tensor.flops == 2 * 4096**3
    assert plain.flops == pytest.approx(2 * 4096**3, rel=1e-3)
    assert tensor.bound == "compute"
    norm = table["void at::<unnamed>::"]
    assert norm.bytes is not None
    assert norm.gb_per_s == pytest.approx(norm.bytes / norm.duration_ns)


def test_a_few_metrics_without_a_value_are_usual(tmp_path: Path) -> None:
    head, units, *launches = RAW.read_text().splitlines()
    page = tmp_path / "page.csv"
    lines = [head + ',"spilling"', units + ',""', *(f'{one},"no data"' for one in launches)]
    page.write_text("\n".join(lines))
    assert not stepscope.open(page).meta.damage


SUMMARY_OF = (
    "Process ID,Process Name,Kernel Name,Block Size,Grid Size,Device,CC,Invocations,Section Name,Metric Name,"
    "Metric Unit,Minimum,Maximum,Average"
)
SUMMARY = [
    ("void gemm(float)", "12", "Duration", "us", "900.00", "1,100.00", "1,000.12"),
    ("void gemm(float)", "12", "Memory Throughput", "%", "80.0", "90.0", "88.1"),
    ("void gemm(float)", "12", "DRAM Throughput", "%", "30.0", "50.0", "40.0"),
    ("void gemm(float)", "12", "Compute (SM) Throughput", "%", "30.0", "50.0", "35.0"),
    ("fill(int)", "6", "Duration", "us", "9.00", "11.00", "10.00"),
]


def summary() -> str:
    shape = ("(256, 1, 1)", "(128, 2, 1)", "0", "9.0")
    lines = [
        SUMMARY_OF.split(","),
        *(("7", "python", kernel, *shape, calls, "SOL", *rest) for kernel, calls, *rest in SUMMARY),
    ]
    return "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)


@pytest.mark.parametrize("before", ["", "==PROF== Connected to process 7 (python)\n", "\ufeff"])
def test_a_summary_as_csv_has_means_of_its_launches(tmp_path: Path, before: str) -> None:
    page = tmp_path / "summary.csv"
    page.write_text(before + summary(), encoding="utf-8")
    trace = stepscope.open(page)
    asked = (
        "SELECT launch, function, launches, value FROM kernel_counters WHERE metric = 'Duration' ORDER BY 1"
    )
    assert rows(trace, asked) == [(0, "gemm", 12, 1000.12), (1, "fill", 6, 10.0)]
    gemm = next(iter(trace.table("measured_kernels")))
    # Its caches are near their peak, its memory is not.
    assert (gemm.launches, gemm.duration_ns, gemm.memory_share, gemm.bound) == (12, 1_000_120, 0.4, "memory")


class TestText:
    def test_details(self, sample: Find) -> None:
        path = sample("ncu/heat_details.txt")
        trace = stepscope.open(path)
        text = path.read_text()
        heads = Counter(line.split("(")[0].strip() for line in text.splitlines() if ", Context 1" in line)
        counted = rows(trace, "SELECT function, count(DISTINCT launch) FROM kernel_counters GROUP BY ALL")
        assert dict(counted) == dict(heads)
        assert rows(
            trace,
            "SELECT value, unit, grid, block, stream FROM kernel_counters"
            " WHERE launch = 0 AND metric = 'Duration'",
        ) == [(95.9, "us", "[64, 64, 1]", "[16, 16, 1]", 7)]

    def test_decimal_commas(self, tmp_path: Path) -> None:
        """A machine set to German prints 95,90 us, which is not 9,590."""
        page = tmp_path / "page.txt"
        page.write_text(
            "==PROF== Connected to process 7 (python)\n[7] python@127.0.0.1\n"
            "  gemm(float *) (64, 64, 1)x(16, 16, 1), Context 1, Stream 7, Device 0, CC 8.6\n"
            "    Section: GPU Speed Of Light Throughput\n"
            "    ----------------------- ------------- ------------\n"
            "    Metric Name               Metric Unit Metric Value\n"
            "    ----------------------- ------------- ------------\n"
            "    Elapsed Cycles                  cycle      145.120\n"
            "    Duration                           us        95,90\n"
            "    ----------------------- ------------- ------------\n"
        )
        found = ours(stepscope.open(page))
        assert found == {(0, "Elapsed Cycles"): 145_120.0, (0, "Duration"): 95.9}

    def test_a_summary_has_means_of_its_launches(self, sample: Find) -> None:
        trace = stepscope.open(sample("ncu/a10g_print_summary.txt"))
        assert rows(
            trace,
            "SELECT launches, value FROM kernel_counters WHERE function = 'esmm_shmem_multi'"
            " AND metric = 'Elapsed Cycles'",
        ) == [(10, 3_797_418.4)]

    def test_a_failed_launch_is_said(self, sample: Find) -> None:
        trace = stepscope.open(sample("ncu/launch_failed.txt"))
        assert not trace.has("kernel_counters")
        reasons = {one.reason: one.count for one in trace.meta.damage}
        assert "Nsight Compute says: LaunchFailed" in reasons
        assert reasons["a metric of Nsight Compute without a value"] == 58
        assert "the launches failed" in build_report(trace).verdict.sentence


class TestJoined:
    def test_by_function_and_shape(self, tmp_path: Path) -> None:
        page = tmp_path / "a.csv"
        head = '"ID","Process ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum"\n'
        head += '"","","","","","us"\n'
        page.write_text(
            "==PROF== Connected to process 1\n"
            + head
            + '"0","1","void at::<unnamed>::norm<float, 0>(int, T1)","(32, 4, 1)","(8, 1, 1)","1,000"\n'
            + '"1","1","void at::norm<float, 0>(int, T1)","(32, 4, 1)","(9, 1, 1)","2"\n'
            + '"2","1","add","(64, 1, 1)","(7, 1, 1)","3"\n'
        )
        drawing = Drawing().mark(1, 0, 100)
        shapes: dict[str, Any] = {"grid": [8, 1, 1], "block": [32, 4, 1]}
        drawing.launch("cudaLaunchKernel", 12, 1, corr=7)
        drawing.kernel(
            "void at::native::(anonymous namespace)::norm<float>(int, float)", 20, 30, corr=7, **shapes
        )
        for corr, name in ((8, "void a::add<int>(int)"), (9, "void a::add<float>(float)")):
            drawing.launch("cudaLaunchKernel", 2 * corr, 1, corr=corr)
            drawing.kernel(name, 60 + corr, 1, corr=corr, grid=[7, 1, 1], block=[64, 1, 1])
        profile = drawing.write(tmp_path / "trace.json")
        table = stepscope.open(profile, also=[page]).table("measured_kernels")
        found = {row.grid: (row.joined_by, row.trace_ns, row.duration_ns) for row in table}
        assert found == {
            "[8, 1, 1]": ("function and shape", 30_000, 1_000_000.0),
            "[9, 1, 1]": ("nothing", 0, 2000.0),
            "[7, 1, 1]": ("ambiguous", 0, 3000.0),
        }
        assert table.notes[0].startswith("1 of 3 measured kernels are in the trace, with 94 %")
        assert table.notes[0].endswith("1 fit several kernels of it.")

    @pytest.mark.parametrize(
        "name, function",
        [
            ("void at::native::(anonymous namespace)::norm<float, float>(int, float const*)", "norm"),
            ("void at::<unnamed>::norm<float, 0>(int, T2)", "norm"),
            ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEEEEviT0_T1_", ""),
            ("_Z7my_kernPfi", "my_kern"),
            ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
            ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(cublasGemv)", "kernel"),
            ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ],
    )
    def test_functions_of_names(self, name: str, function: str) -> None:
        assert function_of(name) == (function or "vectorized_elementwise_kernel")

    def test_against_estimates_from_shapes(self, tmp_path: Path) -> None:
        page = tmp_path / "a.csv"
        page.write_text(
            '"ID","Process ID","Kernel Name","Block Size","Grid Size","dram__bytes.sum",'
            '"sm__sass_thread_inst_executed_op_ffma_pred_on.sum"\n"","","","","","byte","inst"\n'
            '"0","1","gemm","(32, 4, 1)","(8, 1, 1)","10,000","8,192"\n'
        )
        args = {"Input Dims": [[16, 16], [16, 32]], "Input type": ["float"] * 2, "Concrete Inputs": [""] * 2}
        drawing = Drawing().mark(1, 0, 100).op("aten::mm", 10, 20, args=args)
        drawing.launch("cudaLaunchKernel", 12, 1, corr=7)
        drawing.kernel("gemm", 40, 30, corr=7, grid=[8, 1, 1], block=[32, 4, 1])
        trace = stepscope.open(drawing.write(tmp_path / "trace.json"), also=[page])
        (row,) = trace.table("measured_rooflines")
        assert (row.op, row.flops, row.estimated_flops, row.flops_ratio) == ("aten::mm", 16384, 16384, 1.0)
        assert row.estimated_bytes == 4 * (16 * 16 + 16 * 32 + 16 * 32)
        assert row.bytes_ratio == 10_000 / (row.estimated_bytes or 1)


class TestRefused:
    def test_the_binary_report(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"NVR\x00\x02\x00\x00\x00abc")
        with pytest.raises(StepscopeError) as caught:
            stepscope.open(path)
        assert caught.value.hint == "export it: ncu --import a.csv --csv --page raw > kernels.csv"

    def test_a_page_without_kernels(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text("==PROF== Connected to process 1\n==PROF== Disconnected from process 1\n")
        with pytest.raises(StepscopeError, match="has no metrics of kernels"):
            stepscope.open(path)

    @pytest.mark.parametrize(
        "said",
        [
            "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters.",
            "The user does not have permission to profile on the target device.",
        ],
    )
    def test_counters_that_are_forbidden(self, said: str, tmp_path: Path) -> None:
        path = tmp_path / "kernels.csv"
        path.write_text(
            f"==PROF== Connected to process 9012 (/usr/bin/python3.11)\n==ERROR== {said}\n"
            "loss 0.42\n==PROF== Disconnected from process 9012\n"
        )
        with pytest.raises(StepscopeError, match="not allowed to read the GPU's counters") as caught:
            stepscope.open(path)
        hint = caught.value.hint or ""
        for fix in ("as root", "--cap-add SYS_ADMIN", "NVreg_RestrictProfilingToAdminUsers=0"):
            assert fix in hint

    def test_a_page_that_is_cut_or_mixed_with_output(self, tmp_path: Path) -> None:
        text = RAW.read_text().splitlines(keepends=True)
        path = tmp_path / "a.csv"
        path.write_text("".join([*text[:8], "loss 0.5\n", *text[8:12], text[12][:300]]))
        trace = stepscope.open(path)
        assert rows(trace, "SELECT count(DISTINCT launch) FROM kernel_counters")[0][0] >= 6
        assert any("no row of the page" in one.reason for one in trace.meta.damage)

    @settings(max_examples=tries(30, 1000))
    @given(st.binary(max_size=80), st.integers(0, 15_000), st.integers(0, 400))
    def test_damage_anywhere_raises_nothing_odd(self, noise: bytes, at: int, gone: int) -> None:
        import tempfile

        text = RAW.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.csv"
            path.write_bytes(text[:at] + noise + text[at + gone :])
            try:
                stepscope.open(path, store=Path(folder) / "store")
            except StepscopeError as error:
                assert error.hint  # noqa: PT017  # what is left may be no page any more
