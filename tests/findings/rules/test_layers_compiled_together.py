from __future__ import annotations

from tests.findings.drawn import assert_bounded, drawn, mean_step

from stepscope.analyses.compile_units import CompileUnit
from stepscope.findings.rules.layers_compiled_together import layers_compiled_together

SECOND = 1_000_000_000
WHOLE = {
    "kind": "frame",
    "region": "0/0",
    "function": "/app/model.py(3): forward",
    "layers": 32,
    "graph_ops": 2000,
    "dur_ns": 90 * SECOND,
}


def test_a_whole_model_in_one_graph() -> None:
    advice = assert_bounded(layers_compiled_together(drawn(CompileUnit, WHOLE)), mean_step())
    assert advice.evidence == {
        "layers": 32,
        "graph_ops": 2000,
        "compiling_ns": 90 * SECOND,
        "graphs": 1,
    }
    assert "32 layers" in advice.because
    assert str(advice.locations[0]) == "/app/model.py:3 forward"


def test_it_is_silent_about_few_layers_short_compilations_and_backwards() -> None:
    for other in ({"layers": 3}, {"layers": None}, {"dur_ns": 5 * SECOND}, {"kind": "backward"}):
        assert layers_compiled_together(drawn(CompileUnit, {**WHOLE, **other})) is None
    assert layers_compiled_together(drawn(CompileUnit)) is None
    assert layers_compiled_together(drawn(CompileUnit, {**WHOLE, "layers": 3}), least_layers=2) is not None
