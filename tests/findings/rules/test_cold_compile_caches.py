from __future__ import annotations

from tests.findings.drawn import assert_bounded, drawn, mean_step

from stepscope.analyses.compile_caches import CompileCache
from stepscope.analyses.compile_units import CompileUnit
from stepscope.findings.rules.cold_compile_caches import cold_compile_caches

SECOND = 1_000_000_000
UNITS = drawn(
    CompileUnit,
    {"kind": "frame", "dur_ns": 30 * SECOND},
    {"kind": "backward", "dur_ns": 10 * SECOND},
    {"kind": "runtime", "dur_ns": 99 * SECOND},
)
MISSED = {"cache": "fx graph", "result": "miss", "lookups": 4}


def test_a_start_that_finds_nothing() -> None:
    advice = assert_bounded(cold_compile_caches(drawn(CompileCache, MISSED), UNITS), mean_step())
    assert advice.saving.starved_ns == (0.0, 0.0)
    assert advice.evidence == {
        "lookups": 4,
        "hits": 0,
        "bypassed": 0,
        "compiling_ns": 40 * SECOND,
    }
    assert "compiling took 40.0 s" in advice.because
    assert "TORCHINDUCTOR_CACHE_DIR" in advice.fix


def test_a_bypass_has_its_reason() -> None:
    bypass = {"cache": "aot autograd", "result": "bypass", "lookups": 2, "reason": "Unsupported op.\nMore"}
    advice = assert_bounded(cold_compile_caches(drawn(CompileCache, bypass), UNITS), mean_step())
    assert "2 graphs cannot be cached: Unsupported op." in advice.because
    assert "TORCHINDUCTOR_CACHE_DIR" not in advice.fix
    assert advice.certainty == "certain"


def test_it_is_silent_when_warm_short_or_without_a_log() -> None:
    hits = {"cache": "fx graph", "result": "hit", "lookups": 5}
    assert cold_compile_caches(drawn(CompileCache, MISSED, hits), UNITS) is None
    assert cold_compile_caches(drawn(CompileCache, MISSED), drawn(CompileUnit)) is None
    assert cold_compile_caches(drawn(CompileCache), UNITS) is None
    assert cold_compile_caches(drawn(CompileCache, MISSED, hits), UNITS, most_hits_share=0.6) is not None
