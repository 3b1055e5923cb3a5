from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.copies import Copy
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.ops import OpOfShape
from stepscope.analyses.product_casts import ProductCasts
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, NotKnown
from stepscope.findings.mean_step import FasterDevice, MeanStep
from stepscope.findings.rules.weight_casts import weight_casts


def op(name: str, per_step: float, device_ms: float, **more: Any) -> dict[str, Any]:
    calls = round(10 * per_step)
    given = {
        "name": name, "phase": "forward", "user_frame": "net.py(4): forward", "calls": calls,
        "per_step": per_step, "launches": calls, "device_ns": round(10 * device_ms * MS),
    }  # fmt: skip
    return given | more


PRODUCTS = op("aten::linear", 12, 4.0)
BY_HAND = (op("aten::to", 12, 1.0), op("aten::_to_copy", 12, 1.0, within="aten::to"))
AUTOCAST = (
    op("aten::to", 24, 1.0, within="aten::linear"),
    op("aten::_to_copy", 24, 1.0, within="aten::to"),
)
BACKWARD = op("aten::_to_copy", 12, 0.5, phase="backward", within="aten::to")


def shaped(name: str, calls: int, device_ms: float, dims: str) -> dict[str, Any]:
    return {"name": name, "calls": calls, "device_total_ns": round(device_ms * MS), "input_dims": dims}


SHAPES = (
    shaped("aten::linear", 120, 50.0, "[[256,4096],[4096,4096],[4096]]"),
    shaped("aten::_to_copy", 120, 12.0, "[[4096,4096],[],[]]"),
    shaped("aten::_to_copy", 120, 4.0, "[[256,4096],[],[]]"),
)


def told(weights: int, weights_ms: float) -> dict[str, Any]:
    """Casts inside products of ten steps."""
    return {
        "product": "aten::linear",
        "of_weights": 10 * weights,
        "of_weights_ns": round(10 * weights_ms * MS),
    }


def kernel(name: str, family: str, ms: float) -> dict[str, Any]:
    """A kernel in ten steps."""
    total = round(10 * ms * MS)
    return {"name": name, "family": family, "exclusive_ns": total, "total_ns": total}


def found(
    *ops: dict[str, Any],
    shapes: tuple[dict[str, Any], ...] = (),
    casts: tuple[dict[str, Any], ...] = (),
    kernels: tuple[dict[str, Any], ...] = (),
    copies: tuple[dict[str, Any], ...] = (),
    step: MeanStep | None = None,
    **thresholds: Any,
) -> Advice | None:
    families = [{"family": row["family"], "total_ns": row["total_ns"]} for row in kernels]
    return weight_casts(
        step or busy_pace(),
        drawn(StarvingPhase, {"phase": "forward", "launches": 1000}),
        drawn(StepOp, *ops),
        drawn(Copy, *copies),
        drawn(OpOfShape, *shapes),
        drawn(ProductCasts, *casts),
        drawn(Kernel, *kernels),
        drawn(KernelFamily, *families),
        **thresholds,
    )


def test_shapes_tell_which_casts_are_of_weights() -> None:
    advice = assert_bounded(found(PRODUCTS, *AUTOCAST, shapes=SHAPES), busy_pace())
    # Half of the casts, and 3/4 of their time.
    assert advice.saving.device_ns == pytest.approx((0.75 * MS, 0.75 * MS))
    assert advice.evidence["casts_per_step"] == 12
    assert advice.certainty == "likely"


def test_in_training_half_of_it_may_stay() -> None:
    advice = assert_bounded(found(PRODUCTS, *AUTOCAST, BACKWARD, shapes=SHAPES), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0.75 * 1.5 / 2 * MS, 0.75 * 1.5 * MS))
    assert "fully_shard" in advice.fix


def test_casts_of_other_tensors_are_no_matter() -> None:
    assert found(PRODUCTS, *AUTOCAST, shapes=(SHAPES[0], SHAPES[2])) is None


def test_what_is_copied_to_the_gpu_is_not_cast() -> None:
    copied = {"direction": "HtoD", "calls": 120}
    assert found(PRODUCTS, *BY_HAND, copies=(copied,)) is None
    assert found(PRODUCTS, *BY_HAND, copies=({**copied, "direction": "DtoD"},))


def test_without_shapes_casts_inside_of_products_may_be_of_weights() -> None:
    single = {**AUTOCAST[0], "launches": 120}
    advice = assert_bounded(found(PRODUCTS, single, AUTOCAST[1]), busy_pace())
    assert advice.saving.device_ns == (0.0, 1.0 * MS)
    assert advice.certainty == "possible"
    assert advice.evidence["shapes_known"] is False


def test_what_autocast_casts_after_the_input_of_a_product_is_weights() -> None:
    late = {**AUTOCAST[0], "starved_ns": MS // 2}
    advice = assert_bounded(found(PRODUCTS, late, AUTOCAST[1], casts=(told(12, 0.7),)), busy_pace())
    # 12 of 24 casts, with half of the 62.5 µs that they are late for; of 1000 launches they are 24.
    assert advice.saving.starved_ns[0] == pytest.approx(0.5 * min(62_500, 50_000 + 20_000 * 240 / 1000))
    assert advice.saving.device_ns == pytest.approx((0.7 * MS, 1.0 * MS))
    assert advice.certainty == "likely"
    trained = assert_bounded(
        found(PRODUCTS, late, AUTOCAST[1], BACKWARD, casts=(told(12, 0.7),)), busy_pace()
    )
    assert trained.saving.starved_ns[0] == pytest.approx(advice.saving.starved_ns[0] / 2)


def test_in_inference_other_kernels_in_fp32_may_take_half_as_long() -> None:
    kernels = (
        kernel("elementwise_kernel<CUDAFunctor_add<float>>", "elementwise", 2.0),
        kernel("elementwise_kernel<CUDAFunctor_add<c10::BFloat16>>", "elementwise", 0.5),
        kernel("gemm<float>", "matmul", 1.0),
    )
    advice = assert_bounded(found(PRODUCTS, *AUTOCAST, kernels=kernels), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0.0, 2.0 * MS))
    trained = assert_bounded(found(PRODUCTS, *AUTOCAST, BACKWARD, kernels=kernels), busy_pace())
    assert trained.saving.device_ns == pytest.approx((0.0, 1.0 * MS))


def test_in_inference_the_host_calls_no_casts_either() -> None:
    """The host alone takes 9.5 of 10 ms, and a third of that for casts."""
    late = busy_pace(faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 0.95, 0.95)))
    ops = (PRODUCTS | {"host_ns": 100}, *BY_HAND[:1], BY_HAND[1] | {"host_ns": 50})
    outer = {"name": "aten::add", "phase": "forward", "host_ns": 50}
    advice = assert_bounded(found(*ops, outer, shapes=SHAPES, step=late), late)
    plain = assert_bounded(found(PRODUCTS, *BY_HAND, shapes=SHAPES, step=late), late)
    assert late.gain(plain.saving).high_share == pytest.approx(0.05, abs=0.01)
    assert late.gain(advice.saving).high_share > late.gain(plain.saving).high_share
    assert late.gain(advice.saving).low_share == late.gain(plain.saving).low_share
    trained = assert_bounded(found(*ops, outer, BACKWARD, shapes=SHAPES, step=late), late)
    assert late.gain(trained.saving).high_share == pytest.approx(0.05, abs=0.01)


def test_casts_that_take_longer_than_any_inputs_are_of_weights() -> None:
    # Of 4 ms in the products 3 ms are casts: inputs explain no more than 1.5 ms.
    long = op("aten::to", 24, 3.0, within="aten::linear")
    advice = assert_bounded(found(PRODUCTS, long, op("aten::_to_copy", 24, 3.0)), busy_pace())
    assert advice.saving.device_ns == pytest.approx((1.5 * MS, 3.0 * MS))


def test_without_autocast_no_other_operator_casts_either() -> None:
    norms = op("aten::to", 6, 0.5, within="aten::layer_norm")
    advice = assert_bounded(found(PRODUCTS, norms, *AUTOCAST), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0.0, 1.5 * MS))
    by_hand = assert_bounded(found(PRODUCTS, norms, *BY_HAND), busy_pace())
    assert by_hand.saving.device_ns == (0.5 * MS, 1.0 * MS)


def test_without_shapes_one_cast_for_each_product_is_probably_of_its_weight() -> None:
    advice = assert_bounded(found(PRODUCTS, *BY_HAND), busy_pace())
    assert advice.saving.device_ns == (0.5 * MS, 1.0 * MS)
    assert advice.certainty == "possible"


def test_without_shapes_other_numbers_of_casts_tell_nothing() -> None:
    with pytest.raises(NotKnown) as raised:
        found(op("aten::linear", 15, 4.0), *BY_HAND)
    assert raised.value.record == "record_shapes=True"


def test_it_is_silent() -> None:
    assert found() is None
    assert found(*BY_HAND) is None  # no products
    assert found(op("aten::linear", 100, 4.0), *BY_HAND) is None  # few casts: of batches
    assert found(PRODUCTS, op("aten::_to_copy", 12, 1.0, within="aten::to")) is None  # nobody asked
    assert found(PRODUCTS, *({**one, "device_ns": MS // 2} for one in BY_HAND)) is None
    assert found(PRODUCTS, *AUTOCAST, least_share=0.2) is None
