"""Side table of Nsight Compute: what counters measured of single launches."""

from __future__ import annotations

from stepscope.schema.events import Column, StoredTable

__all__ = ["KERNEL_COUNTERS"]

KERNEL_COUNTERS = StoredTable(
    "kernel_counters",
    "Counters of launches, as Nsight Compute measured them: one row for each launch and metric.",
    (
        Column("launch", "int64", "Number of the launch in the file, from 0.", always=True),
        Column(
            "launches", "int64", "How many launches it is the mean of: 1, or more in a summary.", always=True
        ),
        Column("process", "int64", "Process that launched it."),
        Column("kernel", "string", "Name of the kernel, as the file has it.", always=True),
        Column("function", "string", "The same without arguments, templates and namespaces.", always=True),
        Column("grid", "string", "Blocks in x, y, z, as a JSON list; NULL where the file does not say it."),
        Column("block", "string", "Threads of a block in x, y, z."),
        Column("device", "int64", "Index of the device."),
        Column("context", "int64", "Number of the context."),
        Column("stream", "int64", "Number of the stream."),
        Column("capability", "string", "Compute capability of the device."),
        Column("section", "string", "Section of the report; NULL on the raw page."),
        Column("metric", "string", "Name of the metric.", always=True),
        Column("unit", "string", "Its unit, as the file has it."),
        Column("value", "double", "What was measured; the mean, in a summary.", always=True),
    ),
)
