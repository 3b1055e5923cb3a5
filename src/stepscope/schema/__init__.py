"""The stored tables: every file of a store, every column, and what it means."""

from __future__ import annotations

from stepscope.schema.events import (
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
    STEP_MARK,
    STORED,
    Column,
    StoredTable,
    native_tables,
)
from stepscope.schema.made import MADE, Making, made_table

__all__ = [
    "COMMUNICATION_RANGE",
    "COPIES",
    "DATALOADER_RANGE",
    "DEVICE_WORK",
    "DICTIONARIES",
    "EVERY_EVENT",
    "FILLS",
    "FORMAT",
    "HOST_OPS",
    "HOST_RUNTIME",
    "KERNELS",
    "MADE",
    "METADATA_KEYS",
    "NOT_HOST",
    "OPTIMIZER_RANGE",
    "STEP_MARK",
    "STORED",
    "Column",
    "Making",
    "StoredTable",
    "made_table",
    "native_tables",
]
