"""What pages have in common: tables asked once, addresses of other pages, sections with a grid each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from stepscope.findings.build import MANY_EVENTS
from stepscope.present._markup import Markup, el, joined
from stepscope.store.cutting import first_start
from stepscope.web.grids import RowLink, coded, grid, nothing
from stepscope.web.large import one_large_answer

if TYPE_CHECKING:
    from stepscope.tables import Table
    from stepscope.web.page import Request

__all__ = [
    "Part",
    "address",
    "beginning",
    "chosen_row",
    "clock",
    "heading",
    "in_timeline",
    "launches",
    "only",
    "section",
    "sections",
    "table_of",
    "tabs",
    "tiles",
]

Part = tuple["Markup | None", tuple[str, Sequence[str]]]
"""A section, or its title and why there is nothing in it."""


def table_of(request: Request, name: str, **options: Any) -> Table[Any]:
    """The table of an analysis, asked once for a trace."""
    opened = request.trace
    key = ("table", name, tuple(sorted(options.items())))

    def made() -> Table[Any]:
        with one_large_answer(opened.trace, MANY_EVENTS):
            return opened.trace.table(name, **options)

    found: Table[Any] = opened.once(key, made)
    return found


def address(request: Request, page: str, **options: str | int | None) -> str:
    """The address of a page about the same trace."""
    given = {key: value for key, value in options.items() if value is not None}
    if len(request.opened.keys) > 1:
        given = {"trace": request.trace.key, **given}
    return f"/{page}" + (f"?{urlencode(given)}" if given else "")


def beginning(request: Request, page: str, option: str) -> str:
    """The address of a page up to where the value of its last option begins."""
    return address(request, page, **{option: ""})


def clock(request: Request) -> tuple[int, int]:
    """The base time, which addresses count from, and the first event, which people count from."""
    trace = request.trace.trace
    first = request.trace.once("first event", lambda: first_start(trace.reading(None)))
    return trace.meta.base_ns, trace.meta.base_ns + first


def in_timeline(request: Request, column: str = "longest_event", option: str = "event") -> RowLink:
    """Where the event of a row is shown among all others."""
    return RowLink("Show in the timeline", beginning(request, "timeline", option), column)


def heading(title: str, *told: str | None) -> Markup:
    """The title of a page with a line on what it shows."""
    return joined([el("h1", title), *(el("p", one, class_="lead muted") for one in told if one)])


def section(
    request: Request,
    title: str,
    name: str,
    *,
    told: str = "",
    options: Mapping[str, Any] | None = None,
    table: Table[Any] | None = None,
    **shown: Any,
) -> Part:
    """A heading with the grid of a table; or, if there are no rows, why."""
    found = table_of(request, name, **(options or {})) if table is None else table
    if not len(found):
        return None, (title, found.notes)
    more = {
        "clock": clock(request),
        "links": shown.pop("links", ()),
        **shown.pop("more", {}),
    }
    drawn = grid(found, name, more=more, **shown)
    said = el("p", told, class_="muted small") if told else None
    return el("section", el("h2", title, id=name), said, drawn, class_="part"), (title, ())


def sections(parts: Iterable[Part]) -> Markup:
    """Sections one below the other; what is not in the profile comes last, with what to record for it."""
    given = list(parts)
    drawn = [part for part, _ in given if part is not None]
    missing: dict[str, list[str]] = {}
    for part, (title, notes) in given:
        if part is None:
            missing.setdefault(" ".join(notes) or "There is nothing to show.", []).append(title)
    if not missing:
        return joined(drawn)
    if not drawn:
        return joined([nothing(missing)])
    told = [joined([el("dt", _listed(titles)), el("dd", coded(notes))]) for notes, titles in missing.items()]
    absent = el(
        "section", el("h2", "Not in this profile"), el("dl", *told, class_="absent small"), class_="part"
    )
    return joined([*drawn, absent])


def _listed(titles: Sequence[str]) -> str:
    """Titles one after the other; a beginning that all have is said once."""
    about = titles[0].partition(": ")[0] + ": "
    if len(titles) > 1 and all(title.startswith(about) for title in titles):
        return about + ", ".join(title.removeprefix(about) for title in titles)
    return ", ".join(titles)


def tabs(label: str, choices: Iterable[tuple[str, str, bool]]) -> Markup:
    """Links to ways of looking at the same: title, address, and whether it is this one."""
    links = [
        el("a", title, href=href, aria_current="true" if current else None)
        for title, href, current in choices
    ]
    return el("nav", *links, class_="tabs", aria_label=label)


def tiles(figures: Iterable[tuple[str, str, str]]) -> Markup:
    """Figures in boxes: what it is, how much, and what to know beside it."""
    boxes = [
        el("div", el("dt", what), el("dd", much), el("dd", beside) if beside else None, class_="tile")
        for what, much, beside in figures
    ]
    return el("dl", *boxes, class_="tiles")


def only(table: Table[Any], column: str, value: str) -> Table[Any]:
    """The rows of a table that have a value in a column."""
    import pyarrow.compute as pc

    from stepscope.tables import Table as Made

    return Made(table.row, table.arrow.filter(pc.equal(table.arrow.column(column), value)))


def launches(request: Request, of: str, value: str, *further: str) -> Markup:
    """A grid of the kernels that one `op` launches, or of the operators that launch one `kernel`."""
    other, page, title = (
        ("kernel", "kernels", "The kernel among all")
        if of == "op"
        else ("op", "operators", "The operator among all")
    )
    links = (RowLink(title, beginning(request, page, other), other), in_timeline(request))
    return grid(
        only(table_of(request, "op_kernels"), of, value),
        "op_kernels",
        sort="total_ns",
        bar=f"{of}_share",
        columns=(other, "total_ns", f"{of}_share", "calls", "longest_ns", *further),
        more={"tall": True, "links": links},
    )


def chosen_row(table: Table[Any], column: str, value: str | None) -> dict[str, int]:
    """For a grid: the row to show the details of, if there is one with this value."""
    if value is None:
        return {}
    place = table.arrow.column(column).index(value).as_py() if len(table) else -1
    return {"chosen": place} if place >= 0 else {}
