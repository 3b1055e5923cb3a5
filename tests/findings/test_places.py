"""Where a line of the user's leads to in libraries and modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.findings.drawn import drawn

from stepscope.analyses.library_functions import LibraryFunction
from stepscope.findings import Advice, Inside, Location, Saving, locations_of
from stepscope.findings.claims import Claim, Time
from stepscope.findings.places import placed
from stepscope.tables import Table

USER = "train.py(50): train"
ATTENTION = "transformers/models/gpt2/modeling_gpt2.py(71): eager_attention_forward"
MLP = "transformers/models/gpt2/modeling_gpt2.py(300): forward"


def advice(*locations: Location) -> Advice:
    claims = frozenset({Claim(Time.STARVED)})
    return Advice("title", "because", Saving(), "likely", "fix", "check", {"n": 1}, claims, locations)


def rows(*given: dict[str, Any]) -> Table[LibraryFunction]:
    return drawn(LibraryFunction, *({"user_frame": USER, **one} for one in given))


CALLED = rows(
    {
        "name": "aten::softmax",
        "library_frame": ATTENTION,
        "module": "GPT2Block.GPT2Attention",
        "device_ns": 60,
    },
    {"name": "aten::_softmax", "library_frame": ATTENTION, "within": "aten::softmax", "device_ns": 60},
    {"name": "aten::linear", "library_frame": MLP, "module": "GPT2MLP.Conv1D", "device_ns": 30},
    {"name": "aten::sum", "device_ns": 10},
)


def test_the_functions_of_libraries_that_hold_most_of_it() -> None:
    (location,) = placed(advice(*locations_of([(USER, "3 calls")])), CALLED).locations
    assert str(location) == "train.py:50 train"
    assert [(str(one), one.share) for one in location.inside] == [
        (
            "transformers/models/gpt2/modeling_gpt2.py:71 eager_attention_forward in GPT2Block.GPT2Attention",
            0.6,
        ),
        ("transformers/models/gpt2/modeling_gpt2.py:300 forward in GPT2MLP.Conv1D", 0.3),
    ]


def test_only_the_operators_of_the_finding_count() -> None:
    (location,) = placed(advice(*locations_of([(USER, "", ["aten::linear", None])])), CALLED).locations
    assert location.ops == ("aten::linear",)
    assert [(one.function, one.share) for one in location.inside] == [("forward", 1.0)]


def test_code_of_the_users_own_has_its_module() -> None:
    table = rows({"name": "aten::mm", "module": "Net.Head", "host_ns": 5})
    (location,) = placed(advice(*locations_of([(USER, "")])), table).locations
    assert location.inside == (Inside(None, None, None, "Net.Head", 1.0),)
    assert str(location.inside[0]) == "in Net.Head"


def test_a_function_that_many_modules_share_names_none() -> None:
    table = rows(
        *({"name": "aten::mm", "library_frame": MLP, "module": name, "host_ns": 5} for name in "abc")
    )
    (location,) = placed(advice(*locations_of([(USER, "")])), table).locations
    assert location.inside[0].module is None


def test_each_of_several_locations_has_one() -> None:
    other = "eval.py(2): run"
    table = Table.of(LibraryFunction, [*CALLED, *(replace(row, user_frame=other) for row in CALLED)], [])
    found = placed(advice(*locations_of([(USER, ""), (other, ""), ("c.py(1): f", "")])), table).locations
    assert [len(location.inside) for location in found] == [1, 1, 0]


def test_without_locations_or_stacks_nothing_changes() -> None:
    plain = advice(*locations_of([(USER, "")]))
    assert placed(plain, ()) == plain
    assert placed(advice(), CALLED) == advice()
