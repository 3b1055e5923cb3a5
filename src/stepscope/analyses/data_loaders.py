"""How the program loads its batches: the settings of its loaders, and how long it waits for them."""

from __future__ import annotations

from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._rank_file import (
    NO_RANK_FILE,
    flag,
    mapping,
    mappings,
    number,
    rank_file_of,
    text,
    whole,
)
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["DataLoader", "data_loaders"]


@dataclass(frozen=True, slots=True)
class DataLoader:
    """One loader, over the steps that were timed without the profiler."""

    dataset: Annotated[str | None, "Class of its dataset."]
    sampler: Annotated[str | None, "Class of its sampler."]
    batch_size: Annotated[int | None, "Samples of a batch."]
    num_workers: Annotated[int | None, "Worker processes; 0: the program loads by itself."]
    pin_memory: Annotated[bool | None, "Whether batches come in pinned memory."]
    prefetch_factor: Annotated[int | None, "Batches that a worker loads ahead."]
    persistent_workers: Annotated[bool | None, "Whether workers live on from epoch to epoch."]
    multiprocessing_context: Annotated[str | None, "How workers are started, where the program chose it."]
    drop_last: Annotated[bool | None, "Whether an incomplete last batch is left out."]
    collate: Annotated[str | None, "Function that makes a batch of samples."]
    batches_per_step: Annotated[float | None, "Batches taken in a step."]
    waited_ns: Annotated[int | None, "Time of a step in which the program waited for its batches."]
    available_cpus: Annotated[
        float | None, "CPUs that the process and its workers may keep busy: affinity and container."
    ]


@analysis(reads={})
def data_loaders(trace: Trace) -> Table[DataLoader]:
    """Lists the DataLoaders that the program took batches from, their settings and its waits for them.

    No profiler records the settings: `stepscope run` looks at them in the running program. Waits are those
    of steps without the profiler.
    """
    told = rank_file_of(trace)
    if told is None:
        return Table.of(DataLoader, [], [NO_RANK_FILE])
    cpus = number(mapping(mapping(told.get("environment")).get("cpu")).get("available"))
    rows = [_row(one, cpus) for one in mappings(told.get("loaders"))]
    rows.sort(key=lambda row: -(row.waited_ns or 0))
    return Table.of(
        DataLoader, rows, [] if rows else ["The program took no batch from a DataLoader of torch."]
    )


def _row(told: dict[str, Any], cpus: float | None) -> DataLoader:
    texts = ("dataset", "sampler", "multiprocessing_context", "collate")
    numbers = ("batch_size", "num_workers", "prefetch_factor")
    flags = ("pin_memory", "persistent_workers", "drop_last")
    return DataLoader(
        **{name: text(told.get(name)) for name in texts},  # type: ignore[arg-type]
        **{name: whole(told.get(name)) for name in numbers},  # type: ignore[arg-type]
        **{name: flag(told.get(name)) for name in flags},  # type: ignore[arg-type]
        batches_per_step=number(told.get("batches_per_step")),
        waited_ns=whole(told.get("waited_ns_per_step")),
        available_cpus=cpus,
    )
