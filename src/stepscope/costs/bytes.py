"""FLOPs and bytes of what runs beside the matrix units: it mostly moves memory.

Bytes are the least that has to be moved: every input read once, every output written once. Of FLOPs an
element takes one for each sum, product, quotient, or function like exp or gelu; comparing, selecting and
copying take none. Norms, softmax and optimizers are counted by their textbook steps; the backward of a norm
counts twice its forward.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from stepscope.costs.tensor_shapes import Inputs, Tensor, UnknownCostError
from stepscope.records import dataclass

__all__ = ["MEMORY_OPS", "MemoryCost"]


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """What one call costs; bytes are None where only they are unknown, and why."""

    flops: int
    bytes: int | None
    reason: str = ""


Formula = Callable[[Inputs], MemoryCost]

_RANK = {
    name: rank
    for rank, names in enumerate(
        (
            ("bool",),
            ("unsigned char", "signed char"),
            ("short", "short int"),
            ("int",),
            ("long", "long int"),
            ("c10::Half", "c10::BFloat16"),
            ("float",),
            ("double",),
            ("c10::complex<float>",),
            ("c10::complex<double>",),
        )
    )
    for name in names
}
"""Which type wins where several meet."""


def _out_bytes(read: list[Tensor]) -> int:
    """Size of an element of the result: the widest type, but numbers passed as tensors widen nothing."""
    whole = [one for one in read if one.dims] or read
    return max(whole, key=lambda one: _RANK.get(one.type, -1)).element_bytes


def _broadcast(read: list[Tensor]) -> int:
    """How many elements the result of an elementwise operator has."""
    rank = max(len(one.dims) for one in read)
    padded = [(1,) * (rank - len(one.dims)) + one.dims for one in read]
    sizes = [[size for size in column if size != 1] or [1] for column in zip(*padded, strict=True)]
    if any(size != column[0] for column in sizes for size in column):
        raise UnknownCostError("the recorded sizes do not fit together")
    return prod(column[0] for column in sizes)


def _elementwise(count: int, flops: int = 1, out_bytes: int | None = None) -> Formula:
    """Reads some tensors, writes one of their common shape."""

    def formula(inputs: Inputs) -> MemoryCost:
        inputs.tensor(0)
        read = inputs.tensors(count)
        elements = _broadcast(read)
        moved = sum(one.bytes for one in read) + elements * (out_bytes or _out_bytes(read))
        return MemoryCost(flops * elements, moved)

    return formula


def _written(inputs: Inputs) -> MemoryCost:
    """Only fills its first input."""
    return MemoryCost(0, inputs.tensor(0).bytes)


def _loss(count: int, flops: int, reduction: int) -> Formula:
    """An elementwise loss, summed up unless it is told not to."""

    def formula(inputs: Inputs) -> MemoryCost:
        inputs.tensor(0)
        read = inputs.tensors(count)
        elements = _broadcast(read)
        moved = sum(one.bytes for one in read)
        if inputs.numbers(reduction) == [0]:
            moved += elements * _out_bytes(read)
        return MemoryCost(flops * elements, moved)

    return formula


def _copy(inputs: Inputs) -> MemoryCost:
    target, source = inputs.tensor(0), inputs.tensor(1)
    return MemoryCost(0, source.bytes + target.bytes)


def _joined(inputs: Inputs) -> MemoryCost:
    return MemoryCost(0, 2 * inputs.list_elements(0) * inputs.list_element_bytes())


def _dropout(inputs: Inputs) -> MemoryCost:
    """Writes the result and a mask of one byte an element."""
    read = inputs.tensor(0)
    return MemoryCost(read.elements, read.bytes + read.elements * (read.element_bytes + 1))


def _norm(flops: int, source: int, *parameters: int) -> Formula:
    def formula(inputs: Inputs) -> MemoryCost:
        read = inputs.tensor(source)
        more = sum(one.bytes for place in parameters if (one := inputs.optional(place)))
        return MemoryCost(flops * read.elements, read.bytes + read.elements * read.element_bytes + more)

    return formula


def _norm_backward(flops: int, gradient: int, source: int, weight: int) -> Formula:
    """Reads gradient and input, writes the gradient of the input, and those of weight and bias."""

    def formula(inputs: Inputs) -> MemoryCost:
        inward, read = inputs.tensor(gradient), inputs.tensor(source)
        scale = inputs.optional(weight)
        moved = (
            inward.bytes + read.bytes + read.elements * read.element_bytes + (3 * scale.bytes if scale else 0)
        )
        return MemoryCost(2 * flops * read.elements, moved)

    return formula


def _reduction(flops: int, dim: int | None = 1, keeps: bool = False) -> Formula:
    """Reads a tensor, writes what is left of it; `dim` is the place of the dimensions that go."""

    def formula(inputs: Inputs) -> MemoryCost:
        read = inputs.tensor(0)
        arithmetic = flops * read.elements
        try:
            left = read.elements if keeps else _left(inputs, read, dim)
        except UnknownCostError as unknown:
            return MemoryCost(arithmetic, None, str(unknown))
        return MemoryCost(arithmetic, read.bytes + left * read.element_bytes)

    return formula


def _left(inputs: Inputs, read: Tensor, dim: int | None) -> int:
    if dim is None or not inputs.given(dim) or (inputs.values and inputs.values[dim] in ("True", "False")):
        return 1
    gone = inputs.numbers(dim)
    if not gone:
        return 1
    rank = len(read.dims)
    if any(not -rank <= one < rank for one in gone):
        raise UnknownCostError("the recorded sizes do not fit together")
    kept = set(range(rank)) - {one % rank for one in gone}
    return prod(read.dims[one] for one in kept)


def _pool(index_bytes: int) -> Formula:
    """Reads the input once and writes the output, and the places of its values where it keeps them."""

    def formula(inputs: Inputs) -> MemoryCost:
        read = inputs.tensor(0)
        kernel, stride, padding = (inputs.numbers(place) for place in (1, 2, 3))
        count = len(kernel)
        stride, padding = (one * count if len(one) == 1 else one for one in (stride or kernel, padding))
        if not len(stride) == len(padding) == count < len(read.dims) or not all(stride):
            raise UnknownCostError("the recorded sizes do not fit together")
        sizes = zip(read.dims[-count:], padding, kernel, stride, strict=True)
        out = prod(read.dims[:-count]) * prod(
            (size + 2 * pad - k) // step + 1 for size, pad, k, step in sizes
        )
        return MemoryCost(out * prod(kernel), read.bytes + out * (read.element_bytes + index_bytes))

    return formula


def _pool_backward(inputs: Inputs) -> MemoryCost:
    """Reads the gradient, and the places of its values where they were kept; writes that of the input."""
    gradient, source = inputs.tensor(0), inputs.tensor(1)
    places = inputs.optional(7)
    return MemoryCost(gradient.elements, gradient.bytes + source.bytes + (places.bytes if places else 0))


def _rows(table: int, index: int, dim: int | None) -> Formula:
    """Reads rows of a table by their numbers and writes them side by side."""

    def formula(inputs: Inputs) -> MemoryCost:
        source, numbers = inputs.tensor(table), inputs.tensor(index)
        at = 0 if dim is None else inputs.numbers(dim)[0]
        if not -len(source.dims) <= at < len(source.dims):
            raise UnknownCostError("the recorded sizes do not fit together")
        row = source.elements // max(source.dims[at], 1)
        return MemoryCost(0, numbers.bytes + 2 * numbers.elements * row * source.element_bytes)

    return formula


def _embedding_backward(inputs: Inputs) -> MemoryCost:
    gradient, numbers = inputs.tensor(0), inputs.tensor(1)
    (rows,) = inputs.numbers(2)
    width = gradient.dims[-1] if gradient.dims else 1
    return MemoryCost(
        gradient.elements, gradient.bytes + numbers.bytes + rows * width * gradient.element_bytes
    )


def _picked(index: int, source: int | None, flops: int = 0) -> Formula:
    """Moves one element for each number of an index; one that is added to is read too."""

    def formula(inputs: Inputs) -> MemoryCost:
        numbers = inputs.tensor(index)
        moved = inputs.tensor(source) if source is not None else Tensor(numbers.dims, inputs.tensor(0).type)
        return MemoryCost(
            flops * moved.elements, numbers.bytes + (2 + flops) * moved.elements * moved.element_bytes
        )

    return formula


def _optimizer(flops: int, states: int) -> Formula:
    """Reads parameters, gradients and states, writes all but the gradients."""

    def formula(inputs: Inputs) -> MemoryCost:
        elements = inputs.list_elements(0)
        present = sum(1 for place in range(2, 2 + states) if place < len(inputs.dims) and inputs.dims[place])
        return _of_lists(inputs, flops * elements, (3 + 2 * present) * elements)

    return formula


def _foreach(flops: int, writes: bool = True) -> Formula:
    """Reads all its lists, and writes one of their size unless it is one of those that it only writes."""

    def formula(inputs: Inputs) -> MemoryCost:
        if not inputs.is_list(0):
            raise UnknownCostError("the recorded sizes do not fit together")
        elements = inputs.list_elements(0)
        lists = sum(inputs.is_list(place) for place in range(len(inputs.types)))
        return _of_lists(inputs, flops * elements, (lists + writes) * elements)

    return formula


def _of_lists(inputs: Inputs, flops: int, moved: int) -> MemoryCost:
    try:
        return MemoryCost(flops, moved * inputs.list_element_bytes())
    except UnknownCostError as unknown:
        return MemoryCost(flops, None, str(unknown))


def _named(family: str, formula: Formula, names: str) -> dict[str, tuple[str, Formula]]:
    """The same formula for several operators, and for those of the same name that work in place."""
    found = {}
    for name in names.split():
        found[f"aten::{name}"] = found[f"aten::{name.rstrip('_')}_"] = (family, formula)
    return found


MEMORY_OPS: dict[str, tuple[str, Formula]] = {
    **_named(
        "elementwise",
        _elementwise(1),
        "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan tanh sinh cosh asin "
        "acos atan erf erfc erfinv sigmoid relu silu gelu mish hardswish hardsigmoid hardtanh elu leaky_relu "
        "softplus logit ceil floor round trunc frac square threshold log_sigmoid_forward",
    ),
    **_named("elementwise", _elementwise(1, 0), "sign logical_not bitwise_not nan_to_num"),
    **_named("elementwise", _elementwise(1, 0, 1), "isnan isinf isfinite isposinf isneginf signbit"),
    **_named("elementwise", _elementwise(3, 0), "clamp"),
    **_named("elementwise", _elementwise(2, 0), "clamp_min clamp_max maximum minimum fmax fmin masked_fill"),
    **_named(
        "elementwise",
        _elementwise(2),
        "add sub mul div rsub pow true_divide floor_divide remainder fmod atan2 hypot xlogy logaddexp "
        "threshold_backward gelu_backward silu_backward hardtanh_backward leaky_relu_backward elu_backward "
        "softplus_backward hardswish_backward mish_backward sigmoid_backward tanh_backward logit_backward",
    ),
    **_named("elementwise", _elementwise(2, 0, 1), "eq ne lt le gt ge logical_and logical_or logical_xor"),
    **_named("elementwise", _elementwise(2, 0), "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__"),
    **_named("elementwise", _elementwise(3, 0), "where"),
    **_named("elementwise", _elementwise(3, 3), "addcmul addcdiv lerp mse_loss_backward"),
    **_named("elementwise", _elementwise(2, 2), "native_dropout_backward _masked_scale"),
    **_named("elementwise", _dropout, "native_dropout _fused_dropout"),
    **_named("elementwise", _written, "normal_ uniform_ bernoulli_ exponential_ random_"),
    **_named("copy", _written, "fill_ zero_"),
    **_named("copy", _copy, "copy_"),
    **_named("copy", _elementwise(1, 0), "clone flip roll tril triu"),
    **_named("copy", _joined, "cat stack _cat"),
    **_named("reduction", _loss(2, 3, 2), "mse_loss smooth_l1_loss huber_loss"),
    **_named("reduction", _elementwise(1, 5), "_softmax _log_softmax"),
    **_named("reduction", _elementwise(2, 4), "_softmax_backward_data _log_softmax_backward_data"),
    **_named("reduction", _picked(1, None), "nll_loss_forward"),
    **_named("reduction", _picked(2, None), "nll_loss_backward"),
    **_named("reduction", _reduction(1), "sum mean prod nansum logsumexp"),
    **_named("reduction", _reduction(0), "max min amax amin argmax argmin any all"),
    **_named("reduction", _reduction(2, 2), "norm linalg_vector_norm"),
    **_named("reduction", _reduction(4), "var std var_mean std_mean"),
    **_named("reduction", _reduction(1, keeps=True), "cumsum cumprod"),
    **_named("reduction", _pool(8), "max_pool2d_with_indices max_pool3d_with_indices"),
    **_named("reduction", _pool(0), "avg_pool2d avg_pool3d"),
    **_named("reduction", _pool_backward, "max_pool2d_with_indices_backward avg_pool2d_backward"),
    **_named("normalisation", _norm(7, 0, 2, 3), "native_layer_norm"),
    **_named("normalisation", _norm(4, 0, 2), "_fused_rms_norm"),
    **_named("normalisation", _norm(7, 0, 1, 2), "native_group_norm native_batch_norm cudnn_batch_norm"),
    **_named("normalisation", _norm(7, 0, 1, 2), "miopen_batch_norm _batch_norm_with_update"),
    **_named("normalisation", _norm_backward(7, 0, 1, 5), "native_layer_norm_backward"),
    **_named("normalisation", _norm_backward(4, 0, 1, 4), "_fused_rms_norm_backward"),
    **_named("normalisation", _norm_backward(7, 0, 1, 4), "native_group_norm_backward"),
    **_named("normalisation", _norm_backward(7, 0, 1, 2), "native_batch_norm_backward batch_norm_backward"),
    **_named(
        "normalisation", _norm_backward(7, 1, 0, 2), "cudnn_batch_norm_backward miopen_batch_norm_backward"
    ),
    **_named("indexing", _rows(0, 1, None), "embedding"),
    **_named("indexing", _rows(0, 2, 1), "index_select"),
    **_named("indexing", _embedding_backward, "embedding_dense_backward"),
    **_named("indexing", _picked(2, None), "gather"),
    **_named("indexing", _picked(2, 3), "scatter index_copy"),
    **_named("indexing", _picked(2, 3, 1), "scatter_add index_add"),
    **_named("optimizer", _optimizer(15, 3), "_fused_adam_ _fused_adamw_"),
    **_named("optimizer", _optimizer(6, 1), "_fused_sgd_"),
    **_named("optimizer", _foreach(1), "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_pow"),
    **_named("optimizer", _foreach(1), "_foreach_sqrt _foreach_neg _foreach_exp _foreach_reciprocal"),
    **_named("optimizer", _foreach(0), "_foreach_maximum _foreach_clamp_min _foreach_clamp_max"),
    **_named("optimizer", _foreach(0, writes=False), "_foreach_copy _foreach_zero"),
    **_named("optimizer", _foreach(3), "_foreach_addcmul _foreach_addcdiv _foreach_lerp"),
    **_named("optimizer", _foreach(2, writes=False), "_foreach_norm"),
}
"""Family and formula by the name of the operator."""
