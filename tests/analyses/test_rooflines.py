"""What was computed and moved, against peaks: drawn traces by hand, and models whose FLOPs are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.commands import stepscope as run
from tests.drawing import Drawing
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope.analyses.rooflines import Roofline, rooflines
from stepscope.errors import StepscopeError
from stepscope.store.trace import Trace
from stepscope.tables import Table

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84_900_000_000, "numSms": 132}
BF16 = "c10::BFloat16"
BF16_GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, float*>"


def shaped(*dims: list[int], kind: str = "float") -> dict[str, Any]:
    return {"Input Dims": list(dims), "Input type": [kind] * len(dims), "Concrete Inputs": [""] * len(dims)}


class Program(Drawing):
    """A drawing of operators that launch one kernel each, one after another."""

    def __init__(self, *, device: dict[str, Any] = H100) -> None:
        super().__init__()
        self.now, self.corr = 10, 0
        self.meta(deviceProperties=[device])

    def step(self, number: int, start: int, dur: int) -> Program:
        self.mark(number, start, dur)
        return self

    def work(self, name: str | None, args: dict[str, Any], kernel: str, dur: float, **more: Any) -> Program:
        """An operator of 8 µs (or none), its launch, and a kernel that runs until the next."""
        self.corr += 1
        if name is not None:
            self.op(name, self.now, 8, args=args)
        self.launch("cudaLaunchKernel", self.now + 2, 3, corr=self.corr)
        self.kernel(kernel, self.now + 6, dur, corr=self.corr, **more)
        self.now += 6 + int(dur) + 4
        return self


def opened(drawing: Drawing, tmp_path: Path) -> Trace:
    tmp_path.mkdir(exist_ok=True)
    return stepscope.open(drawing.write(tmp_path / "drawn.json"), store=tmp_path / "stores")


def only(table: Table[Roofline]) -> Roofline:
    (row,) = table
    return row


# ------------------------------------------------ drawn


def test_a_product_that_nears_the_peak(tmp_path: Path) -> None:
    """4096³ bf16: 2·4096³ = 137,438,953,472 FLOPs in 200 µs are 687.2 TFLOP/s of 989.4.

    Three matrices of 2·4096² = 33,554,432 bytes are 100,663,296 bytes: 503.3 GB/s of 3,350.
    """
    square = shaped([4096, 4096], [4096, 4096], kind=BF16)
    program = Program().step(1, 0, 300)
    program.op("aten::matmul", 9, 12, args=square)  # around the mm: what it calls is counted, once
    program.work("aten::mm", square, BF16_GEMM, 200, **{"blocks per SM": 4.0})
    trace = opened(program, tmp_path)
    row = only(rooflines(trace))
    assert (row.family, row.op, row.shapes, row.data_type) == (
        "matmul",
        "aten::mm",
        "[4096,4096] [4096,4096]",
        "bf16",
    )
    assert (row.calls, row.work_ns, row.flops, row.bytes) == (1, 200_000, 137_438_953_472, 100_663_296)
    assert row.tflops_per_s == pytest.approx(687.19476736)
    assert row.gb_per_s == pytest.approx(503.31648)
    assert row.flops_per_byte == pytest.approx(4096 / 3)
    assert row.peak_share == pytest.approx(687.19476736 / 989.4)
    assert row.bandwidth_share == pytest.approx(503.31648 / 3350)
    assert (row.bound, row.covered_share, row.reason) == ("compute", 1.0, None)
    assert (row.step, row.step_ns, row.mfu_share, row.hfu_share) == (None, None, None, None)
    # The step is its mark of 300 µs: 137.4 GFLOP of 989.4 T · 300 µs = 296.8 GFLOP.
    step = only(rooflines(trace, by="step"))
    assert (step.step, step.step_ns, step.model_flops) == (1, 300_000, 137_438_953_472)
    assert step.mfu_share == step.hfu_share == pytest.approx(137.438953472 / 296.82)


def test_what_bounds_work(tmp_path: Path) -> None:
    """An add of 64 Mi numbers moves 3 · 256 MiB = 805,306,368 bytes, at 3,350 GB/s 240.4 µs."""
    large = shaped([1 << 26], [1 << 26])
    small = shaped([1 << 10], [1 << 10])
    program = Program().step(1, 0, 2000)
    program.work("aten::add", large, ADD, 300, **{"blocks per SM": 500.0})
    program.work("aten::sub", small, ADD, 2, **{"blocks per SM": 4.0})  # short
    program.work(
        "aten::mul", shaped([1 << 22], [1 << 22]), ADD, 100, **{"blocks per SM": 0.5}
    )  # leaves units empty
    program.work("aten::div", shaped([1 << 22], [1 << 22]), ADD, 100, **{"blocks per SM": 9.0})  # merely slow
    found = {row.op: row for row in rooflines(opened(program, tmp_path))}
    assert {op: row.bound for op, row in found.items()} == {
        "aten::add": "memory",
        "aten::sub": "latency",
        "aten::mul": "latency",
        "aten::div": "memory",
    }
    add = found["aten::add"]
    assert (add.flops, add.bytes, add.data_type) == (1 << 26, 805_306_368, "fp32")
    assert add.bandwidth_share == pytest.approx(805_306_368 / 300e-6 / 3350e9)
    assert add.peak_share == pytest.approx((1 << 26) / 300e-6 / 66.9e12)


def test_tf32_and_fp32_have_peaks_of_their_own(tmp_path: Path) -> None:
    """The name of the kernel tells which: the inputs are fp32 both times. 2·1024³ FLOPs in 100 µs."""
    square = shaped([1024, 1024], [1024, 1024])
    program = Program().step(1, 0, 1000)
    program.work("aten::mm", square, "ampere_sgemm_128x64_nn", 100)
    program.work("aten::mm", square, "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x64", 100)
    program.work("aten::mm", square, "a_kernel_that_says_nothing", 100)
    rows = {row.data_type: row for row in rooflines(opened(program, tmp_path))}
    rate = 2 * 1024**3 / 100e-6
    assert rows["fp32"].peak_share == pytest.approx(rate / 66.9e12)
    assert rows["tf32"].peak_share == pytest.approx(rate / 494.7e12)
    assert (rows[None].flops, rows[None].peak_share, rows[None].bound) == (2 * 1024**3, None, "unknown")
    assert "tf32" in str(rows[None].reason)


def test_work_is_counted_once_for_the_innermost_operator(tmp_path: Path) -> None:
    """A convolution launches its own kernel and a copy; around both stand two operators with formulas, too.

    2·64·64·3·3·8·8 FLOPs: one image of 8×8 points, 64 channels in and out.
    """
    args = shaped([1, 64, 8, 8], [64, 64, 3, 3]) | {"Input type": ["float", "float", *["ScalarList"] * 7]}
    outer = args | {"Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]}
    outer["Input Dims"] = [*args["Input Dims"], *[[]] * 7]
    inner = outer | {"Concrete Inputs": ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]}
    drawing = Program().step(1, 0, 200)
    drawing.op("aten::convolution", 10, 50, args=outer).op("aten::_convolution", 11, 48, args=outer)
    drawing.launch("cudaMemsetAsync", 12, 1, corr=1).memset("Memset (Device)", 20, 2, corr=1, bytes=64)
    drawing.op("aten::cudnn_convolution", 15, 40, args=inner)
    drawing.op("aten::copy_", 20, 10, args=shaped([1, 64, 8, 8], [1, 64, 8, 8]))
    drawing.launch("cudaLaunchKernel", 22, 2, corr=2).kernel("elementwise_copy", 30, 5, corr=2)
    drawing.launch("cudaLaunchKernel", 35, 2, corr=3).kernel(
        "sm80_xmma_fprop_implicit_gemm_tf32f32", 40, 50, corr=3
    )
    drawing.launch("cudaLaunchKernel", 38, 2, corr=4).kernel("cudnn::nchwToNhwcKernel<float>", 95, 60, corr=4)
    rows = {row.op: row for row in rooflines(opened(drawing, tmp_path))}
    flops = 2 * 64 * 64 * 9 * 64
    assert {op: (row.calls, row.work_ns, row.flops) for op, row in rows.items()} == {
        "aten::cudnn_convolution": (1, 110_000, flops),
        "aten::copy_": (1, 5_000, 0),
        "aten::_convolution": (1, 2_000, 0),
    }
    # The kernel that multiplies tells the data type, though another one took longer.
    assert rows["aten::cudnn_convolution"].data_type == "tf32"
    assert rows["aten::_convolution"].reason == "an operator inside it is counted"


def test_what_stays_unknown(tmp_path: Path) -> None:
    program = Program().step(1, 0, 1000)
    program.work("aten::mm", {}, "gemm", 10)
    program.work("my::op", shaped([4]), "custom", 20)
    program.work(None, {}, "loose", 30)
    program.work("aten::mm", shaped([4, 4], [4, 4]), "replayed", 40, **{"graph id": 7})
    program.kernel("orphan", 500, 50, corr=999)
    program.work(None, {}, "ncclDevKernel_AllReduce_Sum_bf16", 60)
    trace = opened(program, tmp_path)
    table = rooflines(trace)
    assert {(row.op, row.work_ns): (row.flops, row.reason) for row in table} == {
        ("aten::mm", 10_000): (None, "shapes are not recorded: record with record_shapes=True"),
        ("my::op", 20_000): (None, "an operator of another library"),
        (None, 30_000 + 50_000): (None, "its launch is not in the profile"),
        ("aten::mm", 40_000): (None, "a replayed graph: its operators and shapes are not in the profile"),
        (None, 60_000): (0, "communication: what it moves is not counted here"),
    }
    assert all(row.bound == "unknown" for row in table)
    step = only(rooflines(trace, by="step"))
    assert step.covered_share == 60 / 210
    assert (step.model_flops, step.mfu_share, step.hfu_share) == (None, None, None)
    # 150 of 210 µs; the three most important reasons.
    assert [
        note for note in table.notes if note.startswith("FLOPs are unknown for 71.4 % of the work's time: ")
    ]


def test_copies_between_host_and_device_are_bound_by_their_link(tmp_path: Path) -> None:
    program = Program().step(1, 0, 100)
    program.op("aten::copy_", 10, 8, args=shaped([1 << 20], [1 << 20]))
    program.launch("cudaMemcpyAsync", 12, 4, corr=1)
    program.memcpy("Memcpy HtoD (Pinned -> Device)", 20, 50, corr=1, bytes=4 << 20)
    program.launch("cudaMemcpyAsync", 30, 4, corr=2)
    program.memcpy("Memcpy DtoD (Device -> Device)", 75, 10, corr=2, bytes=1 << 20)
    rows = {row.op: row for row in rooflines(opened(program, tmp_path))}
    assert (rows["aten::copy_"].bound, rows["aten::copy_"].bandwidth_share) == ("unknown", None)
    assert rows["aten::copy_"].reason == "a copy between host and device, bound by their link"
    # Inside the device a copy reads and writes; the profile says how much.
    assert (rows[None].family, rows[None].flops, rows[None].bytes) == ("copy", 0, 2 << 20)
    assert rows[None].bound == "memory"


def test_only_work_launched_in_steps_counts(tmp_path: Path) -> None:
    square = shaped([64, 64], [64, 64], kind=BF16)
    program = Program()
    program.work("aten::mm", square, BF16_GEMM, 20)  # launched at 12, before the mark
    program.step(5, 40, 60)
    program.work("aten::mm", square, BF16_GEMM, 20)
    program.step(6, 100, 50)
    table = rooflines(opened(program, tmp_path))
    assert only(table).calls == 1
    assert "Work that was launched in no step is left out: 20.0 µs." in table.notes
    steps = list(rooflines(opened(program, tmp_path), by="step"))
    assert [(row.step, row.calls, row.work_ns, row.flops) for row in steps] == [
        (5, 1, 20_000, 2 * 64**3),
        (6, 0, 0, None),
    ]


def test_several_devices_can_do_more(tmp_path: Path) -> None:
    square = shaped([1024, 1024], [1024, 1024], kind=BF16)
    program = Program().step(1, 0, 100)
    program.meta(deviceProperties=[H100, {**H100, "id": 1}])
    program.work("aten::mm", square, BF16_GEMM, 20).work("aten::mm", square, BF16_GEMM, 20, device=1)
    step = only(rooflines(opened(program, tmp_path), by="step"))
    assert step.mfu_share == pytest.approx(2 * 2 * 1024**3 / (2 * 989.4e12 * 100e-6))


def test_peaks_that_a_user_gives(tmp_path: Path) -> None:
    square = shaped([1024, 1024], [1024, 1024], kind=BF16)
    unknown = {"id": 0, "name": "AMD Radeon Graphics", "totalGlobalMem": 1 << 36, "numSms": 104}
    trace = opened(Program(device=unknown).step(1, 0, 100).work("aten::mm", square, BF16_GEMM, 50), tmp_path)
    bare = rooflines(trace)
    assert (only(bare).flops, only(bare).peak_share, only(bare).bound) == (2 * 1024**3, None, "unknown")
    assert only(bare).reason == "the peaks of 'AMD Radeon Graphics' are not known"
    assert any("--peak-tflops" in note for note in bare.notes)
    rate = 2 * 1024**3 / 50e-6
    given = only(rooflines(trace, peak_tflops=("bf16=100",), peak_gb_s=1000.0))
    assert given.peak_share == pytest.approx(rate / 100e12)
    assert given.bound == "compute"
    assert given.bandwidth_share == pytest.approx(6 * 1024**2 / 50e-6 / 1e12)
    assert only(rooflines(trace, hardware="MI300X")).peak_share == pytest.approx(rate / 1307.4e12)
    with pytest.raises(StepscopeError, match="unknown hardware"):
        rooflines(trace, hardware="a toaster")


def test_from_the_command_line(tmp_path: Path) -> None:
    square = shaped([1024, 1024], [1024, 1024], kind=BF16)
    Program().step(1, 0, 100).work("aten::mm", square, BF16_GEMM, 50).write(tmp_path / "t.json")
    options = ["--by", "step", "--peak-tflops", "bf16=100", "--peak-tflops", "fp32=10", "--peak-gb-s", "1000"]
    done = run(
        "show", "rooflines", tmp_path / "t.json", *options, "--format", "json", cache=tmp_path / "cache"
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["mfu_share"] == pytest.approx(2 * 1024**3 / (100e12 * 100e-6))
    wrong = run("show", "rooflines", tmp_path / "t.json", "--peak-tflops", "fast", cache=tmp_path / "cache")
    assert wrong.returncode == 2
    assert "cannot read the peak 'fast'" in wrong.stderr


# ------------------------------------------------ real


def totals(table: Table[Roofline]) -> dict[str, int]:
    names = ("calls", "work_ns", "flops", "bytes", "model_flops")
    return {name: sum(getattr(row, name) or 0 for row in table) for name in names}


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_every_sample_adds_up(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = open_shared(sample(name))
    by_op, by_family, by_step = (rooflines(trace, by=by) for by in ("op", "family", "step"))
    assert totals(by_op) == totals(by_family) == totals(by_step)
    assert all(row.flops is not None or row.reason for row in by_op)
    if trace.has("device_work"):
        # All work whose launch began in a step's mark, or that, without a launch, began in a step itself.
        (wanted,) = trace.arrow(
            """
            SELECT coalesce(sum(coalesce(w.dur_ns, 0)), 0)::BIGINT AS ns
            FROM device_work w LEFT JOIN launches l ON l.event = w.launch WHERE EXISTS (
                SELECT 1 FROM steps s WHERE CASE
                    WHEN l.event IS NOT NULL AND NOT (s.source = 'period' AND s.thread IS NULL)
                    THEN l.start_ns >= s.host_start_ns AND l.start_ns < s.host_end_ns
                    ELSE w.start_ns >= s.start_ns AND w.start_ns < s.end_ns END)
            """
        ).to_pylist()
        assert totals(by_op)["work_ns"] == wanted["ns"]


def bottleneck(points: int, inward: int, width: int, stride: int) -> int:
    """Products of one block of a ResNet-50 for one image, with the convolution beside it if there is one."""
    after = points // stride
    inner = points**2 * inward * width + after**2 * (9 * width**2 + 4 * width**2)
    beside = after**2 * inward * 4 * width if stride > 1 or inward != 4 * width else 0
    return inner + beside


def test_resnet50_does_what_is_known_of_it(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """4.09 billion products an image forward, three times that with backward; images need no gradient."""
    stem, points, inward = 112**2 * 3 * 49 * 64, 56, 64
    products = stem + 2048 * 1000
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            products += bottleneck(points, inward, width, stride if block == 0 else 1)
            inward = 4 * width
            points = points // stride if block == 0 else points
    assert products == 4_089_184_256
    trace = open_shared(sample("h200_resnet50.pt.trace.json.gz"))
    steps = list(rooflines(trace, by="step"))
    assert [row.model_flops for row in steps] == [32 * 2 * (3 * products - stem)] * 3
    assert all(row.data_type == "tf32" and row.covered_share == 1 for row in steps)
    # Against the peaks of the data types really used: tf32 for convolutions, 494.7 TFLOP/s.
    assert all(
        row.mfu_share == pytest.approx(777.57e9 / (row.step_ns * 494.7e3), rel=0.01)
        for row in steps
        if row.step_ns
    )


def test_language_models_do_what_is_known_of_them(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """Forward: two FLOPs for each weight of a product and token, and 4·heads·size·length² for attention."""
    weights = 24 * (4 * 1024**2 + 3 * 1024 * 2816)
    qwen = (
        2 * 16 * 559 * weights + 24 * 4 * 16 * 1024 * 559**2 + 2 * 32 * 559
    )  # the last: angles of positions
    trace = open_shared(sample("tl_h100_Qwen_Qwen1.5-0.5B-Chat.json.gz"))
    assert only(rooflines(trace, by="step")).model_flops == qwen
    weights = 4 * (4 * 512**2 + 2 * 512 * 2048) + 512**2 + 512 * 30522
    bert = 2 * 141 * weights + 4 * 4 * 512 * 141**2
    trace = open_shared(sample("tl_h100_gaunernst_bert-small-uncased.json.gz"))
    assert only(rooflines(trace, by="step")).model_flops == bert


def test_recomputation_counts_for_hardware_not_for_the_model(tmp_path: Path) -> None:
    """A checkpointed model runs forward again in backward. Model FLOPs are three times forward's."""
    facts = json.loads((RECORDINGS / "checkpointed.key_averages.json").read_text(encoding="utf-8"))["facts"]
    counted = facts["flop_counter"]
    # Each product of forward has two in backward; attention has two forward, and five backward of its size.
    forward = counted["aten.mm"] // 2
    forward += counted["aten._scaled_dot_product_efficient_attention_backward"] * 2 // 5
    trace = open_shared(RECORDINGS / "checkpointed.pt.trace.json.gz")
    for row in rooflines(trace, by="step"):
        assert row.model_flops == 3 * forward < sum(counted.values())
        assert row.mfu_share
        assert row.hfu_share
        assert row.hfu_share / row.mfu_share == pytest.approx(sum(counted.values()) / (3 * forward))


@pytest.mark.slow
def test_a_profile_without_devices_tells_the_hosts_work(torch: Any, tmp_path: Path) -> None:
    layer = torch.nn.Linear(8, 4)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        layer(torch.ones(16, 8))
    profile.export_chrome_trace(str(tmp_path / "cpu.json"))
    table = rooflines(stepscope.open(tmp_path / "cpu.json", store=tmp_path / "stores"))
    row = next(row for row in table if row.family == "matmul")
    assert (row.calls, row.flops, row.data_type, row.bound) == (1, 2 * 16 * 8 * 4, "fp32", "unknown")
    assert row.work_ns > 0
    assert any("No device did any work" in note for note in table.notes)


def test_the_order_in_the_file_changes_nothing(tmp_path: Path) -> None:
    """Kernels of one length, operators of one time, and sums of floats: all in the same order always."""
    tables = []
    for seed in (1, 2):
        program = Program().step(1, 0, 900)
        for size in (64, 128, 256):
            program.work("aten::mm", shaped([size, size], [size, size], kind=BF16), BF16_GEMM, 7)
            program.work("aten::add", shaped([size], [size]), ADD, 7)
        program.launch("cudaLaunchKernel", 15, 1, corr=90).kernel("another", 300, 7, corr=90)
        trace = opened(program.shuffled(seed), tmp_path / str(seed))
        tables.append([rooflines(trace, by=by).records() for by in ("op", "family", "step")])
    assert tables[0] == tables[1]


def test_nothing_at_all(tmp_path: Path) -> None:
    table = rooflines(opened(Drawing(), tmp_path))
    assert len(table) == 0
    assert table.notes[-1] == "No operators and no device work in this profile."
