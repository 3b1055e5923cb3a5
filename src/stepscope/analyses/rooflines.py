"""How much was computed and moved, how near that came to the device's peaks, and what held it back."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Literal

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.costs.op_work import READS, work_of_ops
from stepscope.costs.roofs import Device, Priced, Total, device_of, priced
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Roofline", "rooflines"]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Work of the steps: of an operator with certain shapes, of a family, or of one step."""

    step: Annotated[int | None, "Number of the step; NULL but for rows by step."]
    family: Annotated[str | None, "matmul, attention, convolution, normalisation …; NULL for rows by step."]
    op: Annotated[str | None, "Operator that did the work; NULL outside operators and for other rows."]
    shapes: Annotated[str | None, "Sizes of its tensors."]
    data_type: Annotated[str | None, "Data type that most FLOPs were done in; NULL: unknown, or no FLOPs."]
    calls: Annotated[int, "Calls of operators; launches where there was none."]
    work_ns: Annotated[int, "Summed device time of what they launched; without devices, host time."]
    flops: Annotated[int | None, "FLOPs as far as they are known; NULL if not at all."]
    bytes: Annotated[int | None, "Least bytes to be moved: inputs read, outputs written once; NULL: unknown."]
    tflops_per_s: Annotated[float | None, "Known FLOPs over the time of the work that they are known for."]
    gb_per_s: Annotated[float | None, "Known bytes over the time of the work that they are known for."]
    flops_per_byte: Annotated[float | None, "Arithmetic intensity, where FLOPs and bytes are known."]
    peak_share: Annotated[
        float | None, "Share of the device's peak in the data type used; causal attention may exceed 1."
    ]
    bandwidth_share: Annotated[
        float | None, "Share of the memory's peak bandwidth; caches may lift it above 1."
    ]
    bound: Annotated[
        str,
        "What limits most of it: compute or memory (the nearer roof), latency (under half of both, and "
        "kernels under 5 µs or with less than a block for each multiprocessor), or unknown.",
    ]
    covered_share: Annotated[float | None, "Share of the work's time whose FLOPs are known."]
    model_flops: Annotated[
        int | None, "FLOPs on matrix units without those that compute something again; NULL: none known."
    ]
    step_ns: Annotated[int | None, "Length of the step; NULL but for rows by step."]
    mfu_share: Annotated[
        float | None,
        "Model FLOPs over what the devices could do in the step, each data type against its own peak.",
    ]
    hfu_share: Annotated[float | None, "The same with recomputation."]
    reason: Annotated[str | None, "Why FLOPs, bytes or what bounds it are unknown, for most of that time."]


By = Literal["op", "family", "step"]
Key = tuple[int | None, str | None, str | None, str | None, str | None]
"""Step, family, operator, shapes and data type of a row."""


@analysis(reads={**READS, "device_work": (*READS["device_work"], "device_name")})
def rooflines(
    trace: Trace,
    *,
    by: Annotated[By, "what a row is: an operator with its shapes, a family, or a step"] = "op",
    hardware: Annotated[
        str | None, "Product to compare with, if the profile does not name it: 'H100 PCIe'."
    ] = None,
    peak_tflops: Annotated[
        tuple[str, ...], "Peak of a data type in TFLOP/s, dense: bf16=989. Repeatable."
    ] = (),
    peak_gb_s: Annotated[float | None, "Peak bandwidth of the memory in GB/s."] = None,
) -> Table[Roofline]:
    """Compares FLOPs and bytes of operators with the device's peaks; MFU and HFU by step.

    FLOPs follow from the recorded shapes, as torch.utils.flop_counter counts them, and bytes are the least
    that has to be moved. Work that was launched in the marks of steps counts, once, for the innermost
    operator that it can be counted for. What the profile does not show stays unknown, with the reason.
    """
    device = device_of(trace, hardware, peak_tflops, peak_gb_s)
    asked = ("priced work", hardware, tuple(peak_tflops), peak_gb_s)
    works: list[Priced] = trace.once(asked, lambda: priced(work_of_ops(trace), device))
    totals, outside_ns = _totals(works, by)
    lengths = _lengths(trace) if by == "step" else {}
    for step in lengths:
        totals.setdefault((step, None, None, None, None), Total())
    rows = [_row(key, total, lengths, device) for key, total in totals.items()]
    order = {step: place for place, step in enumerate(lengths)}
    rows.sort(
        key=lambda row: (
            order.get(row.step, len(order)) if row.step is not None else -row.work_ns,
            *(text or "" for text in (row.family, row.op, row.shapes, row.data_type)),
        )
    )
    return Table.of(Roofline, rows, _notes(trace, device, list(totals.values()), outside_ns))


def _totals(works: list[Priced], by: By) -> tuple[dict[Key, Total], int]:
    """The sums of every row, and the time of work that was launched in no step."""
    totals: defaultdict[Key, Total] = defaultdict(Total)
    outside_ns = 0
    for one in works:
        work = one.work
        inside = len(work.steps)
        if work.steps and work.steps[-1] is None:  # it is the last one, and there is one at most
            inside -= 1
            outside_ns += work.work_ns[-1]
        figures = [of[:inside] for of in (work.calls, work.kernels, work.work_ns, work.unfilled_ns)]
        if by == "step":
            for step, *of_step in zip(work.steps[:inside], *figures, strict=True):
                totals[step, None, None, None, None].add(one, *of_step)
        elif inside:
            totals[_key(one, by)].add_all(one, figures)
    return totals, outside_ns


def _key(one: Priced, by: By) -> Key:
    if by == "family":
        return None, one.cost.family, None, None, None
    return None, one.cost.family, one.work.op, one.cost.shapes, one.data_type


def _lengths(trace: Trace) -> dict[int, int]:
    """The steps in their order, and how long they took."""
    rows = trace.rows("SELECT step, start_ns, end_ns FROM steps ORDER BY start_ns, end_ns")
    lengths: dict[int, int] = {}
    for row in rows:
        lengths[row["step"]] = lengths.get(row["step"], 0) + row["end_ns"] - row["start_ns"]
    return lengths


def _row(key: Key, total: Total, lengths: dict[int, int], device: Device) -> Roofline:
    step, family, op, shapes, data_type = key
    step_ns = lengths.get(step) if step is not None else None
    could_ns = step_ns * device.count if step_ns else 0
    is_comparable = bool(could_ns and total.hardware_ns)
    has_flops, has_bytes = total.counted_ns > 0 or total.flops > 0, total.moved_ns > 0 or total.bytes > 0
    return Roofline(
        step=step,
        family=family,
        op=op,
        shapes=shapes,
        data_type=data_type or total.data_type,
        calls=total.calls,
        work_ns=total.work_ns,
        flops=total.flops if has_flops else None,
        bytes=total.bytes if has_bytes else None,
        tflops_per_s=_ratio(total.flops / 1e3, total.counted_ns) if has_flops else None,
        gb_per_s=_ratio(total.bytes, total.moved_ns) if has_bytes else None,
        flops_per_byte=_ratio(total.flops, total.bytes) if has_flops and has_bytes else None,
        peak_share=_ratio(total.compute_ns, total.compute_of_ns),
        bandwidth_share=_ratio(total.memory_ns, total.memory_of_ns),
        bound=total.bound,
        covered_share=_ratio(total.counted_ns, total.work_ns),
        model_flops=total.model_flops if total.hardware_flops else None,
        step_ns=step_ns,
        mfu_share=total.model_ns / could_ns if is_comparable else None,
        hfu_share=total.hardware_ns / could_ns if is_comparable else None,
        reason=total.reason,
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _notes(trace: Trace, device: Device, totals: list[Total], outside_ns: int) -> list[str]:
    notes = how_steps_were_found(trace)
    if not totals or not any(total.calls for total in totals):
        return [*notes, _why_empty(trace)]
    if not trace.has("device_work"):
        notes.append("No device did any work: times are those of the host's operators.")
    notes.append(_peaks(device))
    matrix = sum(total.hardware_flops for total in totals)
    causal = sum(total.causal_flops for total in totals)
    unpriced = sum(total.unpriced_flops for total in totals)
    if causal:
        notes.append(
            f"Causal attention is counted in full, as torch does, though kernels skip up to half of it: "
            f"{units.share(causal / matrix)} of the FLOPs on matrix units."
        )
    if unpriced and device.accelerator:
        notes.append(
            f"MFU and HFU leave out {units.share(unpriced / matrix)} of these FLOPs: no peak is known."
        )
    notes += _unknown(totals)
    if outside_ns:
        notes.append(f"Work that was launched in no step is left out: {units.duration(outside_ns)}.")
    return notes


def _unknown(totals: list[Total]) -> list[str]:
    """What FLOPs are unknown for, the most important reasons first."""
    work_ns = sum(total.work_ns for total in totals)
    reasons: dict[str, int] = {}
    for total in totals:
        for reason, ns in total.unknown.items():
            reasons[reason] = reasons.get(reason, 0) + ns
    largest = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[:3]
    if not sum(reasons.values()):
        return []
    texts = [f"{reason} ({units.share(ns / work_ns)})" for reason, ns in largest]
    part = units.share(sum(reasons.values()) / work_ns)
    return [
        f"FLOPs are unknown for {part} of the work's time: {'; '.join(texts)}. MFU and HFU are lower bounds."
    ]


def _why_empty(trace: Trace) -> str:
    if trace.has("device_work"):
        return "No device work was launched in a step."
    if trace.has("ops"):
        return "No device did any work, and none of the host's operators in the steps can be counted."
    return "No operators and no device work in this profile."


def _peaks(device: Device) -> str:
    found = device.accelerator
    if found is None:
        return (
            f"Shares of peaks are unknown: {device.reason}. "
            "Give them: --hardware NAME, or --peak-tflops bf16=… and --peak-gb-s …"
        )
    titles = sorted({source.title for source in found.sources.values()})
    return f"Peaks: {found.product}, dense{': ' + '; '.join(titles) if titles else ''}."
