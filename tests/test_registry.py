from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.packages import install

from stepscope import registry
from stepscope.errors import StepscopeError


def other_packages(monkeypatch: pytest.MonkeyPatch, folder: Path, **points: str) -> None:
    """Installs plug-ins of these names for all folders."""
    install(monkeypatch, folder, {f"stepscope.{group}": points for group in registry.FOLDERS})


def test_names_come_from_the_manifest() -> None:
    manifest = json.loads(registry.MANIFEST.read_text(encoding="utf-8"))
    for folder in registry.FOLDERS:
        assert registry.names(folder) == sorted(manifest[folder].items())


def test_loads_the_function_named_like_its_file() -> None:
    from stepscope.cli.commands.show import show

    assert registry.load("cli.commands", "show") is show


def test_other_packages_are_looked_at_on_demand_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not registry.has_plug_ins()
    other_packages(monkeypatch, tmp_path, polish="json:dumps", show="json:loads")
    assert registry.has_plug_ins()
    assert "polish" not in dict(registry.names("cli.commands"))
    listed = dict(registry.names("cli.commands", installed=True))
    assert listed["polish"] == "From the package plugged-in."
    assert registry.load("cli.commands", "polish") is json.dumps


def test_a_package_in_an_archive_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path / "files", {"stepscope.analyses": {"polish": "json:dumps"}})
    monkeypatch.undo()
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "files")
    assert not registry.has_plug_ins()
    monkeypatch.syspath_prepend(archive)
    assert registry.load("analyses", "polish") is json.dumps


def test_what_is_no_folder_or_has_other_plug_ins_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path, {"console_scripts": {"polish": "json:dumps"}})
    (tmp_path / "bare-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "missing")
    assert not registry.has_plug_ins()


def test_ours_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other_packages(monkeypatch, tmp_path, show="json:loads")
    assert registry.load("cli.commands", "show").__name__ == "show"
    listed = [name for name, _ in registry.names("cli.commands", installed=True)]
    assert listed.count("show") == 1


def test_a_plug_in_has_to_be_a_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other_packages(monkeypatch, tmp_path, polish="json:__name__")
    with pytest.raises(TypeError, match="polish"):
        registry.load("cli.commands", "polish")


def test_an_unknown_name_hints_at_a_close_one() -> None:
    with pytest.raises(StepscopeError, match="unknown command 'shwo'") as caught:
        registry.load("cli.commands", "shwo")
    assert caught.value.hint == "did you mean show?"
    assert caught.value.exit_code == 2


def test_a_far_name_hints_at_all() -> None:
    with pytest.raises(StepscopeError) as caught:
        registry.load("cli.commands", "0000")
    assert "show" in caught.value.hint


@pytest.mark.parametrize(
    "text,message",
    [("def other(): ...", "holds no function polish"), ("def polish(): ...", "has no docstring")],
)
def test_a_file_that_is_no_plug_in_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "polish.py").write_text(text)
    (tmp_path / "sources" / "_part.py").write_text("")
    monkeypatch.setattr(registry, "PACKAGE", tmp_path)
    with pytest.raises(ValueError, match=message):
        registry.scan()


def test_a_command_may_be_called_as_python_calls_its_own() -> None:
    assert "try" in registry.scan()["cli.commands"]
    assert registry.load("cli.commands", "try").__name__ == "try_" == registry.file_of("try")
    assert registry.file_of("report") == "report"
