from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from stepscope import registry
from stepscope.cli.signature import arguments, call, with_options_of

if TYPE_CHECKING:
    from somewhere import Trace  # type: ignore[import-not-found]  # never imported when the code runs

seen: list[Any] = []


def polish(
    trace: Annotated[str, "what to polish"],
    into: Path | None = None,
    *,
    grit: Annotated[int, "how coarse, 100 % is a lot"] = 80,
    mode: Literal["wet", "dry"] = "wet",
    store: Path | None = None,
    only: tuple[str, ...] = (),
    fast: Annotated[bool, "skip the edges"] = False,
    shine: bool = True,
) -> int:
    """Polishes a trace."""
    seen.append((trace, into, grit, mode, store, only, fast, shine))
    return 7


def gather(traces: tuple[str, ...], *, rounds: int) -> None:
    """Gathers traces."""
    seen.append((traces, rounds))


def grains(trace: Trace, *, finest: Annotated[float, "the finest"] = 0.5) -> str:
    """Lists the grains."""
    return f"{trace} {finest}"


@with_options_of("analyses", "name")
def tell(name: str | None = None, trace: str | None = None, *, limit: int = 3, **options: Any) -> None:
    """Tells what there is."""
    seen.append((name, trace, limit, options))


@pytest.fixture(autouse=True)
def one_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    seen.clear()
    monkeypatch.setattr(registry, "load", lambda folder, name: {("analyses", "grains"): grains}[folder, name])


@pytest.mark.parametrize(
    "line,values",
    [
        ("a", ("a", None, 80, "wet", None, (), False, True)),
        ("a b", ("a", Path("b"), 80, "wet", None, (), False, True)),
        ("a --fast b --no-shine", ("a", Path("b"), 80, "wet", None, (), True, False)),
        ("--grit 3 a --mode dry", ("a", None, 3, "dry", None, (), False, True)),
        ("a --store s --only x --only y", ("a", None, 80, "wet", Path("s"), ("x", "y"), False, True)),
    ],
)
def test_arguments_follow_the_signature(line: str, values: tuple[Any, ...]) -> None:
    assert call(polish, line.split(), prog="polish") == 7
    assert seen == [values]


def test_a_tuple_takes_several_arguments() -> None:
    call(gather, ["a", "b", "--rounds", "2", "c"], prog="gather")
    assert seen == [(("a", "b", "c"), 2)]


@pytest.mark.parametrize(
    "line,message",
    [
        ("", "TRACE"),
        ("a --grit x", "invalid int value"),
        ("a --mode damp", "invalid choice"),
        ("a --gri 3", "unrecognized arguments"),
        ("a b c", "unrecognized arguments"),
    ],
)
def test_wrong_usage_ends_with_2(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        call(polish, line.split(), prog="polish")
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_keyword_without_default_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call(gather, ["a"], prog="gather")
    assert "--rounds" in capsys.readouterr().err


def test_help_tells_the_docstring_and_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        call(polish, ["--help"], prog="stepscope polish")
    text = capsys.readouterr().out
    assert caught.value.code == 0
    for part in (
        "Polishes a trace.",
        "TRACE",
        "INTO",
        "what to polish",
        "how coarse, 100 % is a lot (default: 80)",
    ):
        assert part in text
    for part in ("--store PATH", "{wet,dry}", "--no-shine", "skip the edges"):
        assert part in text


@pytest.mark.parametrize(
    "line,values",
    [
        ("", (None, None, 3, {})),
        ("grains t", ("grains", "t", 3, {"finest": 0.5})),
        ("grains --finest 2 t --limit 1", ("grains", "t", 1, {"finest": 2.0})),
        ("--limit 1 grains t --finest 2", ("grains", "t", 1, {"finest": 2.0})),
    ],
)
def test_a_command_takes_over_the_options_of_a_plug_in(line: str, values: tuple[Any, ...]) -> None:
    call(tell, line.split(), prog="tell")
    assert seen == [values]


def test_help_for_a_plug_in_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call(tell, ["grains", "-h"], prog="tell")
    text = capsys.readouterr().out
    for part in ("Lists the grains.", "--limit", "options of grains", "--finest FLOAT", "the finest"):
        assert part in text


def test_what_no_command_line_can_say_is_a_bug() -> None:
    def stars(*traces: str) -> None: ...
    def either(trace: int | str) -> None: ...
    def listed(trace: list[int]) -> None: ...

    for function in (stars, either, listed):
        with pytest.raises(TypeError):
            call(function, ["a"], prog="")


@pytest.mark.parametrize("line,value", [("", None), ("--rank 3", 3), ("--rank all", "all")])
def test_a_number_may_be_a_word(line: str, value: int | str | None) -> None:
    def choose(*, rank: Annotated[int | Literal["all"] | None, "which"] = None) -> None:
        """Chooses."""
        seen.append((rank,))

    call(choose, line.split(), prog="choose")
    assert seen == [(value,)]
    (argument,) = arguments(choose)
    assert argument.value == "INT|all"


def test_another_word_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def choose(*, rank: int | Literal["all"] | None = None) -> None:
        """Chooses."""

    with pytest.raises(SystemExit):
        call(choose, ["--rank", "some"], prog="choose")
    assert "argument --rank: invalid INT|all value: 'some'" in capsys.readouterr().err


def test_a_plug_in_of_any_of_several_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"analyses": ["ops"], "runs.analyses": ["grains"]}
    monkeypatch.setattr(
        registry, "among", lambda folders, name: next(one for one in folders if name in known[one])
    )
    monkeypatch.setattr(
        registry, "load", lambda folder, name: {("runs.analyses", "grains"): grains}[folder, name]
    )

    @with_options_of(("analyses", "runs.analyses"), "name")
    def several(name: str | None = None, **options: Any) -> None:
        """Tells what there is."""
        seen.append((name, options))

    call(several, ["grains", "--finest", "2"], prog="several")
    assert seen == [("grains", {"finest": 2.0})]
