"""The ranks of a run on the page: who waits for whom, rank by step, and the path through all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope import units
from stepscope.findings.report import RunFacts
from stepscope.present._charts import Cell, Piece, heat_row, stacked
from stepscope.present._markup import Markup, el, joined
from stepscope.present._pieces import grid, notes, panel
from stepscope.present._ranks import RankLine, rank_lines, run_figures, the_rest
from stepscope.tables import Table

__all__ = ["clocks", "critical_path", "process_groups", "ranks", "who_waits"]

_FIGURES = {
    "own_ns": "own time",
    "exposed_wait_ns": "exposed wait for others",
    "exposed_transfer_ns": "exposed transfer",
    "input_ns": "waiting for data",
    "host_ns": "waiting for the host",
    "compute_ns": "computing",
    "collector_ns": "garbage collection",
    "step_ns": "whole step",
}
"""What the map of ranks and steps can show; the first is open."""
_ON_PATH = {
    "own": ("device", "own time of a rank"),
    "transfer": ("communication", "transfer after the last arrival"),
    "start": ("other", "it began its step later than the first rank"),
}
_MOST_RANKS = 64
_MOST_STEPS = 60
_PATH_STEPS = 12
_LEAST_SHARE = 0.02
"""A figure that is less than this part of the step everywhere is not drawn."""


def ranks(run: RunFacts | None) -> Markup | None:
    """What was seen of all ranks; None for a report on one profile."""
    if run is None:
        return None
    lines = rank_lines(run)
    said = [*run.failed, *run.notes]
    return el(
        "section",
        el("h2", "Ranks"),
        el("p", " · ".join(run_figures(run)), class_="panel"),
        *(el("p", one, class_="note small muted") for one in said),
        who_waits(run, lines) if lines else None,
        _map(run, lines) if lines else None,
        critical_path(run.tables.get("critical_ranks")),
        process_groups(run.tables.get("process_groups")),
        clocks(run.tables.get("clocks")),
        id="ranks",
    )


def who_waits(run: RunFacts, lines: Sequence[RankLine]) -> Markup:
    """The ranks that are late, and what the others wait for them."""
    shown, rest = the_rest(lines, run)
    longest = max(line.step_ns for line in lines)
    cells: list[tuple[str, ...]] = [
        (
            str(line.rank),
            line.host,
            stacked(_pieces(line), longest, f"rank {line.rank}: {units.duration(line.step_ns)}", height=16),
            units.duration(line.step_ns),
            units.duration(line.late_ns) if line.late_ns else "",
            units.share(line.last_share) if line.last_share else "",
            line.cause,
        )
        for line in shown
    ]
    heads = [
        ("rank", "number"),
        ("host", ""),
        ("", "bar wide"),
        ("mean step", "number"),
        ("late by", "number"),
        ("last at", "number roomy"),
        ("because of", ""),
    ]
    if not any(line.host for line in lines):
        heads, cells = heads[:1] + heads[2:], [row[:1] + row[2:] for row in cells]
    keys = (
        ("device", "own time"),
        ("other", "exposed wait for others"),
        ("communication", "exposed transfer"),
    )
    legend = [el("li", el("span", class_=f"swatch {colour}"), name) for colour, name in keys]
    more = el("p", f"{rest}.", class_="note small muted") if rest else None
    stragglers = run.tables.get("stragglers")
    return panel(
        "Who waits for whom",
        grid(heads, cells),
        el("ul", *legend, class_="legend keys"),
        more,
        notes(stragglers) if stragglers is not None else None,
    )


def _pieces(line: RankLine) -> list[Piece]:
    parts = (
        ("device", line.own_ns, "own time"),
        ("other", line.wait_ns, "exposed wait for others"),
        ("communication", line.transfer_ns, "exposed transfer"),
    )
    return [Piece(colour, ns, f"{name}: {units.duration(ns)}") for colour, ns, name in parts if ns]


def _map(run: RunFacts, lines: Sequence[RankLine]) -> Markup | None:
    """Rank by step, one figure at a time."""
    table = run.tables["rank_steps"]
    steps = sorted({row.step for row in table})
    every = -(-len(steps) // _MOST_STEPS)
    kept = set(steps[::every])
    by_rank: dict[int, dict[int, Any]] = {}
    for row in table:
        if row.step in kept:
            by_rank.setdefault(row.rank, {})[row.step] = row
    order = [line.rank for line in lines][:_MOST_RANKS]
    order.sort()
    whole = max(row.step_ns for row in table) or 1
    drawn = []
    for figure, name in _FIGURES.items():
        most = max(getattr(row, figure) for row in table)
        if most >= _LEAST_SHARE * whole:
            drawn.append((name, most, _figure_map(figure, most, by_rank, order, sorted(kept))))
    if not drawn:
        return None
    shown = [
        el("details", el("summary", f"{name}, at most {units.duration(most)}"), rows, open=not place)
        for place, (name, most, rows) in enumerate(drawn)
    ]
    left = [f"The {len(order)} ranks that are most late or first."] if len(order) < len(lines) else []
    left += [f"Every {every}th step."] if every > 1 else []
    explained = "A row is a rank, a column is a step; the darker, the longer."
    return panel("Rank by step", el("p", explained, class_="note small muted"), *shown, notes(table, *left))


def _figure_map(
    figure: str,
    most: float,
    by_rank: Mapping[int, Mapping[int, Any]],
    order: Sequence[int],
    steps: Sequence[int],
) -> Markup:
    rows: list[Markup] = []
    for rank in order:
        known = by_rank.get(rank, {})
        cells = [
            Cell(getattr(known[step], figure) / most, f"rank {rank}, step {step}: "
                 f"{units.duration(getattr(known[step], figure))}")
            if step in known else Cell(None, f"rank {rank}, step {step}: not recorded")
            for step in steps
        ]  # fmt: skip
        values = [getattr(row, figure) for row in known.values()]
        mean = units.duration(sum(values) / len(values)) if values else units.ABSENT
        rows += (
            el("span", f"rank {rank}", class_="number"),
            heat_row(cells, "device", f"rank {rank}, on average {mean}"),
            el("span", mean, class_="number"),
        )
    return el("div", *rows, class_="rows steps heat")


def critical_path(table: Table[Any] | None) -> Markup | None:
    """What sets the length of each step: own time of which rank, and transfers."""
    if not table:
        return None
    by_step: dict[int, list[Any]] = {}
    for row in table:
        by_step.setdefault(row.step, []).append(row)
    kept = dict(list(by_step.items())[:_PATH_STEPS])
    longest = max(sum(row.dur_ns for row in rows) for rows in kept.values())
    cells: list[Markup] = []
    for step, rows in kept.items():
        took = units.duration(sum(row.dur_ns for row in rows))
        pieces = [
            Piece(
                _ON_PATH[row.kind][0],
                row.dur_ns,
                f"rank {row.rank}, {_ON_PATH[row.kind][1]}: {units.duration(row.dur_ns)}",
                f"rank {row.rank}" if row.kind == "own" else "",
            )
            for row in rows
        ]
        cells += (
            el("span", f"step {step}", class_="number"),
            stacked(pieces, longest, f"step {step}: {took}", height=18),
            el("span", took, class_="number"),
        )
    more = [f"The first {_PATH_STEPS} of {len(by_step)} steps."] if len(by_step) > len(kept) else []
    said = "Own time of the rank that all others wait for, and transfers: what has to get shorter."
    legend = [el("li", el("span", class_=f"swatch {colour}"), name) for colour, name in _ON_PATH.values()]
    return panel(
        "The critical path across ranks",
        el("p", said, class_="note small muted"),
        el("div", *cells, class_="rows steps"),
        el("ul", *legend, class_="legend keys"),
        notes(table, *more),
    )


def process_groups(table: Table[Any] | None) -> Markup | None:
    """The process groups, what each is for, and what it moves."""
    if not table:
        return None
    cells = [
        (
            row.group or units.ABSENT,
            row.role,
            row.ranks or units.ABSENT,
            units.count(row.calls),
            units.size(row.bytes) if row.bytes else units.ABSENT,
            row.why,
        )
        for row in table
    ]
    heads = (
        ("group", ""),
        ("role", ""),
        ("ranks", "name"),
        ("collectives", "number"),
        ("bytes", "number roomy"),
        ("why we think so", "muted roomy"),
    )
    return panel("Process groups", grid(heads, cells[:24]), notes(table))


def clocks(table: Table[Any] | None) -> Markup | None:
    """How the clocks of the ranks were aligned."""
    if not table:
        return None
    cells = [
        (
            str(row.rank),
            row.host or units.ABSENT,
            row.state,
            units.duration(row.offset_ns) if row.offset_ns is not None else units.ABSENT,
            f"{row.drift_ppm:.3g}" if row.drift_ppm is not None else units.ABSENT,
            units.duration(row.error_ns) if row.error_ns is not None else units.ABSENT,
            units.count(row.collectives),
        )
        for row in table
    ]
    heads = (
        ("rank", "number"),
        ("host", ""),
        ("clock", ""),
        ("offset", "number"),
        ("drift, ppm", "number"),
        ("error", "number"),
        ("collectives", "number roomy"),
    )
    body = joined((grid(heads, cells[:_MOST_RANKS]), notes(table)))
    return panel("Clocks", el("details", el("summary", "how the clocks of the ranks were aligned"), body))
