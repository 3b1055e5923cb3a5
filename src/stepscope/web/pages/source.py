"""The user's own code with what it costs beside it."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.present._markup import Markup, el, joined, lines
from stepscope.web.grids import RowLink, grid
from stepscope.web.page import page
from stepscope.web.parts import address, beginning, heading, table_of, tabs
from stepscope.web.sources import Function, Source, named_files, read_source

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["source"]

_COLUMNS = ("function", "file", "line", "host_ns", "idle_ns", "device_ns", "device_share", "launches")
_MOST_FILES = 40


@page(title="Source", order=22)
def source(request: Request) -> Markup:
    """Shows the user's functions with host, idle and device time."""
    table = table_of(request, "lines")
    files = named_files(table)
    told = "Your functions in the steps: time on the host, for which the device waited, and device work."
    frame = beginning(request, "operators", "user_frame") + "{file}({line}):%20{function}"
    links = [
        RowLink("Its operators", frame, "file"),
        RowLink(
            "Its code", beginning(request, "source", "frame") + "{file}({line}):%20{function}#file", "file"
        ),
    ]
    chosen = next((at for at, row in enumerate(table) if _frame(row) == request.options.get("frame")), None)
    drawn = grid(
        table,
        "lines",
        sort="idle_ns" if any(row.idle_ns for row in table) else "device_ns",
        bar="device_ns",
        columns=_COLUMNS,
        more={"links": links} | ({} if chosen is None else {"chosen": chosen}),
    )
    return joined([heading("Source", told), drawn, _file(request, files) if files else None])


def _frame(row: Any) -> str:
    return f"{row.file}({row.line}): {row.function}"


def _file(request: Request, files: dict[str, list[Function]]) -> Markup:
    """One of the files; which, an address says by number alone."""
    given = request.options.get("file", "0")
    at = int(given) if given.isascii() and given.isdigit() and len(given) < 7 else 0
    names = list(files)[:_MOST_FILES]
    frame = request.options.get("frame")
    if frame is not None:
        # Compared with what the trace names, never opened.
        at = next((nth for nth, name in enumerate(names) if frame.startswith(f"{name}(")), at)
    at = min(at, len(names) - 1)
    choices = [
        (PurePath(name).name, address(request, "source", file=nth), nth == at)
        for nth, name in enumerate(names)
    ]
    name = names[at]
    folders = (Path.cwd(), Path(request.trace.trace.path).parent)
    found = read_source(name, files[name], folders)
    head = [el("h2", "Files", id="file"), tabs("Files", choices), el("p", el("code", name), class_="small")]
    if found is None:
        why = "This machine does not have the file: its functions are listed above. "
        why += "Start stepscope where the code is to see it."
        return joined([*head, el("div", el("p", why, class_="muted"), class_="panel empty")])
    return joined([*head, _warning(found), _code(found, files[name])])


def _warning(found: Source) -> Markup | None:
    if not found.moved:
        return None
    moved = list(dict.fromkeys(found.moved))
    are = "is" if len(moved) == 1 else "are"
    names = ", ".join(moved[:5])
    said = f"The file seems to have changed since it was profiled: {names} {are} elsewhere now."
    return el("p", said, class_="problem")


def _code(found: Source, functions: list[Function]) -> Markup:
    heads = {one.line: one for one in functions}
    inside: set[int] = set()
    for first, last in found.ends.items():
        inside.update(range(first, last + 1))
    rows = []
    for number, text in enumerate(found.lines, 1):
        one = heads.get(number)
        figures = (
            [units.duration(one.host_ns), units.duration(one.idle_ns), units.duration(one.device_ns)]
            if one
            else ["", "", ""]
        )
        kind = "head" if one else "hot" if number in inside else None
        rows.append(
            el(
                "tr",
                *(el("td", figure, class_="number") for figure in figures),
                el("td", str(number), class_="no", id=f"L{number}"),
                el("td", lines(text.expandtabs())),
                class_=kind,
            )
        )
    numbers = [el("th", name, scope="col", class_="number") for name in ("host", "idle", "device", "line")]
    head = el("tr", *numbers, el("th", "code", scope="col"))
    return el(
        "div",
        el("table", el("thead", head), el("tbody", *rows)),
        class_="source",
        tabindex="0",
        role="region",
        aria_label="The file",
    )
