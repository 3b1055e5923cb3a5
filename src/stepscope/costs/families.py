"""What kind of work a kernel does, told from its name, or from the operator that launched it.

A family says what a kernel computes, not where it was called: a change of layout inside a convolution is a
copy; but a matrix product, or a sum over pieces, that a convolution is made of is part of the convolution.
"""

from __future__ import annotations

import functools
import re

from stepscope.patterns import late_pattern

__all__ = ["FAMILIES", "family_of", "is_of_host"]

FAMILIES = (
    "matmul",
    "attention",
    "convolution",
    "normalisation",
    "elementwise",
    "reduction",
    "copy",
    "indexing",
    "optimizer",
    "communication",
    "other",
)
"""All families. Copy fills and changes layout, too; indexing gathers, scatters and sorts, and so do
products with sparse matrices; softmax, losses, pooling and prefix sums are reductions."""

Patterns = tuple[tuple[str, "re.Pattern[str]"], ...]


def _patterns(*kinds: tuple[str, ...]) -> Patterns:
    """Of each kind its name and what is looked for, in small letters: to ignore case takes far longer."""
    return tuple((kind, re.compile("|".join(words).lower())) for kind, *words in kinds)


# Inductor names a kernel by what it does (poi, red, per, for, tem) and by all operators it stems from:
# `bmm` in the name of a pointwise kernel means the neighbour of a bmm, never the bmm.
_INDUCTOR = late_pattern(r"^triton_(poi|red|per|for|tem|mm|bmm)_(?:fused_)?(.*?)_?\d*$")
_MOVES = "_?(?:(?:to_)?copy|clone|cat|stack|permute|transpose|expand|slice|t|(?:un|unsafe_)?(?:squeeze|view))"
_ONLY_MOVES = late_pattern(rf"{_MOVES}(?:_{_MOVES})*")
_FUSED = _patterns(("normalisation", r"(layer|batch|group|instance|rms)_norm", "mean.*rsqrt", "rsqrt.*mean"))
_TEMPLATES = _patterns(("attention", "attention", "sdpa"), ("convolution", "conv"))

# The first that matches decides.
_BY_NAME = _patterns(
    (
        "copy",
        "direct_copy_kernel", "_copy_kernel_cuda", "FillFunctor", "CatArray", "(?<!cublas)transpose",
        "nchwToNhwc", "nhwcToNchw", "AddPadding",
        "SubTensorOpWith", "roll_cuda", "memset", "memcpy", "tensor_?copy",
    ),
    (
        "indexing",
        "reshape_and_cache", "concat_and_cache", "page_indices", "cusparse::", "rocsparse", "csrmm", "csrmv",
        "spmm", "sddmm", "coalesceValues",
    ),
    ("elementwise", "elementwise_kernel_with_index", "transform_bias_rescale", "rotary", "rope_", "_rope"),
    (
        "attention",
        "flash_?(fwd|bwd|attn|attention|mla|decod)", "flash::", "fmha", "attention", "attn", "sdpa",
        "(^|[^a-z])(mha|mla)_", "Batch(Prefill|Decode)", "Single(Prefill|Decode)", "reduce_segments",
        "bwd_kernel_d[kqv]", "bwd_preprocess",
    ),
    ("indexing", "embedding_(codegen|backward|bag|dense|kernel)", "EmbeddingBag", "compute_grad_weight"),
    (
        "optimizer",
        "multi_tensor_apply", "lpnorm_cleanup", "amp_update_scale", "Fused(Adam|Sgd|Adagrad)", "optimizer",
        "(^|[^a-z])(fused_?)?(adam|adamw|adagrad|lamb|lion)([^a-z]|$)",
    ),
    (
        "convolution",
        "conv(?!ert)", "fprop", "dgrad", "wgrad", "implicit_?gemm", "winograd", "[hs]cudnn", "fft2d_",
        "igemm_(fwd|bwd|wrw)", "cask_cudnn", "cask_plugin.*cudnn", r"cutlass\w*cudnn", "cudnn::(cnn|detail)",
        "im2col", "col2im", "vol2col", "col2vol",
    ),
    (
        "normalisation",
        "(layer|batch|group|instance|rms).?norm", "(^|[^a-z])bn_(fw|bw)", "GammaBeta", "RowwiseMoments",
        "(^|[^a-z])ln_(fwd|bwd)", "welford", "cuComputeGradInput", "norm_?(fwd|bwd|forward|backward)",
    ),
    (
        "matmul",
        "(?<!fb)gemm", "gemv", "nvjet", "matmul", "^Cijk_", "(^|[^a-z])b?mm_", "splitK", "cublasLt", "marlin",
        "machete", "fused_moe_kernel", "wgmma",
    ),
    (
        "indexing",
        "index", "gather", "scatter", "(radix|segmented|merge|bitonic)_?sort", "(^|[^a-z])sort", "top_?k",
        "masked_select", "nonzero", "unique", "bounds_check", "permute_(2D|pooled|indices|sparse|multi)",
        "offsets_range", "long_segments", "routing", "moe_(align|sum|permute)", "moe::dev::finalize",
        "handle_duplicate_keys", "Device(Select|Compact)", "ReduceByKey",
    ),
    (
        "reduction",
        "reduce", "softmax", "nll_loss", "cross_entropy", "DeviceScan", "cumsum", "cumprod", "scan_", "_pool",
        "pool_", "pooling", "argm(ax|in)", "(^|[^a-z])(sum|mean|norm)_", "LpNorm", "dot_kernel", "histogram",
    ),
    (
        "elementwise",
        "elementwise", "pointwise", "dropout", "distribution_", "gelu", "silu", "swiglu", "relu", "sigmoid",
        "act_and_mul", "quant", "fp8", "_cast", "cast_", "Functor", "fill", "clamp", "masked_scale",
        "where_kernel", "triu_tril", "philox", "scalePackedTensor", "op_?tensor",
    ),
)  # fmt: skip

# Where the name of the kernel is silent.
_BY_OP = _patterns(
    ("optimizer", "_foreach_", "fused_(adam|sgd|adagrad)", "optimizer"),
    ("attention", "attention"),
    ("convolution", "conv(?!ert)"),
    ("normalisation", "(layer|batch|group|instance|rms)_norm"),
    (
        "matmul",
        "::_?(addmm|mm|bmm|baddbmm|addbmm|matmul|linear|addmv|mv|dot|einsum|scaled_mm|grouped_mm)(_|$)",
    ),
    ("copy", "::(copy_|_to_copy|clone|contiguous|cat|stack|fill_|zero_|roll|repeat|flip)$"),
    (
        "indexing",
        "::_?(index|gather|scatter|embedding|sort|topk|nonzero|unique|masked_select|repeat_interleave)",
        "::(randperm|searchsorted|bincount|take|put)",
    ),
    (
        "reduction",
        "::_?(a?sum|mean|a?max|a?min|norm|softmax|log_softmax|cumsum|argmax|argmin|any|all|prod|std|var)(_|$)",
        "loss",
    ),
    (
        "elementwise",
        "::_?(add|sub|mul|div|pow|exp|log|sqrt|rsqrt|neg|where|clamp|relu|gelu|silu|tanh|sigmoid|abs)(_|$)",
        "::_?(eq|ne|lt|le|gt|ge|normal|uniform|bernoulli|random|lerp|addcmul|addcdiv|assert_async)(_|$)",
        "dropout",
    ),
)  # fmt: skip
_PART_OF_CONVOLUTION = late_pattern(r"conv(?!ert)", re.IGNORECASE)


@functools.lru_cache(maxsize=1 << 16)
def family_of(kernel: str | None, op: str | None = None) -> str:
    """The family of a kernel that does not communicate."""
    fused = _INDUCTOR.match(kernel or "")
    if fused:
        return _fused_family(*fused.groups())
    family = _by_name(kernel) or _first(_BY_OP, op) or "other"
    if family in ("matmul", "reduction") and op and _PART_OF_CONVOLUTION.search(op):
        return "convolution"
    return family


def is_of_host(kind: str, name: str | None) -> bool:
    """Whether device work of this kind and name is a copy to the host or from it."""
    return kind == "memcpy" and any(way in (name or "") for way in ("HtoD", "DtoH", "Host"))


@functools.lru_cache(maxsize=1 << 14)
def _by_name(kernel: str | None) -> str | None:
    """What the name tells: looked for once, however many operators launch the kernel."""
    return _first(_BY_NAME, kernel)


def _fused_family(kind: str, operators: str) -> str:
    if kind in ("tem", "mm", "bmm"):
        return _first(_TEMPLATES, operators) or "matmul"
    if kind == "for":
        return "optimizer"
    if kind == "poi":
        return "copy" if _ONLY_MOVES.fullmatch(operators) else "elementwise"
    return _first(_FUSED, operators) or "reduction"


def _first(patterns: Patterns, text: str | None) -> str | None:
    if not text:
        return None
    small = text.lower()
    return next((family for family, pattern in patterns if pattern.search(small)), None)
