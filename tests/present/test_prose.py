"""Pages of Markdown as markup."""

from __future__ import annotations

import re

import pytest

from stepscope.findings.page import PAGES
from stepscope.present._prose import prose


def link(name: str) -> str:
    """The address of a page in these tests."""
    return f"/explain?rule={name}"


def test_what_the_pages_use_becomes_markup() -> None:
    drawn = prose(
        "# a\n\n**b** and `c` and *d*\nnext\n\n- one\n  more\n- [two](two.md)\n\n```text\nx < 1\n```\n", link
    )
    assert "<h2>a</h2>" in drawn
    assert "<p><strong>b</strong> and <code>c</code> and <em>d</em> next</p>" in drawn
    assert "<li>one more</li>" in drawn
    assert '<a href="/explain?rule=two">two</a>' in drawn
    assert "<pre><code>x &lt; 1</code></pre>" in drawn


def test_a_foreign_text_is_no_markup() -> None:
    drawn = prose("<script>x</script> `<b>` [y](javascript:z) [w](http://x/y.md)", link)
    assert "<script" not in drawn
    assert "<b>" not in drawn
    assert "href" not in drawn


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_no_mark_is_left_over(page: object) -> None:
    text = prose(page.read_text(encoding="utf-8"), link)  # type: ignore[attr-defined]
    outside = re.sub(r"<code>.*?</code>", "", text, flags=re.DOTALL)
    assert not re.search(r"\*\*|```|\]\(|^#", outside, re.MULTILINE)
