"""Whether the GPUs ran as fast as they can: clocks, power, temperature, links."""

from __future__ import annotations

from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._rank_file import NO_RANK_FILE, mapping, mappings, rank_file_of, text, whole
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["GpuHealth", "gpu_health"]


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One GPU, over the samples that were taken of it while the program was recorded."""

    device: Annotated[int, "Index of the device."]
    name: Annotated[str | None, "Its name."]
    samples: Annotated[int, "Samples taken of it, about ten a second."]
    busy_samples: Annotated[int, "Those in which it was in use for at least half of the time."]
    sm_clock_mhz: Annotated[float | None, "Mean clock of its multiprocessors while busy."]
    min_sm_clock_mhz: Annotated[int | None, "Lowest clock while busy."]
    max_sm_clock_mhz: Annotated[int | None, "Highest clock while busy."]
    top_sm_clock_mhz: Annotated[int | None, "Highest clock that the GPU has."]
    free_sm_clock_mhz: Annotated[
        float | None, "Mean clock while busy of the samples in which nothing held it back; NULL below three."
    ]
    memory_clock_mhz: Annotated[float | None, "Mean clock of its memory while busy."]
    top_memory_clock_mhz: Annotated[int | None, "Highest clock that the memory has."]
    power_w: Annotated[float | None, "Mean power while busy, in watts."]
    power_limit_w: Annotated[float | None, "Power that it may draw."]
    default_power_limit_w: Annotated[float | None, "Power that it may draw unless somebody changes it."]
    temperature_c: Annotated[int | None, "Highest temperature in degrees Celsius."]
    throttled_share: Annotated[
        float | None, "Share of the busy samples in which something held its clock back."
    ]
    power_share: Annotated[float | None, "The same for its power limit."]
    thermal_share: Annotated[float | None, "The same for its temperature."]
    hardware_share: Annotated[float | None, "The same for a slowdown or power brake of the board."]
    set_clock_share: Annotated[float | None, "The same for clocks that somebody has set."]
    link_generation: Annotated[
        int | None, "Highest generation of PCIe that its link ran at; a link that idles goes down."
    ]
    max_link_generation: Annotated[int | None, "Generation that it can run at here."]
    link_width: Annotated[int | None, "Most lanes that its link ran with."]
    max_link_width: Annotated[int | None, "Lanes that it can run with here."]
    nvlinks: Annotated[int | None, "NVLinks that are up."]
    numa_node: Annotated[int | None, "NUMA node that it is attached to."]
    process_numa_nodes: Annotated[str | None, "NUMA nodes of the CPUs that the process may use."]


_SAMPLES = """
    WITH told AS (
        SELECT *, coalesce(utilization_share >= 0.5, NOT contains(reasons, 'idle'), TRUE) AS busy,
               contains(reasons, 'power cap') AS power, contains(reasons, 'thermal') AS thermal,
               contains(reasons, 'hardware slowdown') OR contains(reasons, 'power brake') AS hardware,
               contains(reasons, 'application clocks') AS chosen
        FROM gpu_samples WHERE device IS NOT NULL)
    SELECT device, count(*) AS samples, count(*) FILTER (busy) AS busy_samples,
           avg(sm_clock_mhz) FILTER (busy) AS sm_clock_mhz,
           min(sm_clock_mhz) FILTER (busy) AS min_sm_clock_mhz,
           max(sm_clock_mhz) FILTER (busy) AS max_sm_clock_mhz, max(max_sm_clock_mhz) AS top_sm_clock_mhz,
           CASE WHEN count(sm_clock_mhz) FILTER (busy AND NOT (power OR thermal OR hardware OR chosen)) >= 3
                THEN avg(sm_clock_mhz) FILTER (busy AND NOT (power OR thermal OR hardware OR chosen)) END
                AS free_sm_clock_mhz,
           avg(memory_clock_mhz) FILTER (busy) AS memory_clock_mhz,
           max(max_memory_clock_mhz) AS top_memory_clock_mhz, avg(power_mw) FILTER (busy) / 1000 AS power_w,
           max(power_limit_mw) / 1000 AS power_limit_w, max(temperature_c) AS temperature_c,
           avg((power OR thermal OR hardware OR chosen)::INT) FILTER (busy) AS throttled_share,
           avg(power::INT) FILTER (busy) AS power_share, avg(thermal::INT) FILTER (busy) AS thermal_share,
           avg(hardware::INT) FILTER (busy) AS hardware_share,
           avg(chosen::INT) FILTER (busy) AS set_clock_share,
           max(link_generation) AS link_generation, max(link_width) AS link_width
    FROM told GROUP BY device ORDER BY device
"""
_SAMPLED = (
    "device", "utilization_share", "reasons", "sm_clock_mhz", "max_sm_clock_mhz", "memory_clock_mhz",
    "max_memory_clock_mhz", "power_mw", "power_limit_mw", "temperature_c", "link_generation", "link_width",
)  # fmt: skip


@analysis(reads={"gpu_samples": _SAMPLED})
def gpu_health(trace: Trace) -> Table[GpuHealth]:
    """Compares clocks, power and links of each GPU with what it can do, and says what held it back.

    No profiler records this: `stepscope run` asks the driver while it records. A sample counts as busy if
    the GPU was in use for at least half of the moments before it.
    """
    told = rank_file_of(trace)
    sampled = {row["device"]: row for row in trace.rows(_SAMPLES)} if trace.has("gpu_samples") else {}
    environment = mapping((told or {}).get("environment"))
    listed = {whole(one.get("device")): one for one in mappings(environment.get("gpus"))}
    known = {device: one for device, one in listed.items() if device is not None}
    nodes = mapping(environment.get("cpu")).get("affinity_numa_nodes")
    near = ", ".join(str(one) for one in nodes) if isinstance(nodes, list) else None
    # The machine may have more GPUs than the process used.
    devices = sorted(sampled) or sorted(known)
    rows = [_row(device, sampled.get(device, {}), known.get(device, {}), near) for device in devices]
    return Table.of(GpuHealth, rows, _notes(told, environment, sampled=bool(sampled)))


def _row(device: int, seen: dict[str, Any], told: dict[str, Any], near: str | None) -> GpuHealth:
    quiet = {**dict.fromkeys(_FROM_SAMPLES), "samples": 0, "busy_samples": 0}
    figures: dict[str, Any] = {**quiet, **seen, "device": device}
    for name, key in _ALSO_TOLD.items():
        if figures[name] is None:
            figures[name] = whole(told.get(key))
    figures |= {name: whole(told.get(name)) for name in _ONLY_TOLD}
    for name in ("power_limit_w", "default_power_limit_w"):
        if figures[name] is None and (told_mw := whole(told.get(f"{name[:-1]}mw"))) is not None:
            figures[name] = told_mw / 1000
    return GpuHealth(**figures, name=text(told.get("name")), process_numa_nodes=near)


_ALSO_TOLD = {
    "top_sm_clock_mhz": "max_sm_clock_mhz",
    "top_memory_clock_mhz": "max_memory_clock_mhz",
    "link_generation": "link_generation",
    "link_width": "link_width",
}
_ONLY_TOLD = ("max_link_generation", "max_link_width", "nvlinks", "numa_node")
_FROM_SAMPLES = tuple(
    name
    for name in GpuHealth.__dataclass_fields__
    if name not in (*_ONLY_TOLD, "device", "name", "process_numa_nodes")
)


def _notes(told: dict[str, Any] | None, environment: dict[str, Any], *, sampled: bool) -> list[str]:
    if sampled:
        return []
    if told is None:
        return [NO_RANK_FILE]
    why = text(mapping(environment.get("unknown")).get("gpus"))
    return [f"No GPU was sampled while the program was recorded{f': {why}' if why else ''}."]
