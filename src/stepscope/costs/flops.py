"""FLOPs and bytes of what runs on matrix units: matrix products, convolutions, attention.

Counted as torch.utils.flop_counter counts: a multiply and an add are two, biases are left out, attention is
counted in full where it is causal, and its backward computes the scores anew. Two things differ, for the sake
of truth: the gradient of a grouped convolution's weight is counted per group, and packed 4-bit numbers one by
one.
Bytes are the least that has to be moved: every input read once, every output written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from stepscope.costs.tensor_shapes import Inputs, Tensor, UnknownCostError
from stepscope.records import dataclass

__all__ = ["MATRIX_OPS", "MatrixCost"]


@dataclass(frozen=True, slots=True)
class MatrixCost:
    """What one call costs."""

    flops: int
    bytes: int
    again_flops: int = 0
    """The part that computes anew what forward had computed."""
    causal: bool = False


Formula = Callable[[Inputs], MatrixCost]

_MISFIT = "the recorded sizes do not fit together"


def _fit(fits: bool) -> None:
    if not fits:
        raise UnknownCostError(_MISFIT)


# ------------------------------------------------ matrix products


def _product(left: Tensor, right: Tensor, out_bytes: int | None = None, *more: Tensor | None) -> MatrixCost:
    """A batch of products [b, m, k] × [b, k, n], with what is added to them."""
    _fit(len(left.dims) == len(right.dims) >= 2)
    *batch, m, k = left.dims
    *batch_right, k_right, n = right.dims
    _fit(batch == batch_right and k == k_right)
    if left.type.endswith("_x2"):
        k *= 2
    return _matmul_cost(prod(batch) * m, k, n, (left, right, *more), out_bytes or left.element_bytes)


def _matmul_cost(
    rows: int, inner: int, columns: int, read: Sequence[Tensor | None], out_bytes: int
) -> MatrixCost:
    moved = sum(one.bytes for one in read if one is not None) + rows * columns * out_bytes
    return MatrixCost(2 * rows * inner * columns, moved)


def _plain(left: int, right: int, added: int | None = None) -> Formula:
    def formula(inputs: Inputs) -> MatrixCost:
        more = inputs.optional(added) if added is not None else None
        return _product(inputs.tensor(left), inputs.tensor(right), None, more)

    return formula


def _scaled(inputs: Inputs) -> MatrixCost:
    return _product(inputs.tensor(0), inputs.tensor(1), inputs.type_bytes(6) or 2, *inputs.tensors(6)[2:])


def _integers(inputs: Inputs) -> MatrixCost:
    return _product(inputs.tensor(0), inputs.tensor(1), 4)


def _vector(matrix: int, vector: int, added: int | None = None) -> Formula:
    def formula(inputs: Inputs) -> MatrixCost:
        left, right = inputs.tensor(matrix), inputs.tensor(vector)
        _fit(len(right.dims) == 1 and bool(left.dims) and left.dims[-1] == right.dims[0])
        more = inputs.optional(added) if added is not None else None
        return _matmul_cost(prod(left.dims[:-1]), right.dims[0], 1, (left, right, more), left.element_bytes)

    return formula


def _linear(inputs: Inputs) -> MatrixCost:
    left, weight = inputs.tensor(0), inputs.tensor(1)
    _fit(len(weight.dims) == 2 and bool(left.dims) and left.dims[-1] == weight.dims[1])
    read = (left, weight, inputs.optional(2))
    return _matmul_cost(prod(left.dims[:-1]), left.dims[-1], weight.dims[0], read, left.element_bytes)


# ------------------------------------------------ convolutions


@dataclass(frozen=True, slots=True)
class _Window:
    """Places of the plain arguments of a convolution."""

    stride: int
    padding: int
    dilation: int | None = None
    transposed: int | bool = False
    """Whether it is a transposed one, or the place of that flag."""
    output_padding: int | None = None
    groups: int | None = None


def _each(inputs: Inputs, place: int | None, count: int, default: int) -> list[int]:
    """A number for each dimension; one number may stand for all."""
    numbers = [default] if place is None else inputs.numbers(place)
    numbers = numbers * count if len(numbers) == 1 else numbers
    _fit(len(numbers) == count)
    return numbers


def _output(
    inputs: Inputs, image: Tensor, weight: Tensor, window: _Window, transposed: bool
) -> tuple[int, ...]:
    """The sizes of the output: batch, channels, and its points."""
    count = len(weight.dims) - 2
    stride = _each(inputs, window.stride, count, 1)
    padding = _each(inputs, window.padding, count, 0)
    dilation = _each(inputs, window.dilation, count, 1)
    _fit(all(stride))
    sizes = zip(image.dims[2:], padding, dilation, weight.dims[2:], stride, strict=True)
    if not transposed:
        points = ((size + 2 * pad - wide * (k - 1) - 1) // step + 1 for size, pad, wide, k, step in sizes)
        return (image.dims[0], weight.dims[0], *points)
    extra = _each(inputs, window.output_padding, count, 0)
    groups = 1 if window.groups is None else inputs.numbers(window.groups)[0]
    spread = ((size - 1) * step - 2 * pad + wide * (k - 1) + 1 for size, pad, wide, k, step in sizes)
    points = (point + more for point, more in zip(spread, extra, strict=True))
    return (image.dims[0], weight.dims[1] * groups, *points)


def _convolution(window: _Window, *read: int) -> Formula:
    """A convolution that besides image and weight reads the tensors at some places."""

    def formula(inputs: Inputs) -> MatrixCost:
        image, weight = inputs.tensor(0), inputs.tensor(1)
        _fit(len(image.dims) == len(weight.dims) >= 3)
        flag = window.transposed
        transposed = flag if isinstance(flag, bool) else inputs.flag(flag)
        out = _output(inputs, image, weight, window, transposed)
        # Each point of the output, or of a transposed one's input, meets the whole weight once.
        points = image.dims if transposed else out
        more = (inputs.optional(place) for place in read)
        moved = image.bytes + weight.bytes + sum(one.bytes for one in more if one)
        moved += prod(out) * image.element_bytes
        return MatrixCost(2 * points[0] * prod(points[2:]) * weight.elements, moved)

    return formula


def _convolution_backward(inputs: Inputs) -> MatrixCost:
    gradient, image, weight = (inputs.tensor(place) for place in range(3))
    _fit(len(gradient.dims) == len(image.dims) == len(weight.dims) >= 3)
    wants_image, wants_weight, wants_bias = (inputs.flags(10) + [False] * 3)[:3]
    points = (image if inputs.flag(7) else gradient).dims
    once = 2 * points[0] * prod(points[2:]) * weight.elements
    read = gradient.bytes + (image.bytes if wants_weight else 0) + (weight.bytes if wants_image else 0)
    written = (image.bytes if wants_image else 0) + (weight.bytes if wants_weight else 0)
    if wants_bias:
        written += gradient.dims[1] * gradient.element_bytes
    return MatrixCost(once * (wants_image + wants_weight), read + written)


# ------------------------------------------------ attention


@dataclass(frozen=True, slots=True)
class _Heads:
    """How an attention operator lays out its inputs."""

    first: int = 0
    """Place of the query; key and value follow."""
    lengths_first: bool = False
    """[batch, length, heads, size] instead of [batch, heads, length, size]."""
    offsets: int | None = None
    """Place of the offsets of sequences of unequal length."""
    causal: int | None = None
    """Place of the flag, or of the kind of mask."""


def _sizes(inputs: Inputs, heads: _Heads) -> tuple[int, int, int, int, int]:
    """Batch times heads, lengths of queries and keys, sizes of keys and values."""
    query, key, value = (inputs.tensor(heads.first + place) for place in range(3))
    if len(query.dims) == 3 or (heads.offsets is not None and inputs.given(heads.offsets)):
        raise UnknownCostError(
            "attention over sequences of unequal length: the lengths are not in the profile"
        )
    _fit(len(query.dims) == len(key.dims) == len(value.dims) == 4)
    length, head = (1, 2) if heads.lengths_first else (2, 1)
    _fit(query.dims[0] == key.dims[0] == value.dims[0] and query.dims[3] == key.dims[3])
    _fit(key.dims[length] == value.dims[length] and key.dims[head] == value.dims[head] > 0)
    _fit(query.dims[head] % key.dims[head] == 0)
    return (
        query.dims[0] * query.dims[head],
        query.dims[length],
        key.dims[length],
        query.dims[3],
        value.dims[3],
    )


def _is_causal(inputs: Inputs, heads: _Heads) -> bool:
    if heads.causal is None or inputs.values is None or heads.causal >= len(inputs.values):
        return False
    return inputs.values[heads.causal] not in ("False", "0", "")


def _attention(heads: _Heads) -> Formula:
    def formula(inputs: Inputs) -> MatrixCost:
        batch, queries, keys, size, value_size = _sizes(inputs, heads)
        read = [inputs.tensor(heads.first + place) for place in range(3)]
        moved = sum(one.bytes for one in read) + batch * queries * value_size * read[0].element_bytes
        flops = 2 * batch * queries * keys * (size + value_size)
        return MatrixCost(flops, moved, causal=_is_causal(inputs, heads))

    return formula


def _attention_backward(heads: _Heads) -> Formula:
    def formula(inputs: Inputs) -> MatrixCost:
        batch, queries, keys, size, value_size = _sizes(inputs, heads)
        inward = [inputs.tensor(heads.first + place) for place in range(3)]
        gradient = inputs.tensor(0)
        scores = 2 * batch * queries * keys
        # Scores anew; gradients of scores and values; gradients of queries and keys.
        flops = scores * (size + 2 * value_size + 2 * size)
        # Reads the gradient, the output, and the three inputs; writes three gradients.
        moved = 2 * gradient.elements * gradient.element_bytes + 2 * sum(one.bytes for one in inward)
        return MatrixCost(flops, moved, again_flops=scores * size, causal=_is_causal(inputs, heads))

    return formula


MATMULS: dict[str, Formula] = {
    "aten::mm": _plain(0, 1),
    "aten::bmm": _plain(0, 1),
    "aten::addmm": _plain(1, 2, 0),
    "aten::addmm_": _plain(1, 2, 0),
    "aten::_addmm_activation": _plain(1, 2, 0),
    "aten::baddbmm": _plain(1, 2, 0),
    "aten::baddbmm_": _plain(1, 2, 0),
    "aten::addbmm": _plain(1, 2, 0),
    "aten::_scaled_mm": _scaled,
    "aten::_int_mm": _integers,
    "aten::mv": _vector(0, 1),
    "aten::dot": _vector(0, 1),
    "aten::vdot": _vector(0, 1),
    "aten::addmv": _vector(1, 2, 0),
    "aten::addmv_": _vector(1, 2, 0),
    "aten::linear": _linear,
    "aten::mkldnn_linear": _linear,
    "mkldnn::_linear_pointwise": _linear,
}
CONVOLUTIONS: dict[str, Formula] = {
    "aten::convolution": _convolution(_Window(3, 4, 5, 6, 7, 8), 2),
    "aten::_convolution": _convolution(_Window(3, 4, 5, 6, 7, 8), 2),
    "aten::convolution_overrideable": _convolution(_Window(3, 4, 5, 6, 7, 8), 2),
    "aten::cudnn_convolution": _convolution(_Window(3, 2, 4)),
    "aten::cudnn_convolution_relu": _convolution(_Window(3, 4, 5), 2),
    "aten::cudnn_convolution_add_relu": _convolution(_Window(5, 6, 7), 2, 4),
    "aten::cudnn_convolution_transpose": _convolution(_Window(4, 2, 5, True, 3, 6)),
    "aten::miopen_convolution": _convolution(_Window(4, 3, 5), 2),
    "aten::miopen_depthwise_convolution": _convolution(_Window(4, 3, 5), 2),
    "aten::miopen_convolution_transpose": _convolution(_Window(5, 3, 6, True, 4, 7), 2),
    "aten::mkldnn_convolution": _convolution(_Window(4, 3, 5), 2),
    "aten::_slow_conv2d_forward": _convolution(_Window(4, 5), 3),
    "aten::slow_conv3d_forward": _convolution(_Window(4, 5), 3),
    "aten::slow_conv_dilated2d": _convolution(_Window(4, 5, 6), 3),
    "aten::slow_conv_dilated3d": _convolution(_Window(4, 5, 6), 3),
    "aten::_conv_depthwise2d": _convolution(_Window(4, 5, 6), 3),
    "aten::conv_depthwise3d": _convolution(_Window(4, 5, 6), 3),
    "aten::_nnpack_spatial_convolution": _convolution(_Window(4, 3), 2),
    "aten::convolution_backward": _convolution_backward,
    "aten::convolution_backward_overrideable": _convolution_backward,
}
ATTENTIONS: dict[str, Formula] = {
    "aten::_scaled_dot_product_flash_attention": _attention(_Heads(causal=4)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(_Heads(causal=4)),
    "aten::_scaled_dot_product_efficient_attention": _attention(_Heads(causal=6)),
    "aten::_scaled_dot_product_cudnn_attention": _attention(_Heads(causal=6)),
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention(_Heads(causal=5)),
    "aten::_flash_attention_forward": _attention(_Heads(0, lengths_first=True, offsets=3, causal=8)),
    "aten::_efficient_attention_forward": _attention(_Heads(0, lengths_first=True, offsets=4, causal=9)),
    "aten::_cudnn_attention_forward": _attention(_Heads(0, offsets=4, causal=10)),
    "flash_attn::_flash_attn_forward": _attention(_Heads(0, lengths_first=True, causal=5)),
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward(
        _Heads(1, offsets=6, causal=11)
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(_Heads(1, causal=7)),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward(_Heads(1, causal=11)),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward(
        _Heads(1, offsets=9, causal=14)
    ),
    "aten::_cudnn_attention_backward": _attention_backward(_Heads(1, offsets=9, causal=14)),
    "aten::_flash_attention_backward": _attention_backward(
        _Heads(1, lengths_first=True, offsets=6, causal=11)
    ),
    "aten::_efficient_attention_backward": _attention_backward(
        _Heads(1, lengths_first=True, offsets=6, causal=14)
    ),
    "flash_attn::_flash_attn_backward": _attention_backward(_Heads(1, lengths_first=True, causal=11)),
}
MATRIX_OPS: dict[str, tuple[str, Formula]] = {
    **{name: ("matmul", formula) for name, formula in MATMULS.items()},
    **{name: ("convolution", formula) for name, formula in CONVOLUTIONS.items()},
    **{name: ("attention", formula) for name, formula in ATTENTIONS.items()},
}
"""Family and formula by the name of the operator."""
