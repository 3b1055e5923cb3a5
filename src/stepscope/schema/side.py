"""Side tables: what sources bring that is no event of a timeline, or measures one.

A side table costs nothing where no source fills it: its file is written with the first row, and its view is
empty without one. A source fills it with `writer.add_rows`, as any other table.
"""

from __future__ import annotations

from stepscope.schema._compile_logs import COMPILE_LOGS
from stepscope.schema._cpu_samples import CPU_SAMPLES
from stepscope.schema._execution import EXECUTION
from stepscope.schema._kernel_counters import KERNEL_COUNTERS
from stepscope.schema._proton import PROTON
from stepscope.schema._snapshots import SNAPSHOTS
from stepscope.schema.events import Column, StoredTable

__all__ = ["SIDE"]

SIDE = (
    StoredTable(
        "device_counters",
        "Readings of a device's counters: clocks, power, how busy its units are.",
        (
            Column("device", "int64", "Index of the device."),
            Column("name", "string", "Name of the counter, as the profile has it.", always=True),
            Column("unit", "string", "What it counts: %, MHz, W, C, B/s; NULL where nothing says it."),
            Column("start_ns", "int64", "When it was read, or the interval that it sums began.", always=True),
            Column("dur_ns", "int64", "Length of that interval; NULL for a reading at one moment."),
            Column("value", "double", "The reading.", always=True),
        ),
    ),
    *COMPILE_LOGS,
    *CPU_SAMPLES,
    *EXECUTION,
    *PROTON,
    KERNEL_COUNTERS,
    *SNAPSHOTS,
)
"""Side tables, in Parquet. Columns called `start_ns` hold ns after the trace's base time."""
