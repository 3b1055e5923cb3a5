"""Which data types the heavy kernels used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._device_time import STEPS, Spent, spent_by_group, step_windows
from stepscope.analyses._work_families import PAIR, WORK_READS, family_of_group, work_groups
from stepscope.costs.families import family_of
from stepscope.costs.precision import (
    UNKNOWN,
    Used,
    is_misaligned,
    is_side_kernel,
    operands,
    precision_of,
)
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Precision", "precision"]

HEAVY = ("matmul", "attention", "convolution")


@dataclass(frozen=True, slots=True)
class Precision:
    """Work of one kind in one data type, inside the steps."""

    family: Annotated[str, "matmul, attention or convolution."]
    precision: Annotated[
        str, "Data type that was multiplied: fp64, fp32, tf32, fp16, bf16, fp8, fp4, int8; or unknown."
    ]
    calls: Annotated[int, "Kernels, without those that only prepare or gather up for another one."]
    total_ns: Annotated[int, "Their summed time inside the steps, side kernels included."]
    share: Annotated[float | None, "Share of that time of all rows."]
    sized_calls: Annotated[int | None, "Matrix products whose sizes M, N, K were recorded."]
    misaligned_calls: Annotated[
        int | None,
        "Of these, those with a size that is no multiple of 8 (16-bit), 16 (8-bit) or 4 (tf32).",
    ]
    misaligned_ns: Annotated[int | None, "Time of these."]
    basis: Annotated[str | None, "How the data type is known: kernel name, input types, or both."]
    reason: Annotated[str | None, "Why it is unknown, for most of the time."]


# Those kernels that are asked for, with the operator that launched them; `detail` also tells its arguments.
_KERNELS = f"""
    SELECT w.name, device_name, start_ns, dur_ns, o.name AS op_name, o.args, {PAIR} AS pair,
           (hash(pair, o.args_id) >> 1)::BIGINT AS detail
    FROM (SELECT * FROM device_work
          WHERE kind = 'kernel' AND name_id IN (SELECT unnest($kernels::INT[])) AND NOT communicates) w
    LEFT JOIN (SELECT event, name, name_id, args::VARCHAR AS args, args_id FROM ops) o ON o.event = w.op
    WHERE {PAIR} IN (SELECT unnest($heavy::BIGINT[]))
"""
_DETAILS = f"""
    SELECT detail, any_value(name) AS name, any_value(op_name) AS op, any_value(args) AS args
    FROM ({_KERNELS}) GROUP BY detail ORDER BY name, op, args, detail
"""
_TIMES = f"SELECT device_name, start_ns, coalesce(dur_ns, 0) AS dur_ns, detail AS grouped FROM ({_KERNELS})"


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel launched by an operator with certain arguments, and its time."""

    family: str
    side: bool
    used: Used
    product: tuple[int, int, int] | None
    spent: Spent


@analysis(
    reads={
        "device_work": (*WORK_READS["device_work"], "device_name", "start_ns", "dur_ns"),
        "ops": (*WORK_READS["ops"], "args", "args_id"),
        "steps": STEPS,
    }
)
def precision(trace: Trace) -> Table[Precision]:
    """Says in which data types matrix products, attention and convolutions ran inside the steps.

    The type is known from the name of a kernel, or else from the input types of its operator.
    """
    windows = step_windows(trace)
    groups: dict[tuple[str, str], list[_Kernel]] = defaultdict(list)
    for kernel in _kernels(trace):
        groups[kernel.family, kernel.used.precision].append(kernel)
    whole = sum(kernel.spent.total_ns for kernels in groups.values() for kernel in kernels)
    rows = sorted(
        (_row(*key, kernels, whole) for key, kernels in groups.items()), key=lambda row: -row.total_ns
    )
    notes = list(windows.notes)
    if not rows:
        notes.append("No matrix product, attention or convolution ran on a device inside the steps.")
    elif any(row.family == "matmul" and not row.sized_calls for row in rows):
        notes.append("Sizes of some matrix products are not in the profile: record with record_shapes=True.")
    return Table.of(Precision, rows, notes)


def _kernels(trace: Trace) -> Iterator[_Kernel]:
    heavy = [group for group in work_groups(trace) if family_of_group(group) in HEAVY]
    asked = {
        "heavy": [group["grouped"] for group in heavy],
        "kernels": [group["name_id"] for group in heavy],
    }
    details = trace.rows(_DETAILS, **asked)
    numbers = {one["detail"]: number for number, one in enumerate(details)}
    spent = spent_by_group(trace, _TIMES, numbers, step_windows(trace), **asked)
    used = [precision_of(one["name"], operands(one["op"], one["args"]).types) for one in details]
    of_operator: dict[tuple[Any, Any], set[Used]] = defaultdict(set)
    for one, own in zip(details, used, strict=True):
        if not is_side_kernel(one["name"]):
            of_operator[one["op"], one["args"]].add(own)
    for one, own, time in zip(details, used, spent, strict=True):
        if not time.calls:
            continue
        side = is_side_kernel(one["name"])
        others = of_operator[one["op"], one["args"]] if side and one["op"] else set()
        yield _Kernel(
            family_of(one["name"], one["op"]),
            side,
            # What prepares for a product has the data type of the product, not of its own numbers.
            next(iter(others)) if len(others) == 1 else own,
            operands(one["op"], one["args"]).product,
            time,
        )


def _row(family: str, used: str, kernels: list[_Kernel], whole_ns: int) -> Precision:
    total = sum(kernel.spent.total_ns for kernel in kernels)
    sized = [kernel for kernel in kernels if family == "matmul" and kernel.product]
    misaligned = [kernel for kernel in sized if is_misaligned(kernel.product or (), used)]
    asks = bool(sized) and is_misaligned((), used) is not None
    reasons: dict[str, int] = defaultdict(int)
    for kernel in kernels:
        reasons[kernel.used.reason or ""] += kernel.spent.total_ns
    return Precision(
        family=family,
        precision=used,
        calls=_calls(kernels),
        total_ns=total,
        share=total / whole_ns if whole_ns else None,
        sized_calls=_calls(sized) if family == "matmul" else None,
        misaligned_calls=_calls(misaligned) if asks else None,
        misaligned_ns=sum(kernel.spent.total_ns for kernel in misaligned) if asks else None,
        basis=", ".join(sorted({kernel.used.basis for kernel in kernels if kernel.used.basis})) or None,
        reason=max(sorted(reasons), key=reasons.__getitem__) if used == UNKNOWN else None,
    )


def _calls(kernels: list[_Kernel]) -> int:
    return sum(kernel.spent.calls for kernel in kernels if not kernel.side)
