"""A report as figures in the text format of Prometheus, which OpenTelemetry collectors read, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepscope.findings.report import Report
from stepscope.present._printable import printable
from stepscope.present.formats import format

__all__ = ["prometheus"]

Rows = Iterator[tuple[Mapping[str, str], float | None]]
"""Labels beside those that all figures have, and the value."""


@format(ending=".prom")
def prometheus(report: Report) -> str:
    """Figures for a dashboard, in the text format of Prometheus: a file for its node exporter."""
    lines: list[str] = []
    for name, meaning, rows in _figures(report):
        known = [(labels, value) for labels, value in rows if value is not None]
        if not known:
            continue
        lines += [f"# HELP stepscope_{name} {meaning}", f"# TYPE stepscope_{name} gauge"]
        for labels, value in known:
            pairs = {"trace": report.facts.source, "rank": str(report.facts.rank), **labels}
            inside = ",".join(f'{key}="{_quoted(text)}"' for key, text in pairs.items())
            lines.append(f"stepscope_{name}{{{inside}}} {value!r}")
    return "\n".join(lines) + "\n"


def _figures(report: Report) -> Iterator[tuple[str, str, Rows]]:
    """Name, meaning and values; in seconds, bytes and shares of one, as is usual there."""
    overview = report.overview
    yield "step_seconds", "Mean step as recorded.", _one(overview.step_ns / 1e9 if overview.steps else None)
    yield "unprofiled_step_seconds", "Step without the cost of recording.", _unprofiled(report)
    yield "steps", "Steps that were recorded.", _one(float(overview.steps))
    yield (
        "step_part_seconds",
        "What the mean step was spent on; the parts sum to it.",
        (({"part": part}, ns / 1e9) for part, ns in overview.parts.items()),
    )
    yield "device_busy_ratio", "Part of the step in which a kernel ran.", _one(overview.utilization_share)
    starved = "Part of the step in which the device waited for the host."
    yield "device_starved_ratio", starved, _one(overview.starved_share)
    yield (
        "mfu_ratio",
        "Part of the peak arithmetic of the device that the model uses.",
        _one(overview.mfu_share),
    )
    yield "peak_memory_bytes", "Most device memory in use.", _one(_float(overview.peak_memory_bytes))
    yield "kernels_per_step", "Kernels of the mean step.", _one(float(overview.kernels_per_step))
    yield (
        "rate_per_second",
        "Steps, samples or tokens in a second.",
        (({"of": name}, value) for name, value in overview.rates.items()),
    )
    yield "verdict", "1 for the verdict.", iter([({"verdict": report.verdict.word}, 1.0)])
    yield "finding_gain_seconds", "What fixing a finding saves of a step, from low to high.", _gains(report)


def _one(value: float | None) -> Rows:
    yield {}, value


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _unprofiled(report: Report) -> Rows:
    for bound, ns in zip(("low", "high"), report.overview.unprofiled_step_ns, strict=True):
        yield {"bound": bound}, ns / 1e9 if ns else None


def _gains(report: Report) -> Rows:
    for finding in report.findings:
        for bound, ns in (("low", finding.gain.low_ns), ("high", finding.gain.high_ns)):
            yield {"finding": finding.id, "severity": str(finding.severity), "bound": bound}, ns / 1e9


def _quoted(text: str) -> str:
    return printable(text).replace("\\", r"\\").replace('"', r"\"")
