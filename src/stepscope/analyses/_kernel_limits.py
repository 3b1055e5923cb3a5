"""What limits one kernel: how near the operator that launched it comes to the peaks of its device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepscope.analyses.rooflines import rooflines
from stepscope.costs.op_work import work_of_ops
from stepscope.costs.operators import COUNTED_OPS
from stepscope.costs.roofs import Priced, device_of, priced

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["limits_of"]

_By = dict[tuple[str | None, str | None], list[Priced]]


def limits_of(
    trace: Trace, chain: Sequence[tuple[str | None, str | None]], kernel: str | None
) -> dict[str, Any] | None:
    """Of a kernel, given the operators around its launch, innermost first, with their arguments as JSON.

    The figures are the mean over all calls that are alike: one kernel of a call may do only a part of it.
    """
    by: _By = trace.once("costs by operator", lambda: _by_operator(trace))
    owner = next((one for one in chain if one[0] in COUNTED_OPS), chain[0] if chain else (None, None))
    alike = by.get(owner, [])
    one = next((each for each in alike if each.work.kernel == kernel), alike[0] if chain and alike else None)
    return None if one is None else _told(one)


def _by_operator(trace: Trace) -> _By:
    asked = trace.reading(rooflines.reads) if hasattr(rooflines, "reads") else trace
    found: _By = defaultdict(list)
    for one in priced(work_of_ops(asked), device_of(asked, None, (), None)):
        found[one.work.op, one.work.args].append(one)
    return dict(found)


def _told(one: Priced) -> dict[str, Any]:
    work = one.work
    calls, kernels, work_ns = sum(work.calls), sum(work.kernels), sum(work.work_ns)
    compute, memory = (
        ns * calls / work_ns if ns is not None and work_ns else None for ns in (one.compute_ns, one.memory_ns)
    )
    return {
        "bound": one.bound(calls, kernels, work_ns, sum(work.unfilled_ns)),
        "peak_share": compute,
        "bandwidth_share": memory,
        "flops": one.cost.flops,
        "bytes": one.cost.bytes,
        "data_type": one.data_type,
        "family": one.cost.family,
        "op": work.op,
        "shapes": one.cost.shapes,
        "calls": calls,
        "mean_ns": work_ns // calls if calls else None,
        "reason": one.reason,
    }
