"""Charts as SVG. Widths are per cents, so that a chart fits any page and its text keeps its size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, log2, log10

from stepscope.present._markup import Markup, el, joined
from stepscope.records import dataclass

__all__ = [
    "Cell",
    "Piece",
    "Point",
    "area",
    "axis",
    "bar",
    "columns",
    "floating",
    "heat_row",
    "interval",
    "stacked",
    "ticks",
]

_LABELLED = 0.13
"""A piece is this wide or wider where its share is written on it: so it fits on a telephone."""
_HEIGHT = 160
_STRETCH = 1000


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar: the class of its colour, how long it is, what it says when pointed at."""

    colour: str
    length: float
    says: str
    label: str = ""
    """Written on it where there is room."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve that goes on level to the next."""

    x: float
    y: float
    over: float | None = None
    """A second value, drawn as a line."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a heat map: how dark it is, from 0 to 1, and what it says when pointed at."""

    value: float | None
    """None where nothing is known."""
    says: str


def heat_row(cells: Sequence[Cell], colour: str, says: str) -> Markup:
    """A row of a heat map: cells side by side, the darker the larger."""
    width = 1 / max(1, len(cells))
    drawn = [
        el(
            "rect",
            el("title", cell.says),
            x=_cent(place * width),
            width=_cent(width),
            height=14,
            class_="track" if cell.value is None else "mark",
            fill_opacity=None
            if cell.value is None
            else f"{0.06 + 0.94 * min(1.0, max(0.0, cell.value)):.3f}",
        )
        for place, cell in enumerate(cells)
    ]
    return _svg(says, 14, drawn, colour)


def stacked(pieces: Sequence[Piece], whole: float, says: str, *, height: int = 30) -> Markup:
    """A bar of pieces one after the other, as long as their part of the whole."""
    drawn: list[Markup] = []
    start = 0.0
    for piece in pieces:
        share = piece.length / whole if whole else 0.0
        if share > 0:
            drawn.append(_piece(piece, start, share, height))
        start += share
    return _svg(says, height, drawn)


def _piece(piece: Piece, start: float, share: float, height: int) -> Markup:
    # A thin line of the ground sets neighbours apart, whatever their colours.
    drawn = [
        el("rect", x=_cent(start), width=_cent(share), height=height, class_="mark", stroke="var(--panel)")
    ]
    if piece.label and share >= _LABELLED:
        middle = _cent(start + share / 2)
        drawn.append(el("text", piece.label, x=middle, y=height / 2 + 4, text_anchor="middle", class_="on"))
    return el("g", el("title", piece.says), *drawn, class_=piece.colour)


def bar(share: float, colour: str, says: str, *, of: float = 0.0) -> Markup:
    """A part of a whole; or with `of`, a value beside others of which that is the largest."""
    height = 10
    full = min(1.0, max(0.0, share / of if of else share))
    drawn = [
        None if of else el("rect", width="100%", height=height, rx=2, class_="track"),
        el("rect", width=_cent(full), height=height, rx=2, class_="mark") if full else None,
    ]
    return _svg(says, height, drawn, colour)


def interval(low: float, high: float, top: float, colour: str, says: str) -> Markup:
    """From low to high on a scale that ends at the top: a line with a knob at each end."""
    first, last = low / top, high / top
    ends = (first, last) if high else ()
    drawn = [
        el("rect", y=8, width="100%", height=2, class_="track"),
        el("rect", x=_cent(first), y=6, width=_cent(last - first), height=6, class_="mark"),
        *(
            el("rect", x=_cent(end), y=1, width=4, height=16, rx=2, transform="translate(-2)", class_="mark")
            for end in ends
        ),
    ]
    return _svg(says, 18, drawn, colour)


def floating(low: float, high: float, top: float, colour: str, says: str) -> Markup:
    """A bar from low to high on a scale that ends at the top; one of no length is a thin line."""
    drawn = [
        el("rect", y=8, width="100%", height=2, class_="track"),
        el("rect", x=_cent(low / top), width=_cent((high - low) / top), height=18, class_="mark"),
        el("rect", x=_cent(low / top), width=1, height=18, class_="mark"),
    ]
    return _svg(says, 18, drawn, colour)


def axis(marks: Iterable[tuple[float, str]]) -> Markup:
    """The labels below bars, each at its part of the width."""
    drawn = [el("text", label, x=_cent(place), y=12, text_anchor=_anchor(place)) for place, label in marks]
    return el("svg", *drawn, height=16, aria_hidden="true")


def columns(
    bars: Sequence[tuple[str, Sequence[Piece]]], scale: Sequence[tuple[float, str]], says: str
) -> Markup:
    """Bars side by side, each of pieces one above the other; the scale's last mark is the top."""
    top = scale[-1][0]
    slot = 1 / len(bars)
    every = ceil(len(bars) / max(1, min(12, 60 // max(len(label) for label, _ in bars))))
    drawn = [_lines(scale)]
    for place, (label, pieces) in enumerate(bars):
        floor_y = float(_HEIGHT)
        for piece in pieces:
            height = piece.length / top * _HEIGHT
            floor_y -= height
            if height > 0:
                drawn.append(_block(piece, (place + 0.1) * slot, 0.8 * slot, floor_y, height))
        if place % every == 0:
            middle = _cent((place + 0.5) * slot)
            drawn.append(el("text", label, x=middle, y=_HEIGHT + 16, text_anchor="middle"))
    return _plot(scale, _svg(says, _HEIGHT + 22, drawn))


def _block(piece: Piece, left: float, width: float, y: float, height: float) -> Markup:
    mark = el("rect", el("title", piece.says), x=_cent(left), y=_short(y), width=_cent(width),
              height=_short(height), class_="mark")  # fmt: skip
    return el("g", mark, class_=piece.colour)


def area(
    points: Sequence[Point], scale: Sequence[tuple[float, str]], ends: tuple[str, str], says: str
) -> Markup:
    """A curve in steps with the room below it filled, and a dashed one over it."""
    top = scale[-1][0]
    first, last = points[0].x, points[-1].x
    wide = (last - first) or 1.0

    def path(values: Iterable[tuple[float, float]]) -> str:
        drawn = ""
        for x, y in values:
            at = f"{_short((x - first) / wide * _STRETCH)} {_short((1 - y / top) * _HEIGHT)}"
            across, _, up = at.partition(" ")
            drawn += f"H{across}V{up}" if drawn else f"M{at}"
        return drawn

    edge = path((point.x, point.y) for point in points)
    over = path((point.x, point.over) for point in points if point.over is not None)
    curves = el(
        "svg",
        el("path", d=f"{edge}V{_HEIGHT}H0Z", class_="area"),
        el("path", d=edge, class_="edge"),
        el("g", el("path", d=over, class_="edge dashed"), class_="other") if over else None,
        viewBox=f"0 0 {_STRETCH} {_HEIGHT}",
        preserveAspectRatio="none",
        height=_HEIGHT,
    )
    labels = [
        el("text", label, x=_cent(place), y=_HEIGHT + 16, text_anchor=_anchor(place))
        for place, label in ((0.0, ends[0]), (1.0, ends[1]))
    ]
    return _plot(scale, _svg(says, _HEIGHT + 22, [_lines(scale), curves, *labels], "device"))


def ticks(top: float, *, binary: bool = False) -> list[float]:
    """Round numbers from 0 to the first that is not below the top, about four of them."""
    if top <= 0:
        return [0.0, 1.0]
    if binary:
        step = 2.0 ** ceil(log2(top / 4))
    else:
        size = 10.0 ** floor(log10(top / 4))
        step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size * 4 >= top * 0.999)
    return [step * n for n in range(ceil(top / step - 1e-9) + 1)]


def _lines(scale: Sequence[tuple[float, str]]) -> Markup:
    top = scale[-1][0]
    heights = [_short((1 - value / top) * _HEIGHT) for value, _ in scale]
    return joined(el("line", x2="100%", y1=y, y2=y, class_="grid") for y in heights)


def _plot(scale: Sequence[tuple[float, str]], chart: Markup) -> Markup:
    """The chart with the labels of its scale on the left, which do not get narrower with it."""
    top = scale[-1][0]
    labels = [
        el("text", label, x=50, y=_short((1 - value / top) * _HEIGHT + 4), text_anchor="end")
        for value, label in scale
    ]
    return el("div", el("svg", *labels, height=_HEIGHT + 22, aria_hidden="true"), chart, class_="plot")


def _svg(says: str, height: int, drawn: Iterable[Markup | None], colour: str | None = None) -> Markup:
    return el("svg", el("title", says), *drawn, role="img", aria_label=says, height=height, class_=colour)


def _anchor(place: float) -> str:
    return "start" if place <= 0 else "end" if place >= 1 else "middle"


def _cent(part: float) -> str:
    return f"{_short(part * 100)}%"


def _short(value: float) -> str:
    """A coordinate, with more digits than anybody sees."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
