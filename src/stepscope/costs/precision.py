"""Which data type a matrix product, an attention or a convolution really used.

The name of the kernel decides, for autocast and TF32 change what runs without changing the model; where it is
silent, the types of the operator's inputs. A product of fp32 inputs may run in tf32: if only the inputs are
known, that stays unknown.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from stepscope.patterns import late_pattern
from stepscope.records import dataclass

__all__ = ["ALIGNMENT", "UNKNOWN", "Used", "is_misaligned", "is_side_kernel", "operands", "precision_of"]

UNKNOWN = "unknown"
ALIGNMENT = {"fp16": 8, "bf16": 8, "fp8": 16, "int8": 16, "tf32": 4}
"""Sizes of a product have to be multiples of this for the fastest kernels: 16 bytes."""

_NO_INPUTS = "the kernel's name does not say, and no input types were recorded (record_shapes=True)"
_TWO_WAYS = "fp32 inputs, and the kernel's name does not say whether it used tf32"
_NO_NUMBERS = "the inputs have no floating point or integer type that is known here"
_CUDNN_16 = "cuDNN calls fp16 and bf16 alike, and no input types were recorded (record_shapes=True)"

# Code of the first operand in the names of cuBLAS' nvjet kernels, as in tst: bf16, fp32 sums, bf16. They run
# on tensor cores, so fp32 is tf32 there.
_NVJET = late_pattern(r"nvjet_(?:sm\d+_)?([a-z])")
_NVJET_TYPES = {"t": "bf16", "h": "fp16", "q": "fp8", "o": "fp4", "s": "tf32"}
# Data types of a Tensile kernel (rocBLAS, hipBLASLt), as in BBS: two operands and the sums.
_TENSILE = late_pattern(r"^Cijk_[A-Z][a-z]+_[A-Z][a-z]+_([A-Za-z0-9]+)_")
_TENSILE_TYPES = (
    ("fp8", r"[FB]8"),
    ("int8", r"I8|4xi8"),
    ("bf16", r"BB|BS"),
    ("fp16", r"H"),
    ("tf32", r"SX|XS"),
    ("fp32", r"S|C"),
    ("fp64", r"D|Z"),
)
# The first that is found decides: what has narrow operands often names wide sums, too.
_WORDS = (
    ("fp8", "e4m3|e5m2|fp8|float8|(?<![a-z])f8(?![0-9])"),
    ("fp4", "e2m1|(?<!mx)fp4"),
    ("bf16", "bf16|bfloat16|df16b"),
    ("tf32", "tf32|tfloat32|xf32"),
    ("fp16", "(?<![bt])f16|fp16|half|df16_|[_<]h[0-9]{3,6}|(?<![a-z])h(gemm|cudnn)"),
    ("int8", "int8|(?<![a-z0-9])[is]8(?![0-9])|i8i8|[_<]i[0-9]{4,5}"),
    ("fp64", "f64|double|(?<![a-z])[dz]gemm|[_<]d884"),
    ("tf32", "tensorop_s1688(gemm|fprop|dgrad|wgrad)|tensor16x8x8"),
    ("fp32", "f32|(?<![a-z])float(?![a-z0-9_])|(?<![a-z])g?[sc](gemm|gemv|cudnn)"),
)
_NAMED = tuple((name, re.compile(pattern)) for name, pattern in _WORDS)
_INPUTS = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "signed char": "int8",
    "unsigned char": "int8",
    "c10::complex<float>": "fp32",
    "c10::complex<double>": "fp64",
}
# Kernels that prepare or gather up for another one; their own types say nothing about the product.
_SIDE = late_pattern(
    r"splitK_?reduce|ReduceSplitK|reduce_wgrad|compute\w*Offsets|init_device_workspace|scal_kernel|globalKernel"
    r"|winograd\w*::|generateWinogradTiles|fft2d_|_finalize_matmul|reduce_segments|combine|merge_attn"
    r"|dot_do_o|convert_dq|bwd_?preprocess|bwd_?postprocess",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Used:
    """A data type, and how it is known: from the name of the kernel or the types of the inputs."""

    precision: str
    basis: str | None = None
    reason: str | None = None
    """Why it is not known."""


@functools.lru_cache(maxsize=1 << 14)
def precision_of(kernel: str | None, inputs: tuple[str, ...] = ()) -> Used:
    """The data type that a kernel used, given its name and the types of the inputs of its operator."""
    named = _named(kernel or "")
    if named:
        return Used(named, "kernel name")
    tensors = ["fp8" if kind.startswith("c10::Float8") else _INPUTS.get(kind) for kind in inputs]
    # What is multiplied comes first; what follows (scales, sums of an attention) is often wider.
    types = {kind for kind in tensors[:2] if kind}
    if types == {"fp32"}:
        return Used(UNKNOWN, reason=_TWO_WAYS)
    if types:
        # A product of two types is done in the wider.
        order = ("fp64", "fp32", "bf16", "fp16", "int8", "fp8")
        return Used(next(kind for kind in order if kind in types), "input types")
    if inputs:
        return Used(UNKNOWN, reason=_NO_NUMBERS)
    return Used(UNKNOWN, reason=_CUDNN_16 if (kernel or "").startswith("cudnn_generated") else _NO_INPUTS)


def is_side_kernel(kernel: str | None) -> bool:
    """Whether a kernel only prepares or gathers up for another one of the same operator."""
    return bool(_SIDE.search(kernel or ""))


def _named(kernel: str) -> str | None:
    code = _NVJET.match(kernel)
    if code:
        return _NVJET_TYPES.get(code[1])
    tensile = _TENSILE.match(kernel)
    if tensile:
        return next((name for name, pattern in _TENSILE_TYPES if re.match(pattern, tensile[1])), None)
    # cuDNN writes f16 for fp16 and bf16; Inductor writes the names of operators.
    if kernel.startswith(("cudnn_generated", "triton_")):
        return None
    small = kernel.lower()  # to ignore case in each search takes far longer
    return next((name for name, pattern in _NAMED if pattern.search(small)), None)


# Which inputs of an operator are multiplied.
_PLACES = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "addmm_": (1, 2),
    "baddbmm": (1, 2),
    "_scaled_mm": (0, 1),
    "_int_mm": (0, 1),
}


@dataclass(frozen=True, slots=True)
class Operands:
    """What an operator's arguments say of its inputs."""

    types: tuple[str, ...] = ()
    product: tuple[int, int, int] | None = None
    """M, N, K of a matrix product."""
    shapes: tuple[tuple[int, ...], ...] = ()


@functools.lru_cache(maxsize=1 << 14)
def operands(op: str | None, args: str | None) -> Operands:
    """Types and sizes of an operator's inputs, from its arguments as JSON."""
    try:
        written = json.loads(args or "{}")
    except ValueError:
        return Operands()
    if not isinstance(written, dict):
        return Operands()
    dims, types = written.get("Input Dims"), written.get("Input type")
    shapes = tuple(_shape(one) for one in dims) if isinstance(dims, list) else ()
    kinds = tuple(kind for kind in types if isinstance(kind, str) and kind) if isinstance(types, list) else ()
    return Operands(kinds, _product(op, shapes), shapes)


def is_misaligned(product: Sequence[int], precision: str) -> bool | None:
    """Whether a size is no multiple of what the data type asks for; None if it asks for nothing."""
    unit = ALIGNMENT.get(precision)
    return None if unit is None else any(size % unit for size in product)


def _shape(written: Any) -> tuple[int, ...]:
    if not isinstance(written, list) or not all(isinstance(size, int) for size in written):
        return ()
    return tuple(written)


def _product(op: str | None, shapes: tuple[tuple[int, ...], ...]) -> tuple[int, int, int] | None:
    places = _PLACES.get((op or "").removeprefix("aten::"))
    if places is None or len(shapes) <= places[1]:
        return None
    left, right = shapes[places[0]], shapes[places[1]]
    if len(left) not in (2, 3) or len(left) != len(right) or left[-1] != right[-2]:
        return None
    return left[-2], right[-1], left[-1]
