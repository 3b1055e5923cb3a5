"""Gradients are all-reduced in many small pieces."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.collective_kinds import CollectiveKind
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Figure, Saving, locations_of, rule
from stepscope.findings._communication import (
    ACCUMULATES,
    LEAST_BYTES,
    exposed_of,
    kind_of,
    mean_bytes,
    of_kind,
)
from stepscope.findings._overlapping import bucket_cap_mb
from stepscope.findings._phrases import if_idle, often, times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, Fix, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["small_buckets"]

_BUCKETS = (
    "model = DistributedDataParallel(model, device_ids=[local_rank], bucket_cap_mb={cap})    # default 25"
)
_BY_HAND = """\
model = DistributedDataParallel(model, device_ids=[local_rank])    # reduces in buckets, during backward
flat = torch.cat([p.grad.flatten() for p in model.parameters()])    # or by hand: one all-reduce
dist.all_reduce(flat)"""


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Small all-reduces of the mean step."""

    calls: float
    median_ns: float
    mean_ns: float
    alone_ns: float
    """Time in which nothing else ran on the GPU."""
    starved_ns: float

    @classmethod
    def of(
        cls, small: list[CollectiveKind], mean_step: MeanStep, *, alone_ns: float, starved_ns: float
    ) -> _Pieces:
        calls = sum(row.calls for row in small)
        return cls(
            calls=mean_step.per_step(calls),
            median_ns=max(small, key=lambda row: row.calls).median_ns,
            mean_ns=sum(row.total_ns for row in small) / calls,
            alone_ns=alone_ns,
            starved_ns=starved_ns,
        )

    @property
    def story(self) -> str:
        alone = (
            f" For {units.duration(self.alone_ns)} of a step they run alone on the GPU."
            if self.alone_ns
            else ""
        )
        return (
            f"A step has {times(self.calls, 'all-reduce')}, {units.duration(self.median_ns)} in the median "
            f"and {units.duration(self.mean_ns)} on average, with the wait for others.{alone}"
            + if_idle(self.starved_ns, "The GPU waits {} for the launches.")
        )

    @property
    def evidence(self) -> dict[str, Figure]:
        return {
            "all_reduces_per_step": self.calls,
            "all_reduce_mean_ns": self.mean_ns,
            "all_reduce_median_ns": self.median_ns,
            "exposed_communication_ns": round(self.alone_ns),
            "starved_ns": round(self.starved_ns),
        }


@rule(category=Category.COMMUNICATION)
def small_buckets(  # noqa: PLR0913  # one parameter for each table and threshold
    mean_step: MeanStep,
    steps_by_any: Table[Step],
    kernel_families: Table[KernelFamily],
    collective_kinds: Table[CollectiveKind],
    step_ops: Table[StepOp],
    *,
    least_calls: int = 16,
    most_median_ns: int = 100_000,
    least_share: float = 0.02,
) -> Advice | None:
    """Gradients are all-reduced in many small pieces, which cost more latency than transfer.

    A piece is small below 1 MiB; if sizes are not known, by its median time, because some wait for others.

    Gain:

    - at most: all launches except one, and the exposed time of the pieces except one. If the host sets the
      pace, its whole time in these calls counts, as far as the GPU waits for the host at all.
    - at least: half of the GPU's waiting for the launches, because buckets twice as large halve them. None of
      the exposed communication, because larger buckets fill later and overlap less.
    """
    all_reduces = of_kind(collective_kinds, "all-reduce")
    small = [row for row in all_reduces if _is_small(row, most_median_ns)]
    calls = mean_step.per_step(sum(row.calls for row in small))
    rows = [row for row in step_ops if kind_of(row.name) == "all-reduce"]
    trains = any(row.phase == "backward" for row in step_ops)
    if not trains or calls < least_calls or _of_layers(rows):
        return None
    part = sum(row.calls for row in small) / sum(row.calls for row in all_reduces)
    exposed = exposed_of(steps_by_any, kernel_families, mean_step)
    waiting = min(mean_step.per_step(sum(row.exposed_ns for row in small)), exposed.device_ns)
    device = waiting * (1 - 1 / calls)
    starved = part * mean_step.with_latency(mean_step.per_step(sum(row.starved_ns for row in rows)))
    # Where the host sets the pace, its calls cost the step also while a GPU waits for peers in a collective.
    host = part * mean_step.host_path_share * mean_step.per_step(sum(row.host_ns for row in rows))
    host = max(starved, min(host, mean_step.starved_ns))
    if mean_step.share(device + host) < least_share:
        return None
    by_hand = sum(row.calls for row in rows if row.within != ACCUMULATES)
    total = mean_step.per_step(sum(row.bytes or 0 for row in all_reduces))
    pieces = _Pieces.of(small, mean_step, alone_ns=waiting, starved_ns=starved)
    return Advice(
        title="Gradients are all-reduced in many small pieces",
        because=pieces.story,
        saving=Saving(starved_ns=(0.5 * starved, host * (1 - 1 / calls)), device_ns=(0.0, device)),
        certainty="likely",
        fix=_fix(total, by_hand=by_hand > sum(row.calls for row in rows) / 2),
        check="stepscope show kernels: fewer and longer all-reduces; devices: less exposed_communication_ns.",
        evidence={
            **pieces.evidence,
            "all_reduce_bytes": round(total) if total else None,
        },
        claims=frozenset({Claim(Time.WAITED, Part.COMMUNICATION)}),
        locations=locations_of(
            (row.user_frame, often(row.per_step, "all-reduce"))
            for row in sorted(rows, key=lambda row: -row.calls)
        ),
    )


def _fix(total: float, *, by_hand: bool) -> Fix:
    cap = bucket_cap_mb(total)
    return fix_of(line(Change.BUCKETS, _BY_HAND if by_hand else _BUCKETS.format(cap=cap), megabytes=cap))


def _is_small(row: CollectiveKind, most_median_ns: int) -> bool:
    size = mean_bytes(row)
    return row.median_ns <= most_median_ns if size is None else size <= LEAST_BYTES


def _of_layers(rows: list[StepOp]) -> bool:
    """Whether many are made in forward: those are the sums of tensor parallelism, and no gradients."""
    forward = sum(row.calls for row in rows if row.phase == "forward")
    return 4 * forward >= sum(row.calls for row in rows) > 0
