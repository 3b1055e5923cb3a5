"""The stored tables: every file of a store, every column, and what it means."""

from __future__ import annotations

from stepscope.schema.events import (
    COPIES,
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
    STORED,
    Column,
    StoredTable,
    native_tables,
)
from stepscope.schema.made import MADE, Making

__all__ = [
    "COPIES",
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
    "STORED",
    "Column",
    "Making",
    "StoredTable",
    "native_tables",
]
