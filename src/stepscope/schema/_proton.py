"""The side table of Proton, the profiler of Triton."""

from __future__ import annotations

from stepscope.schema.events import Column, StoredTable

__all__ = ["PROTON"]

PROTON = (
    StoredTable(
        "proton_scopes",
        "Scopes and kernels as Proton counted them: a tree, without a timeline.",
        (
            Column("scope", "int64", "Number of the scope; one around it has a smaller one.", always=True),
            Column("parent", "int64", "The scope around it; NULL for the outermost."),
            Column("depth", "int64", "How many scopes are around it.", always=True),
            Column("name", "string", "Its name: that of a scope, or of a kernel.", always=True),
            Column("device", "string", "Device, as `CUDA 0`; NULL for a scope that ran nothing itself."),
            Column("calls", "int64", "How often it ran."),
            Column("time_ns", "int64", "Time on the device."),
            Column("bytes", "double", "Bytes that the program says it moves."),
            Column("flops", "double", "Operations that the program says it does, of all types."),
            Column("metrics", "string", "All its figures, as JSON."),
        ),
    ),
)
