"""Names as people see them, and the guard that all text passes on its way out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hostile import SIGNS, TEXT, check_text

from stepscope.present._cells import cell
from stepscope.present._markup import el
from stepscope.present._printable import Styled, WorkflowCommands, codes, guarded, printable
from stepscope.present._workflow import command, lines


@pytest.mark.parametrize(
    "sign", sorted({sign for sign in SIGNS if not " " <= sign <= "~"} | {"\ud800", "\0"}), ids=ascii
)
def test_no_sign_passes(sign: str) -> None:
    for shown in (printable(f"a{sign}b"), guarded(f"a{sign}b")):
        assert shown.isascii()
        assert shown.startswith("a\\")
        assert sign not in shown


@pytest.mark.parametrize(
    "text", ["", "aten::mm", "at::native::f<4>(int)", "é 核 😀 → ─", "a\u00a0b\u3000c", "a\tb\nc\n"]
)
def test_what_can_be_seen_stays(text: str) -> None:
    assert guarded(text) == text
    assert printable(text, keep="\n\t\u00a0\u3000") == text


@given(st.text())
def test_json_stays_json_and_says_the_same(text: str) -> None:
    for written in (
        json.dumps([text, {text: 1}], ensure_ascii=False, indent=1),
        json.dumps(text, ensure_ascii=False),
    ):
        assert json.loads(guarded(written)) == json.loads(written)


def test_a_rare_sign_is_two_halves() -> None:
    assert codes("\U000e0041\x1b") == "\\udb40\\udc41\\u001b"
    assert json.loads(f'"{codes("😀")}"') == "😀"


@pytest.mark.parametrize(
    "text,shown",
    [
        ("::error::x", "\\u003a:error::x"),
        ("a\n \u00a0::set-output name=a::b", "a\n \u00a0\\u003a:set-output name=a::b"),
        ("a ::error::x", "a ::error::x"),
        ("a ##[error]x", "a \\u0023#[error]x"),
        ("##vso[task.x]y ##teamcity[z]", "\\u0023#vso[task.x]y \\u0023#teamcity[z]"),
        ("## Findings\n::\n:: a", "## Findings\n::\n:: a"),
    ],
)
def test_no_line_is_a_command_to_a_log(text: str, shown: str) -> None:
    assert guarded(text) == shown
    assert guarded(Styled(text)) == shown
    assert guarded(WorkflowCommands(text)) == text


def test_the_rest_of_a_line_is_none() -> None:
    assert guarded("::error::x\n::error::y", begins_line=False) == "::error::x\n\\u003a:error::y"


def test_colours_pass_only_where_they_are_said_to_be_ours() -> None:
    text = "\x1b[1mbold\x1b[0m\r\x1b[K"
    assert guarded(Styled(text)) == text
    assert "\x1b" not in guarded(text)
    assert "\x1b" not in guarded(f"{Styled(text)} and more"), "whatever is done to it makes plain text"
    assert guarded(Styled("\x1b[2J\x1b]0;x\x07")) == "\\u001b[2J\\u001b]0;x\\u0007"


def test_a_workflow_command_is_one_line() -> None:
    text = guarded(lines([command("notice", TEXT, TEXT), command("error", "b", TEXT)]))
    check_text(text, commands=True)
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize(
    "text,shown",
    [
        ("aten::mm", "aten::mm"),
        ("=1+1", "'=1+1"),
        ("+cmd", "'+cmd"),
        ("-x", "'-x"),
        ("@a", "'@a"),
        ("-1", "-1"),
        ("+1.5e-3", "+1.5e-3"),
        ("-", "'-"),
        ("a\nb", "a\\nb"),
        ("\t=1", "\\t=1"),
    ],
)
def test_cells(text: str, shown: str) -> None:
    assert cell(text) == shown


def test_a_name_makes_no_line_of_a_page() -> None:
    assert el("td", "a\nb", title="c\nd") == '<td title="c\\nd">a\\nb</td>'
