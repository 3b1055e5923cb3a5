"""What an Nsight Systems export says of the machine: GPUs, versions, when it was recorded."""

from __future__ import annotations

from typing import Any

from stepscope.sources._arrow_tables import ProfileTables

__all__ = ["base_of", "devices_of", "gpus_of_processes", "metadata_of", "unread_metrics"]

# A property of a device as Kineto calls it, and the column that holds it.
_PROPERTIES = {
    "totalGlobalMem": "totalMemory",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
    "maxThreadsPerBlock": "maxThreadsPerBlock",
    "regsPerBlock": "maxRegistersPerBlock",
    "regsPerMultiprocessor": "maxRegistersPerSm",
    "warpSize": "threadsPerWarp",
    "sharedMemPerBlock": "maxShmemPerBlock",
    "sharedMemPerBlockOptin": "maxShmemPerBlockOptin",
    "sharedMemPerMultiprocessor": "maxShmemPerSm",
    "numSms": "smCount",
}
_MOST_DEVICES = 1_024
_UNREAD = {
    "NET_NIC_METRIC": "network cards",
    "NET_IB_SWITCH_METRIC": "InfiniBand switches",
    "NET_IB_SWITCH_CONGESTION_EVENT": "congestion of InfiniBand switches",
    "SOC_METRICS": "the system on a chip",
}
"""Tables of metrics that are not read, and what they are of."""
_OF_ANY = ("typeId", "start", "timestamp", "value")
"""Columns of whole numbers of which each of these tables has one."""
_OLD_SOURCE = "GpuMetrics"
"""Who writes GPU metrics as generic events, in exports that have no table for them."""


def devices_of(tables: ProfileTables) -> list[dict[str, Any]]:
    """The GPUs, with Kineto's keys, by the number that kernels have."""
    wanted = {"id": "int64", "cuDevice": "int64", "name": "string", "maxWarpsPerSm": "int64"}
    wanted |= dict.fromkeys(_PROPERTIES.values(), "int64")
    found = {}
    mapped = gpus_of_processes(tables)
    for row in tables.rows("TARGET_INFO_GPU", wanted, _MOST_DEVICES):
        number = row["id"] if mapped or row["cuDevice"] is None else row["cuDevice"]
        told = {key: row[column] for key, column in _PROPERTIES.items() if row[column] is not None}
        if row["maxWarpsPerSm"] and row["threadsPerWarp"]:
            told["maxThreadsPerMultiprocessor"] = row["maxWarpsPerSm"] * row["threadsPerWarp"]
        if number is not None:
            found[number] = {"id": number, "name": row["name"] or "", **told}
    return [found[number] for number in sorted(found)]


def gpus_of_processes(tables: ProfileTables) -> dict[tuple[int, int], int]:
    """The number of a GPU in the machine, by process and the number that this process has for it."""
    wanted = {"pid": "int64", "cudaId": "int64", "gpuId": "int64"}
    rows = tables.rows("TARGET_INFO_CUDA_DEVICE", wanted, _MOST_DEVICES)
    return {(row["pid"], row["cudaId"]): row["gpuId"] for row in rows if None not in row.values()}


def base_of(tables: ProfileTables) -> int:
    """What times count from, in ns since 1970; 0 where nothing says it.

    Newer exports count from the start of the machine's clock, and say where on it the session began.
    """
    wanted = {"utcEpochNs": "int64", "systemClockNs": "int64"}
    for row in tables.rows("TARGET_INFO_SESSION_START_TIME", wanted, 1):
        base = (row["utcEpochNs"] or 0) - (row["systemClockNs"] or 0)
        return base if 0 < base < 1 << 62 else 0
    return 0


def metadata_of(tables: ProfileTables) -> dict[str, Any]:
    """Host, versions and GPUs, under Kineto's keys where it has them."""
    named = {"name": "string", "value": "string"}
    told: dict[str, Any] = {}
    environment = {row["name"]: row["value"] for row in tables.rows("TARGET_INFO_SYSTEM_ENV", named, 2_000)}
    exported: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE"):
        exported |= {row["name"]: row["value"] for row in tables.rows(table, named, 2_000)}
    if host := environment.get("Hostname"):
        told["host_name"] = host[:200]
    driver = environment.get("CudaDriverVersion") or ""
    if driver.isdecimal() and len(driver) < 8:
        told["cuda_driver_version"] = int(driver)
    versions = {
        "nsys_version": ("EXPORT_PRODUCT_VERSION", "PRODUCT_VERSION"),
        "nsys_schema": ("EXPORT_SCHEMA_VERSION",),
    }
    for key, names in versions.items():
        found = next((exported[name] for name in names if exported.get(name)), None)
        if found:
            told[key] = found[:100]
    if devices := devices_of(tables):
        told["deviceProperties"] = devices
    return told


def unread_metrics(tables: ProfileTables, *, gpus_read: bool) -> list[str]:
    """What was measured beside the timeline and is not read, in sentences."""
    said = []
    if not gpus_read and _has_gpu_metrics(tables):
        said.append(
            "GPU metrics are in this export, but only as generic events, which are not read: export the "
            "report with a newer nsys, which writes the table GPU_METRICS."
        )
    found = [what for table, what in _UNREAD.items() if _has_rows(tables, table)]
    if found:
        said.append(f"Metrics of {', '.join(found)} are in this export and are not read.")
    return said


def _has_gpu_metrics(tables: ProfileTables) -> bool:
    sources = tables.rows("GENERIC_EVENT_SOURCES", {"data": "string"}, 1_000)
    old = any(_OLD_SOURCE in (row["data"] or "") for row in sources)
    return (old and _has_rows(tables, "GENERIC_EVENTS")) or _has_rows(tables, "TARGET_INFO_GPU_METRICS")


def _has_rows(tables: ProfileTables, table: str) -> bool:
    """Whether there are any; of a table that may be large the first batch is read."""
    column = next((one for one in _OF_ANY if tables.has(table, one)), None)
    return column is not None and bool(tables.rows(table, {column: "int64"}, 1))
