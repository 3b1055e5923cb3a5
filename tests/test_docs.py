"""What the pages say is true: examples print what is shown, links lead somewhere, reference pages are fresh.

In a `console` block a line with `$ ` is run and the lines below it must be what it prints, both streams
together. A line `…` stands for any lines, `…` inside a line for any text. `trace.json.gz` is the demo
profile; `before.json.gz` and `after.json.gz` are a program with unfused attention, and mended. A `python`
block is run too; a `text` block right after it holds what it prints.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree as ET

import pytest

from stepscope import reference, registry
from stepscope.cli.main import main
from stepscope.cli.traces import DEMO

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "data" / "README.md"])
WRITTEN = [page for page in PAGES if page.parent.name != "reference"]
FAULTS = ROOT / "tests" / "data" / "faults"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Any) -> str:
    return page.relative_to(ROOT).as_posix() if isinstance(page, Path) else ""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, *kinds: str) -> list[str]:
    return [match[2] for match in BLOCK.finditer(text_of(page)) if match[1] in kinds]


def commands(block: str) -> Iterator[tuple[list[str], str]]:
    """The command lines of a console block, each with what is shown below it."""
    lines = block.splitlines()
    while lines:
        line = lines.pop(0)
        assert line.startswith("$ "), f"output without a command: {line}"
        typed = line[2:]
        while (words := whole(typed)) is None:
            typed += "\n" + lines.pop(0)
        shown = []
        while lines and not lines[0].startswith("$ "):
            shown.append(lines.pop(0))
        yield words, "".join(f"{line}\n" for line in shown)


def whole(typed: str) -> list[str] | None:
    """The words of a command line, or None while a quote is open."""
    try:
        return shlex.split(typed)
    except ValueError:
        return None


def assert_shown(printed: str, shown: str) -> None:
    lines = [
        r"(?:.*\n)*" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + r"\n"
        for line in shown.splitlines()
    ]
    plain = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    assert re.fullmatch("".join(lines), plain), f"shown:\n{shown}\nprinted:\n{plain}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo profile in it, where the examples of all pages are run."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(DEMO, folder / "trace.json.gz")
    for side, name in (("faulty", "before"), ("mended", "after"), ("mended", "again")):
        profile = FAULTS / f"unfused_attention.{side}.light.pt.trace.json.gz"
        shutil.copy(profile, folder / f"{name}.json.gz")
    (folder / "tests").mkdir()
    (folder / "tests" / "data").symlink_to(ROOT / "tests" / "data")  # what is no trace is named where it lies
    return folder


@contextmanager
def streams_in(file: IO[bytes]) -> Iterator[None]:
    """Both streams of this process go to a file; what is no error comes last, as from a process."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = sys.stdout, sys.stderr, os.dup(1), os.dup(2)
    for number in (1, 2):
        os.dup2(file.fileno(), number)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # a number
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    try:
        yield
        sys.stderr.flush()
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = kept[:2]
        for number, old in enumerate(kept[2:], 1):
            os.dup2(old, number)
            os.close(old)


def printed(run: Callable[[], object], folder: Path) -> str:
    """What is printed in a folder."""
    settings = {"STEPSCOPE_CACHE": str(folder / "cache"), "COLUMNS": "80"}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as file:
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        with streams_in(file), suppress(SystemExit):
            run()
        file.seek(0)
        return file.read().decode()


@cache  # pages show the same command more than once
def typed(words: tuple[str, ...], folder: Path) -> str:
    """What a command prints."""
    return printed(lambda: main([*words]), folder)


CONSOLE = [(page, block) for page in WRITTEN for block in blocks(page, "console")]
PYTHON = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_there_are_examples() -> None:
    assert len(CONSOLE) >= 4


@pytest.mark.slow
@pytest.mark.usefixtures("answers_kept")
@pytest.mark.parametrize("page,block", CONSOLE, ids=name_of)
def test_a_console_block_shows_what_is_printed(page: Path, block: str, place: Path) -> None:
    for words, shown in commands(block):
        assert words[0] == "stepscope", "other commands belong in a block of sh"
        assert_shown(typed(tuple(words[1:]), place), shown)


@pytest.mark.slow
@pytest.mark.usefixtures("answers_kept")
@pytest.mark.parametrize("page", [page for page in WRITTEN if blocks(page, "python")], ids=name_of)
def test_python_blocks_run(page: Path, place: Path) -> None:
    examples = PYTHON.findall(text_of(page))
    assert len(examples) == len(blocks(page, "python")), "a block of text below shows what it prints"
    for code, shown in examples:
        assert_shown(printed(partial(exec, code, {"__name__": "__main__"}), place), shown)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_what_one_can_type_exists(page: Path) -> None:
    text = text_of(page)
    makefile = text_of(ROOT / "Makefile")
    for target in re.findall(r"(?:`|^)make ([a-z][\w-]*)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    known = {name for name, _ in registry.names("cli.commands")}
    typed = re.findall(r"(?:`|\$ )stepscope ([a-z]\w*)", text) + re.findall(
        r"^stepscope ([a-z]\w*)", "".join(blocks(page, "sh")), re.MULTILINE
    )
    assert set(typed) <= known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", text_of(page))):
        if "://" not in link:
            assert (page.parent / link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_place_of_one_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users|var)/", text_of(page))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_what_they_hold(page: Path) -> None:
    assert {match[1] for match in BLOCK.finditer(text_of(page))} <= {
        "console",
        "json",
        "python",
        "sh",
        "text",
    }


def test_the_questions_name_every_analysis() -> None:
    text = text_of(ROOT / "docs" / "questions.md")
    assert not [name for name, _ in registry.names("analyses") if f"`{name}`" not in text]


def test_reference_pages_are_what_the_code_says() -> None:
    folder = ROOT / "docs" / "reference"
    stored = {page.name: text_of(page) for page in folder.iterdir()}
    wanted = reference.pages()
    assert set(stored) == set(wanted)
    assert not [name for name in wanted if stored[name] != wanted[name]], "run: make docs"


def test_reference_pages_are_written(tmp_path: Path) -> None:
    reference.write(tmp_path / "new")
    assert {page.name: text_of(page) for page in (tmp_path / "new").iterdir()} == reference.pages()


def test_usage_breaks_between_arguments() -> None:
    for line in reference.pages()["commands.md"].splitlines():
        if line.startswith(("usage:", "       ")):
            assert len(line) <= 96
            assert line.count("[") == line.count("]")


@pytest.mark.slow
def test_the_picture_is_what_is_printed() -> None:
    script = ROOT / "docs" / "images" / "make.py"
    spec = importlib.util.spec_from_file_location("make_picture", script)
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    picture = make.drawn(make.screen())
    ET.fromstring(picture)
    assert text_of(make.TARGET) == picture, "run: make docs"
