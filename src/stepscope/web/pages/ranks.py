"""All ranks of a run: who waits for whom, rank by step, collectives, traffic, groups and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.present._blocks import block
from stepscope.present._charts import Piece, stacked
from stepscope.present._markup import Markup, el, joined
from stepscope.present._pieces import grid as plain
from stepscope.present._pieces import panel
from stepscope.present._ranks import rank_lines, run_figures
from stepscope.present.report._ranks import clocks, critical_path, process_groups, who_waits
from stepscope.web.grids import RowLink, grid
from stepscope.web.links import link
from stepscope.web.page import page

if TYPE_CHECKING:
    from stepscope.runs.many import ManyRanks
    from stepscope.web.page import Request

__all__ = ["FIGURES", "ranks"]

FIGURES = {
    "own_ns": "own time",
    "exposed_wait_ns": "exposed wait for others",
    "exposed_transfer_ns": "exposed transfer",
    "input_ns": "waiting for data",
    "host_ns": "waiting for the host",
    "sync_ns": "after a wait for the device",
    "compute_ns": "computing",
    "collector_ns": "garbage collection",
    "step_ns": "whole step",
}
"""What the map of ranks and steps can show."""
_MOST_MEMBERS = 64
_ALIGNED = 7
"""So many ranks are drawn below the one that is looked at."""


@page(title="Ranks", order=40, about="run", without_profile=True)
def ranks(request: Request) -> Markup:
    """Shows the ranks of a run side by side, and what they wait for."""
    opened, many = request.opened, request.opened.many
    run = opened.report().run
    if many is None or run is None:
        return joined([el("h1", "Ranks"), el("p", "This run has one rank.", class_="panel")])
    if number := request.options.get("collective"):
        return _collective(request, many, number)
    lines = rank_lines(run)
    told = [" · ".join(run_figures(run))]
    if opened.keys:
        others = [key for key in opened.keys if key != request.key][:_ALIGNED]
        address = link(opened, "timeline", request.key, ranks=",".join(others))
        told += [" · ", el("a", "Aligned timeline", href=address)]
    return joined(
        [
            el("h1", "Ranks"),
            el("p", *told, class_="muted"),
            *(el("p", one, class_="note small muted") for one in (*run.failed, *run.notes)),
            who_waits(run, lines) if lines else None,
            _map(linked=bool(opened.keys)),
            critical_path(run.tables.get("critical_ranks")),
            _grid(many, "stragglers", "What makes ranks late", sort="cost_ns"),
            _collectives(request, many),
            _grid(many, "traffic", "Traffic between ranks", sort="bytes", bar="bytes"),
            process_groups(run.tables.get("process_groups")),
            clocks(run.tables.get("clocks")),
        ]
    )


def _map(*, linked: bool) -> Markup:
    data = {"figures": list(FIGURES.items()), "timeline": "/api/rank_step" if linked else ""}
    said = "A row is a rank, a column is a step; the stronger its colour, the longer."
    said += " A click leads to the timeline." if linked else ""
    return panel(
        "Rank by step",
        el("p", said, class_="note small muted"),
        block("heat", data, label="Rank by step"),
    )


def _grid(many: ManyRanks, name: str, title: str, *, sort: str, bar: str = "") -> Markup | None:
    table = many.table(name)
    return el("section", el("h2", title), grid(table, name, sort=sort, bar=bar)) if table else None


def _collectives(request: Request, many: ManyRanks) -> Markup | None:
    """Each collective, linked to the ranks that took part in it."""
    table = many.table("collectives")
    if not table:
        return None
    address = link(request.opened, "ranks", request.key)
    to = f"{address}{'&' if '?' in address else '?'}collective="
    links = [RowLink("Its ranks", to, "number")]
    return el(
        "section",
        el("h2", "Collectives across ranks"),
        grid(table, "collectives", sort="wait_ns", bar="wait_ns", more={"links": links}),
    )


def _collective(request: Request, many: ManyRanks, number: str) -> Markup:
    """The ranks of one collective: when each came, and how long it waited for the last."""
    table = many.table("collective_ranks")
    rows = table.arrow.filter(_is(table, number)).to_pylist()
    back = el("p", el("a", "All ranks", href=link(request.opened, "ranks", request.key)), class_="small")
    if not rows:
        return joined([back, el("h1", f"Collective {number}"), el("p", "There is none.", class_="panel")])
    rows.sort(key=lambda row: (-(row["wait_ns"] or 0), row["rank"]))
    longest = max((row["wait_ns"] or 0) + (row["transfer_ns"] or 0) for row in rows) or 1
    linked = bool(request.opened.keys)
    cells = [_member(row, longest, linked=linked) for row in rows[:_MOST_MEMBERS]]
    heads = (
        ("rank", "number"),
        ("host", ""),
        ("", "bar wide"),
        ("waits", "number"),
        ("transfer", "number"),
        ("exposed", "number"),
    )
    first = rows[0]
    told = f"{first['kind']} of {first['group'] or 'an unnamed group'}, step {first['step']}"
    legend = [
        el("li", el("span", class_="swatch other"), "waits for the last rank"),
        el("li", el("span", class_="swatch communication"), "transfer"),
    ]
    left = [f"The first {_MOST_MEMBERS} of {len(rows)} ranks."] if len(rows) > _MOST_MEMBERS else []
    return joined(
        [
            back,
            el("h1", f"Collective {number}"),
            panel(
                told,
                plain(heads, cells),
                el("ul", *legend, class_="legend keys"),
                *(el("p", one, class_="note small muted") for one in left),
            ),
        ]
    )


def _is(table: Any, number: str) -> Any:
    import pyarrow.compute as pc

    wanted = int(number) if number.isdecimal() and len(number) < 18 else -1
    return pc.equal(table.arrow["number"], wanted)


def _member(row: dict[str, Any], longest: int, *, linked: bool) -> tuple[str, ...]:
    rank, wait, transfer = row["rank"], row["wait_ns"] or 0, row["transfer_ns"] or 0
    pieces = [
        Piece("other", wait, f"waits: {units.duration(wait)}"),
        Piece("communication", transfer, f"transfer: {units.duration(transfer)}"),
    ]
    shown = el("a", str(rank), href=f"/api/rank_step?rank={rank}&step={row['step']}")
    return (
        shown if linked and row["step"] is not None else str(rank),
        row["host"] or units.ABSENT,
        stacked(pieces, longest, f"rank {rank}", height=14),
        units.duration(wait),
        units.duration(transfer),
        units.duration(row["exposed_ns"]),
    )
