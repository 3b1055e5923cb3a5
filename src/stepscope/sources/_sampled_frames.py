"""Frames of samplers: name, module and line of each, and what kind of code it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["frame_rows", "part_of"]

_AT = re.compile(r"^(.*) \((.*?)(?::(\d{1,9}))?\)$")
_KERNEL = re.compile(r"^\[?(kernel|guest\.kernel)|vmlinux|\.ko(\.\w+)?$|^\[vdso\]|_\[k\]$")
# The first rule that fits decides; names are looked at before modules.
_BY_NAME = (
    (
        "gil",
        re.compile(
            r"^(take_gil|drop_gil|PyEval_(Acquire|Restore)\w*|PyGILState_Ensure|_PyThreadState_Attach)\b"
        ),
    ),
    (
        "collector",
        re.compile(r"^(gc_collect\w*|_PyGC_\w+|collect_with_callback|deduce_unreachable|subtract_refs)\b"),
    ),
    (
        "dispatcher",
        re.compile(
            r"c10::Dispatcher|at::_ops::|c10::impl::|torch::jit::|torch::autograd::VariableType|at::redispatch"
        ),
    ),
    ("autograd", re.compile(r"torch::autograd::(Engine|Node|python)|autograd::generated")),
    (
        "interpreter",
        re.compile(
            r"^(_?PyEval_Eval\w*|_PyFunction_Vectorcall|_?PyObject_\w+|method_vectorcall\w*|_PyEval_Vector)\b"
        ),
    ),
)
_BY_MODULE = (
    ("kernel", _KERNEL),
    ("driver", re.compile(r"libcuda\.so|libcudart|libcupti|libnvidia|libamdhip|libhsa-runtime|libze_")),
    ("communication", re.compile(r"libnccl|librccl|libgloo|libmpi")),
    (
        "data loader",
        re.compile(r"torch[/\\.]utils[/\\.]data|torchvision[/\\]transforms|libjpeg|libturbojpeg|_imaging"),
    ),
    ("torch", re.compile(r"libtorch|libc10|libaten|(^|[/\\])torch[/\\]|triton[/\\]")),
    (
        "math",
        re.compile(
            r"libmkl|libopenblas|libblas|libgomp|libiomp|libomp|libdnnl|libcublas|libcudnn|_multiarray_umath|(^|[/\\])numpy[/\\]"
        ),
    ),
    ("interpreter", re.compile(r"libpython|(^|[/\\])python[\d.]*$|\.cpython-")),
    (
        "libc",
        re.compile(
            r"libc[-.]|libpthread|libm[-.]|ld-linux|ld-\d|libstdc\+\+|libgcc|libjemalloc|libtcmalloc|musl"
        ),
    ),
)
_PYTHON = re.compile(r"\.py$|^<")


def part_of(name: str, module: str | None) -> str:
    """What kind of code a frame is: by its function, else by its library or file."""
    for part, rule in _BY_NAME:
        if rule.search(name):
            return part
    module = module and module.removesuffix(" (deleted)")  # replaced on disk since it was loaded
    for part, rule in _BY_MODULE:
        if module and rule.search(module):
            return part
    if name.endswith("_[k]"):
        return "kernel"
    return "python" if module and _PYTHON.search(module) else "program"


def frame_rows(frames: Iterable[tuple[str, str | None, int | None]]) -> pa.Table:
    """Rows of `sampled_frames` from name, module and line of each frame, numbered as they come."""
    import pyarrow as pa

    kept = list(frames)
    columns: dict[str, Any] = {
        "frame": pa.array(range(len(kept)), pa.int64()),
        "name": pa.array([name or "[unknown]" for name, _, _ in kept], pa.string()),
        "module": pa.array([module for _, module, _ in kept], pa.string()),
        "line": pa.array([line for _, _, line in kept], pa.int64()),
        "part": pa.array([part_of(name, module) for name, module, _ in kept], pa.string()),
    }
    return pa.table(columns)


def named(text: str) -> tuple[str, str | None, int | None]:
    """A frame of collapsed stacks: `function (file.py:12)`, or just a name."""
    found = _AT.match(text)
    if not found:
        return text, None, None
    return found[1], found[2] or None, int(found[3]) if found[3] else None
