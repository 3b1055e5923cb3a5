from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.findings.drawn import drawn, facts
from tests.present.drawn_report import GEMM, IMAGE, SCRIPT, empty_report, report, tables

from stepscope import registry
from stepscope.findings import analysis_of
from stepscope.present._charts import ticks
from stepscope.present._markup import Markup, el, joined, shortened
from stepscope.present._pieces import figure, title_of, worded
from stepscope.present.formats import needs_of
from stepscope.present.report.html import html

SNAPSHOT = Path(__file__).parent / "snapshots" / "report.html"
PAGES = {
    "full": html(report()),
    "empty": html(empty_report()),
    "bare": html(report(tables={})),
}
VOID = {"meta"}


class Parsed(HTMLParser):
    """The elements and the texts of a page; an end that does not fit its start is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice: {tag} {attrs}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data.strip()))

    def text(self) -> str:
        return " ".join(text for place, text in self.texts if place not in ("style", "script"))

    def attributes(self, name: str) -> list[str]:
        return [str(given[name]) for _, given in self.elements if name in given]


@pytest.fixture(params=sorted(PAGES))
def page(request: pytest.FixtureRequest) -> Parsed:
    return Parsed(PAGES[request.param])


def test_everything_of_a_finding_is_there() -> None:
    seen = Parsed(PAGES["full"])
    text = seen.text()
    for finding in report().findings:
        advice = finding.advice
        for told in (advice.title, advice.because, advice.check, f"stepscope explain {finding.id}"):
            assert told in text
        assert f"finding-{finding.id}" in seen.attributes("id")
        for place in advice.locations:
            assert place.function in text
            assert place.note in text
    assert report().findings[0].advice.fix in text
    assert "−18 … −24 ms (31.0–38.7 %)" in text
    assert "This overlaps with #1: the gains do not add up." in text


def test_the_rest_of_a_report_is_there() -> None:
    told, text = report(), Parsed(PAGES["full"]).text()
    for doubt in told.trust:
        assert doubt.explanation in text
        assert doubt.advice in text
    for check in told.checklist:
        assert {check.value, check.target} <= set(text_pieces())
        assert check.name in text
    for missing in told.not_run:
        assert missing.reason in text
    for step in told.next_steps:
        assert step.text in text
        assert step.command in text
    # A word that leads to its definition is a piece of its own.
    assert told.verdict.sentence in re.sub(r" (?=[,.])", "", text)
    assert told.verdict.promise in text
    assert "profiling made steps ≈ 3–11 % longer" in text


def text_pieces() -> list[str]:
    return [text for _, text in Parsed(PAGES["full"]).texts]


def test_names_are_text_and_nothing_else(page: Parsed) -> None:
    names = [tag for tag, _ in page.elements]
    assert names.count("script") == 1
    assert not {"img", "iframe", "object", "embed", "link", "form", "base"} & set(names)
    assert not [name for _, given in page.elements for name in given if name.startswith("on")]


def test_hostile_names_are_shown_as_they_are() -> None:
    text = Parsed(PAGES["full"]).text()
    assert f"run {SCRIPT}.json.gz" in text
    assert f"triton_poi_fused_{SCRIPT}_0" in text
    assert f"ncclDevKernel_AllReduce{IMAGE}" in text
    assert r"a\u202etxt\x00.py" in text
    assert "\u202e" not in PAGES["full"]
    assert "\x00" not in PAGES["full"]


def test_a_file_name_that_is_no_unicode_can_be_written() -> None:
    written = html(report(facts=facts(source="run\udc80.json"))).encode()
    assert rb"run\udc80.json" in written


def test_a_page_needs_nothing_but_itself(page: Parsed) -> None:
    assert all(to.startswith("#") for to in page.attributes("href"))
    assert not page.attributes("src")
    whole = "".join(PAGES.values())
    assert not re.search(r"https?://|//\w|url\(|@import", whole)
    policy = page.attributes("content")[0]
    assert policy.startswith("default-src 'none'")


def test_links_lead_somewhere_and_ids_are_unique(page: Parsed) -> None:
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert {to.removeprefix("#") for to in page.attributes("href")} <= set(ids)


def test_charts_have_names(page: Parsed) -> None:
    outer = [given for tag, given in page.elements if tag == "svg" and "viewbox" not in given]
    assert all(given.get("aria-hidden") == "true" or given.get("aria-label") for given in outer)
    assert all("aria-label" in given for given in outer if given.get("role") == "img")


def test_headings_go_down_by_one(page: Parsed) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))


def test_the_same_report_gives_the_same_bytes() -> None:
    assert html(report()) == PAGES["full"]


def test_a_report_that_knows_nothing_says_so() -> None:
    seen = Parsed(PAGES["empty"])
    text = seen.text()
    for told in ("unknown", "no steps found", "No rule found anything to fix.", "Nothing was recorded"):
        assert told in text
    assert "Unknown: recorded step" in text
    assert seen.attributes("href") == ["#step", "#findings", "#words"]


@pytest.mark.parametrize("name", needs_of(html).tables)
def test_a_table_may_be_missing_or_empty(name: str) -> None:
    whole = tables()
    missing = html(report(tables={key: table for key, table in whole.items() if key != name}))
    assert len(missing) < len(PAGES["full"])
    empty: Any = drawn(whole[name].row)
    assert html(report(tables={**whole, name: empty})) == missing
    Parsed(missing)


def test_without_tables_there_are_no_details() -> None:
    assert "#details" not in Parsed(PAGES["bare"]).attributes("href")


def test_the_page_asks_for_analyses_that_there_are() -> None:
    asked = {analysis_of(table)[0] for table in needs_of(html).tables}
    assert asked <= {name for name, _ in registry.names("analyses")}


@pytest.mark.parametrize("steps, bars", [(12, 12), (13, 13), (60, 60), (150, 50)])
def test_many_steps_stand_side_by_side(steps: int, bars: int) -> None:
    text = html(report(tables={"steps_by_any": tables(steps)["steps_by_any"]}))
    kernels = re.findall(r"<title>step \d+, kernels: ", text)
    assert len(kernels) == bars
    assert "<title>step 4, runtime calls: 44.0 ms" in text, "the longest step is never left out"


def test_long_names_are_shortened_in_the_middle() -> None:
    seen = Parsed(PAGES["full"])
    assert GEMM in seen.attributes("title")
    assert GEMM not in seen.text()
    assert shortened("abcdefghij", 7) == "abcd…ij"
    assert shortened("abc", 3) == "abc"


def test_a_page_is_what_it_was() -> None:
    """Run with UPDATE_SNAPSHOTS=1 to take the page as it is now."""
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(PAGES["full"], encoding="utf-8")
    assert PAGES["full"] == SNAPSHOT.read_text(encoding="utf-8"), "UPDATE_SNAPSHOTS=1 takes it as it is now"


def palettes() -> dict[str, dict[str, str]]:
    """The colours of the page itself, light and dark."""
    light, dark, chosen = re.findall(r":root\S* \{ color-scheme: \w+; ([^}]*)\}", PAGES["full"])
    assert dark == chosen  # by the machine's setting and by hand
    return {
        name: dict(re.findall(r"--(\w+): (#\w{6});", block))
        for name, block in (("light", light), ("dark", dark))
    }


def contrast(one: str, other: str) -> float:
    """As WCAG defines it: 1 for the same colour, 21 for black on white."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(part * c for part, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str) -> None:
    colours = palettes()[scheme]
    grounds = [colours[name] for name in ("ground", "panel", "code")]
    words = [colours[name] for name in ("text", "muted", "link")]
    assert all(contrast(word, ground) >= 4.5 for word in words for ground in grounds)
    meanings = set(colours) - {"ground", "panel", "code", "line", "text", "muted", "link", "on", "track"}
    assert len(meanings) == 12
    for name in meanings:
        assert contrast(colours["on"], colours[name]) >= 4.5, f"text on {name}"
        assert contrast(colours["panel"], colours[name]) >= 4.5, f"{name} as an outline or text"
        assert contrast(colours["track"], colours[name]) >= 3, f"{name} on its track"


def test_both_palettes_name_the_same_colours() -> None:
    light, dark = palettes().values()
    assert light.keys() == dark.keys()
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize(
    "name, value, shown",
    [
        ("waited_ns", 31_234_567, "31.2 ms"),
        ("copied_bytes", 2048, "2.00 KiB"),
        ("starved_share", 0.3807, "38.1 %"),
        ("per_step", 128.0, "128"),
        ("reads", 12_345, "12,345"),
        ("in_loop", True, "yes"),
        ("call", "cudaFree", "cudaFree"),
        ("unknown_ns", None, "–"),
    ],
)
def test_figures_have_the_unit_of_their_name(name: str, value: object, shown: str) -> None:
    assert figure(name, value) == shown


def test_small_words() -> None:
    assert title_of("starved_share") == "starved share"
    assert title_of("algorithm_gb_per_s") == "algorithm GB/s"
    assert (title_of("tflops_per_s"), title_of("model_flops"), title_of("mfu_share")) == (
        "TFLOP/s",
        "model FLOPs",
        "MFU",
    )
    assert title_of("late_host_ns") == "late host"


def test_scales_end_at_or_above_the_top() -> None:
    assert ticks(0.387) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert ticks(71 << 30, binary=True) == [n * 2.0**35 for n in range(4)]
    assert ticks(0) == [0.0, 1.0]
    for top in (1, 3, 7, 10, 99, 1234, 0.001):
        assert top <= ticks(top)[-1] <= 2 * top
        assert 3 <= len(ticks(top)) <= 6


def test_markup_is_escaped_once() -> None:
    inner = el("b", "a < b & c", title='"')
    assert inner == '<b title="&quot;">a &lt; b &amp; c</b>\n'
    assert el("p", inner, None, hidden=True, id=None) == f"<p hidden>{inner}</p>\n"
    assert joined(["<", Markup("<")]) == "&lt;<"
    assert el("p", f"{inner}").startswith("<p>&lt;b"), "markup that was changed is text again"


def test_what_rules_set_in_backticks_is_code() -> None:
    assert worded("waits for `load()`") == "waits for <code>load()</code>"
    assert worded("a name with ` in it, `<b>") == "a name with <code> in it, </code>&lt;b&gt;"
    assert worded("only one ` here") == "only one ` here"
