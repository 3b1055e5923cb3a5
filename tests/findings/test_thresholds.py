"""Thresholds in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import StepscopeError
from stepscope.findings.thresholds import nearest_thresholds, thresholds_in


def written(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_those_of_the_nearest_file_that_has_any(tmp_path: Path) -> None:
    written(tmp_path, "[tool.stepscope.blocking-launches]\nleast_share = 0.5\n")
    inner = tmp_path / "project" / "deep"
    inner.mkdir(parents=True)
    written(inner.parent, "[project]\nname = 'x'\n")
    assert nearest_thresholds(inner) == {"blocking-launches": {"least_share": 0.5}}


def test_a_whole_number_will_do(tmp_path: Path) -> None:
    file = written(tmp_path, "[tool.stepscope.blocking-launches]\nleast_share = 1\n")
    assert thresholds_in(file) == {"blocking-launches": {"least_share": 1}}


@pytest.mark.parametrize(
    "text,said,hint",
    [
        ("[tool.stepscope.blocking-lunches]\n", "there is no rule 'blocking-lunches'", "blocking-launches?"),
        ("[tool.stepscope.blocking-launches]\nleast_shore = 1", "no threshold 'least_shore'", "least_share?"),
        ("[tool.stepscope.blocking-launches]\nleast_share = 'x'", "least_share is 'x'", "like 0.02"),
        ("[tool.stepscope.blocking-launches]\nleast_share = true", "least_share is True", "like 0.02"),
        ("[tool.stepscope]\nblocking-launches = 3", "is not a table", "[tool.stepscope.blocking-launches]"),
        ("[tool]\nstepscope = 3", "is not a table", "[tool.stepscope.RULE]"),
        ("[tool.stepscope", "cannot be read", "fix the file"),
    ],
)
def test_mistakes_are_said_with_what_to_type(tmp_path: Path, text: str, said: str, hint: str) -> None:
    with pytest.raises(StepscopeError) as caught:
        thresholds_in(written(tmp_path, text))
    assert said in caught.value.message
    assert str(tmp_path) in caught.value.message
    assert hint in (caught.value.hint or "")
