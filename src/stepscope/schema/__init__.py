"""The stored tables: every file of a store, every column, and what it means."""

from __future__ import annotations

from stepscope.schema.derived import DERIVED, DerivedTables, derived_table
from stepscope.schema.events import (
    COMMUNICATION_KERNEL,
    COMMUNICATION_RANGE,
    COPIES,
    DATALOADER_RANGE,
    DEVICE_WORK,
    DICTIONARIES,
    EVERY_EVENT,
    FILLS,
    FORMAT,
    HOST_OPS,
    HOST_RUNTIME,
    KERNELS,
    METADATA_KEYS,
    NOT_HOST,
    OPTIMIZER_RANGE,
    STANDS_STILL_NS,
    STEP_MARK,
    STORED,
    WHOLE_GRAPH,
    Column,
    StoredTable,
    native_tables,
)
from stepscope.schema.side import SIDE

__all__ = [
    "COMMUNICATION_KERNEL",
    "COMMUNICATION_RANGE",
    "COPIES",
    "DATALOADER_RANGE",
    "DERIVED",
    "DEVICE_WORK",
    "DICTIONARIES",
    "EVERY_EVENT",
    "FILLS",
    "FORMAT",
    "HOST_OPS",
    "HOST_RUNTIME",
    "KERNELS",
    "METADATA_KEYS",
    "NOT_HOST",
    "OPTIMIZER_RANGE",
    "SIDE",
    "STANDS_STILL_NS",
    "STEP_MARK",
    "STORED",
    "WHOLE_GRAPH",
    "Column",
    "DerivedTables",
    "StoredTable",
    "derived_table",
    "native_tables",
]
