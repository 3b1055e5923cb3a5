"""What holds for every plug-in, so that who knows one knows all."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast, get_args, get_type_hints

import pytest

from stepscope import registry
from stepscope.cli.commands.show import show
from stepscope.findings import Category, Rule, wanted_by
from stepscope.findings.page import PAGES
from stepscope.tables import columns_of

PLUGINS = [(folder, name) for folder in registry.FOLDERS for name, _ in registry.names(folder)]
ANALYSES = [name for folder, name in PLUGINS if folder == "analyses"]
RUN_ANALYSES = [name for folder, name in PLUGINS if folder == "runs.analyses"]
EVERY_ANALYSIS = [(folder, name) for folder, name in PLUGINS if folder in ("analyses", "runs.analyses")]
RULES = [name for folder, name in PLUGINS if folder == "findings.rules"]
RUN_RULES = [name for folder, name in PLUGINS if folder == "runs.rules"]


def plain(folder: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = inspect.unwrap(registry.load(folder, name))
    return function


def test_the_manifest_is_true() -> None:
    manifest = json.loads(registry.MANIFEST.read_text(encoding="utf-8"))
    assert manifest == registry.scan(), "run: make manifest"


@pytest.mark.parametrize("folder,name", PLUGINS)
def test_a_plug_in_is_named_after_its_file(folder: str, name: str) -> None:
    function = plain(folder, name)
    assert function.__name__ == registry.file_of(name)
    assert function.__module__ == f"stepscope.{folder}.{registry.file_of(name)}"


@pytest.mark.parametrize("folder,name", PLUGINS)
def test_a_plug_in_is_documented(folder: str, name: str) -> None:
    first_line = dict(registry.names(folder))[name]
    assert inspect.getdoc(registry.load(folder, name)), "the decorator lost the docstring"
    assert first_line[0].isupper()
    assert first_line.endswith(".")
    assert len(first_line) <= 100


def test_no_analysis_of_runs_is_named_like_one_of_traces() -> None:
    assert not set(ANALYSES) & set(RUN_ANALYSES)


@pytest.mark.parametrize("folder,name", EVERY_ANALYSIS)
def test_every_column_of_an_analysis_has_a_description(folder: str, name: str) -> None:
    (row,) = get_args(result_of(folder, name))
    columns = columns_of(row)
    assert columns
    assert all(column.description.strip() for column in columns)


@pytest.mark.parametrize("folder,name", EVERY_ANALYSIS)
def test_options_of_an_analysis_are_none_of_show(folder: str, name: str) -> None:
    first, *options = inspect.signature(plain(folder, name)).parameters.values()
    assert first.name == ("trace" if folder == "analyses" else "run")
    assert all(
        option.kind is option.KEYWORD_ONLY and option.default is not option.empty for option in options
    )
    assert not {option.name for option in options} & set(inspect.signature(show).parameters)


def rule_of(name: str) -> Rule:
    return cast("Rule", registry.load("findings.rules", name))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_a_category_and_yields_to_rules_that_exist(name: str) -> None:
    rule = rule_of(name)
    assert isinstance(rule.category, Category)
    assert set(rule.yields_to) <= set(RULES) - {name}
    assert len(set(rule.yields_to)) == len(rule.yields_to)


@pytest.mark.parametrize("name", RUN_RULES)
def test_a_rule_about_runs_has_a_category_a_page_and_tables_that_exist(name: str) -> None:
    rule = cast("Rule", registry.load("runs.rules", name))
    assert isinstance(rule.category, Category)
    assert set(rule.yields_to) <= set(RUN_RULES) - {name}
    assert name not in RULES
    assert (PAGES / f"{name.replace('_', '-')}.md").exists()
    wanted = {table for table, _ in wanted_by(rule)[0].values()}
    assert wanted <= {*RUN_ANALYSES, "run_step", "run_facts"}


def test_every_category_has_a_rule() -> None:
    assert {rule_of(name).category for name in RULES} == set(Category)


@pytest.mark.parametrize("name", RULES)
def test_no_rule_yields_to_one_that_yields_to_it(name: str) -> None:
    reached, waiting = set[str](), [*rule_of(name).yields_to]
    while waiting:
        other = waiting.pop()
        if other not in reached:
            reached.add(other)
            waiting += rule_of(other).yields_to
    assert name not in reached


def test_importing_stepscope_imports_nothing_heavy() -> None:
    code = "import sys; before = set(sys.modules); import stepscope; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"duckdb", "jinja2", "numpy", "plotly", "pyarrow", "ray", "rich", "torch"}
    assert not heavy & set(done.stdout.split())


def result_of(folder: str, name: str) -> Any:
    """What an analysis returns: `Table[Row]`. Its other annotations may exist for type checkers only."""
    function = plain(folder, name)

    def carrier() -> None: ...

    carrier.__annotations__ = {"return": function.__annotations__["return"]}
    from stepscope.tables import Table

    return get_type_hints(carrier, globalns={"Table": Table, **vars(sys.modules[function.__module__])})[
        "return"
    ]
