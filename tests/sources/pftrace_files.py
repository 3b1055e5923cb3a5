"""Perfetto traces that tests draw."""

from __future__ import annotations

from tests.protobuf import ANNOTATION, BASE, MEMCPY, MEMSET, Packets, Real, message

__all__ = ["drawn", "with_counters"]


def drawn() -> Packets:
    """A thread with a step, an operator, Python and launches, and a GPU with what was launched."""
    trace = Packets().thread(1, 422, 422)
    trace.group(
        {"name": "ProfilerStep#3", "at": 0, "until": 100_000, "category": "user_annotation"},
        {
            "name": "aten::mm",
            "at": 10_000,
            "until": 40_000,
            "category": "cpu_op",
            "args": {"External id": 5, "Input Dims": [[16, 128], []], "Concrete Inputs": ["", "2"]},
        },
        {
            "name": "train.py(3): step",
            "at": 1_000,
            "until": 90_000,
            "category": "python_function",
            "args": {"Python id": 1, "Python parent id": None},
        },
    )
    trace.group(
        {
            "name": "cudaLaunchKernel",
            "at": 12_000,
            "until": 15_000,
            "category": "cuda_runtime",
            "args": {"cbid": 211, "correlation": 7},
            "ids": [1],
        },
        {
            "name": "cudaMemcpyAsync",
            "at": 15_000,
            "until": 16_000,
            "category": "cuda_runtime",
            "args": {"cbid": 41, "correlation": 8},
            "ids": [2],
        },
    )
    trace.stage(1, 20_000, 30_000, kernel="gemm", name="gemm", grid=(8, 2, 1), extra={"correlation": 7})
    trace.stage(2, 50_000, 5_000, MEMCPY, extra={"correlation": 8, "bytes": 4096})
    trace.stage(3, 55_000, 1_000, MEMSET, stream=20)
    return trace.stage(4, 20_000, 35_000, ANNOTATION, name="ProfilerStep#3")


def with_counters() -> Packets:
    """The same with readings of two counters, and one that nothing describes."""
    trace = drawn()
    specs = message((1, message((1, 3), (2, "Power (W)"))), (1, message((1, 4), (2, "SM Active"), (7, 37))))
    interned = message((1, 1), (2, specs), (3, 2))
    trace.add((10, 1), (12, message((47, interned))), (13, 0))
    for at, counter, value in ((5, 3, (3, Real(99.5))), (6, 4, (2, 80)), (7, 9, (2, 1))):
        read = message((4, 1), (2, message((1, counter), value)))
        trace.add((8, BASE + at), (10, 1), (52, read), (13, 2))
    return trace
