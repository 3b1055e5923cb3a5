"""What holds for every format of a report, a comparison and a check."""

from __future__ import annotations

import inspect

import pytest

from stepscope import registry
from stepscope.findings import analysis_of
from stepscope.present.formats import Needs, needs_of

FOLDERS = [folder for folder in registry.FOLDERS if folder.startswith("present.")]
FORMATS = [(folder, name) for folder in FOLDERS for name, _ in registry.names(folder)]


def test_there_are_formats() -> None:
    assert len(FOLDERS) == 3
    assert {"terminal", "markdown", "json", "github"} <= {name for _, name in FORMATS}


@pytest.mark.parametrize("folder,name", FORMATS)
def test_a_format_takes_what_it_shows_and_declares_the_rest(folder: str, name: str) -> None:
    function = registry.load(folder, name)
    assert isinstance(needs_of(function), Needs)
    shown, *options = inspect.signature(function).parameters.values()
    assert shown.kind is shown.POSITIONAL_OR_KEYWORD
    assert all(option.kind is option.KEYWORD_ONLY for option in options)
    assert {option.name for option in options} == set(needs_of(function).options) <= {"width", "color"}
    assert inspect.signature(function).return_annotation == "str"


@pytest.mark.parametrize("folder,name", FORMATS)
def test_what_a_format_declares_exists(folder: str, name: str) -> None:
    needs = needs_of(registry.load(folder, name))
    analyses = dict(registry.names("analyses"))
    assert {analysis_of(table)[0] for table in needs.tables} <= set(analyses)
    assert not needs.job_summary or needs.job_summary in dict(registry.names(folder))
    assert needs.ending.startswith(".")


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_ending_means_one_format(folder: str) -> None:
    endings = [needs_of(registry.load(folder, name)).ending for name, _ in registry.names(folder)]
    assert len(endings) == len(set(endings))
