from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import Annotated

import pytest

from stepscope.present import grids
from stepscope.tables import Table


@dataclass(frozen=True, slots=True)
class Kernel:
    name: Annotated[str, "name of the kernel"]
    rank: Annotated[int, "rank"]
    calls: Annotated[int, "how often it ran"]
    total_ns: Annotated[int | None, "sum of its durations"]
    mean_ns: Annotated[float | None, "mean duration"]
    share: Annotated[float | None, "of all kernel time"]


@dataclass(frozen=True, slots=True)
class Everything:
    key: Annotated[str | None, "text"]
    start_ns: Annotated[int, "when"]
    peak_bytes: Annotated[int, "memory"]
    busy_share: Annotated[float, "ratio"]
    warps: Annotated[float, "number"]
    group_id: Annotated[int, "identifier"]
    linked: Annotated[bool, "yes or no"]


LONG = "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>, std::array<char*, 1ul>>(int)"
KERNELS = Table.of(
    Kernel,
    [
        Kernel(LONG, 1024, 61_000, 1_234_567, 6426.88, 0.2834),
        Kernel("gemm|tn", 0, 1, None, None, None),
        Kernel("memset", 0, 3, 30, 10.0, 0.0001),
    ],
    notes=["2 kernels are unlinked"],
)
EVERYTHING = Table.of(Everything, [Everything(None, 1_700_000_000_000_000_001, 1536, 0.5, 2.345, 4321, True)])


def test_a_grid_is_for_people() -> None:
    text = grids.render(KERNELS, "kernels", "table", width=80)
    assert text == (
        "name                                      rank   calls    total     mean   share\n"
        "────────────────────────────────────────  ────  ──────  ───────  ───────  ──────\n"
        "void at::native::vectorize…*, 1ul>>(int)  1024  61,000  1.23 ms  6.43 µs  28.3 %\n"
        "gemm|tn                                      0       1        –        –       –\n"
        "memset                                       0       3    30 ns    10 ns  <0.1 %\n"
        "\n"
        "2 kernels are unlinked\n"
    )


def test_a_wide_terminal_shows_whole_names() -> None:
    assert LONG in grids.render(KERNELS, "kernels", "table", width=200)


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 120])
def test_what_does_not_fit_goes_into_a_second_grid_with_the_same_keys(width: int) -> None:
    text = grids.render(KERNELS, "kernels", "table", width=width)
    assert "1.23 ms" in text
    assert "28.3 %" in text
    assert text.count("1024") == text.count("gemm|tn")
    # One text of 16, one key of 4, one figure of 7, and gaps: narrower than this it cannot be.
    assert max(map(len, text.splitlines())) <= max(width, 31)


def test_every_kind_of_value_has_its_form() -> None:
    text = grids.render(EVERYTHING, "everything", "table", width=200)
    titles, _, _, values, *_ = text.splitlines()
    assert titles.split() == ["busy", "group"]
    assert values.split() == ["22:13:20.000000001", "1.50", "KiB", "50.0", "%", "2.35", "4321", "yes"]


def test_columns_without_any_value_are_named_and_not_drawn() -> None:
    text = grids.render(EVERYTHING, "everything", "table", width=200)
    assert "key" not in text.splitlines()[1].split()
    assert text.endswith("\n\nNothing to show in: key.\n")
    assert "–" in grids.render(EVERYTHING, "everything", "markdown")


def test_color_makes_the_head_bold_and_changes_no_width() -> None:
    plain = grids.render(KERNELS, "kernels", "table", width=80)
    bold = grids.render(KERNELS, "kernels", "table", width=80, color=True)
    assert "\x1b[1m" in bold
    assert bold.replace("\x1b[1m", "").replace("\x1b[0m", "") == plain


def test_names_cannot_steer_the_terminal() -> None:
    table = Table.of(Kernel, [Kernel("\x1b[2Jgone\n", 0, 1, 1, 1.0, 1.0)])
    text = grids.render(table, "kernels", "table", width=80)
    assert "\x1b" not in text
    assert "\\x1b[2Jgone\\n" in text


def test_wide_characters_keep_the_columns_straight() -> None:
    table = Table.of(Kernel, [Kernel("核" * 60, 0, 1, 1, 1.0, 1.0), Kernel("a", 0, 1, 1, 1.0, 1.0)])
    wide, narrow = grids.render(table, "kernels", "table", width=60).splitlines()[2:4]
    assert len(wide) + wide.count("核") == len(narrow) == 60


def test_limit_says_how_many_there_are() -> None:
    for form in ("table", "markdown"):
        text = grids.render(KERNELS, "kernels", form, limit=1)
        assert "1 of 3 rows" in text
        assert "memset" not in text
    assert len(json.loads(grids.render(KERNELS, "kernels", "json", limit=2))["rows"]) == 2
    assert len(grids.render(KERNELS, "kernels", "csv", limit=2).splitlines()) == 3


@dataclass(frozen=True, slots=True)
class Caveat:
    what: Annotated[str, "which"]
    explanation: Annotated[str | None, "a sentence"]
    count: Annotated[int, "how many"]


def test_sentences_stand_below_their_rows() -> None:
    long = "Some work has no launch in the profile, for it was made before the recording began."
    table = Table.of(Caveat, [Caveat("unlinked", long, 3), Caveat("other", None, 1)])
    assert grids.render(table, "trust", "table", width=60) == (
        "what      count\n"
        "────────  ─────\n"
        "unlinked      3\n"
        "    explanation: Some work has no launch in the profile, for\n"
        "      it was made before the recording began.\n"
        "other         1\n"
    )


def test_no_rows_are_said() -> None:
    table = Table.of(Kernel, [], ["No kernels: the profile has no device work."])
    text = grids.render(table, "kernels", "table")
    assert text == "no rows\nNo kernels: the profile has no device work.\n"


def test_json_holds_exact_values_and_the_meaning_of_every_column() -> None:
    document = json.loads(grids.render(KERNELS, "kernels", "json"))
    assert list(document) == ["analysis", "columns", "rows"]
    assert document["analysis"] == "kernels"
    assert document["columns"][3] == {
        "name": "total_ns",
        "type": "int",
        "description": "sum of its durations",
    }
    assert document["rows"] == KERNELS.records()


def test_csv_holds_exact_values() -> None:
    rows = list(csv.reader(io.StringIO(grids.render(KERNELS, "kernels", "csv"))))
    assert rows[0] == ["name", "rank", "calls", "total_ns", "mean_ns", "share"]
    assert rows[1] == [LONG, "1024", "61000", "1234567", "6426.88", "0.2834"]
    assert rows[2] == ["gemm|tn", "0", "1", "", "", ""]
    assert grids.render(EVERYTHING, "everything", "csv").endswith(",true\n")


def test_markdown_is_a_table_for_people() -> None:
    shown = LONG.replace("<", "&lt;").replace(">", "&gt;").replace("_", "\\_").replace("*", "\\*")
    text = grids.render(KERNELS, "kernels", "markdown", limit=2)
    assert text == (
        "| name | rank | calls | total | mean | share |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        f"| {shown} | 1024 | 61,000 | 1.23 ms | 6.43 µs | 28.3 % |\n"
        "| gemm\\|tn | 0 | 1 | – | – | – |\n"
        "\n"
        "2 of 3 rows\n"
        "\n"
        "2 kernels are unlinked\n"
    )
