"""The verdict: a word and a sentence for every kind of program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.findings.drawn import MS, busy_pace, drawn, facts, mean_step
from tests.findings.test_ranking import advice

from stepscope.analyses.attention import Attention
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.devices import Device
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.rooflines import Roofline
from stepscope.findings import Category
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.program import Vendor
from stepscope.findings.ranking import ranked
from stepscope.findings.report import Overview, Verdict
from stepscope.findings.verdict import verdict_of
from stepscope.tables import Table

PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu", "other")


def overview(step: MeanStep, **parts: float) -> Overview:
    return Overview(
        steps=step.steps,
        found_by="marks",
        step_ns=round(step.step_ns),
        steady_step_ns=round(step.step_ns),
        unprofiled_step_ns=(round(step.unprofiled_ns[0]), round(step.unprofiled_ns[1])),
        parts={part: round(parts.get(part, 0)) for part in PARTS},
        phases=(),
        pace_set_by="host",
        devices_with_work=1,
        kernels_per_step=10,
        utilization_share=None,
        starved_share=None,
        sm_efficiency_share=None,
        peak_memory_bytes=None,
        memory_bytes=None,
        mfu_share=None,
        rates={},
    )


def verdict(step: MeanStep, tables: dict[str, Table[Any]] | None = None, **parts: float) -> Verdict:
    return verdict_of(step, facts(), overview(step, **parts), (), tables or {})


def idle(*rows: tuple[str, str, str | None, float]) -> dict[str, Table[Any]]:
    cells = [
        {"device": "0", "side": side, "spent_in": spent, "drained_by": drained, "idle_ns": round(10 * ns)}
        for side, spent, drained, ns in rows
    ]
    return {"idle_gaps": drawn(IdleGap, *cells)}


LATE: dict[str, Any] = {"unprofiled_ns": (8.0 * MS, 9.0 * MS), "busy_ns": 2.0 * MS, "starved_ns": 8.0 * MS}


def losses(**shares: float) -> dict[str, tuple[float, float]]:
    """What a step loses if one thing is infinitely fast."""
    return {
        name: (shares.get(name, 0.0), shares.get(name, 0.0))
        for name in ("device", "host", "input", "communication", "waits")
    }


def test_host_bound() -> None:
    step = mean_step(**LATE, losses=losses(host=0.6, device=0.05))
    found = verdict(step, kernel=2 * MS, cpu=5 * MS, other=3 * MS)
    assert found.word == "host-bound"
    assert found.sentence == (
        "The GPU computes for 20 % of the 10.0 ms step. "
        "It is idle for 80 %, waiting for the host to launch work."
    )


def test_sync_bound() -> None:
    step = mean_step(**LATE, losses=losses(host=0.5, device=0.3, waits=0.4))
    assert verdict(step, kernel=2 * MS).word == "sync-bound"


def test_a_busy_device_that_would_gain_nothing_by_speed_is_not_what_limits_the_step() -> None:
    step = mean_step(busy_ns=6.0 * MS, starved_ns=4.0 * MS, losses=losses(host=0.25, device=0.05))
    assert verdict(step, rooflines("compute"), kernel=6 * MS).word == "host-bound"


def test_collectives_come_before_compute_that_takes_a_little_more() -> None:
    step = busy_pace(losses=losses(device=0.21, communication=0.18, waits=0.1))
    assert verdict(step, kernel=6 * MS, communication=2 * MS).word == "communication-bound"


def test_steps_that_cannot_be_reproduced_have_no_verdict() -> None:
    step = mean_step(losses=losses(device=0.5), simulation_error=0.51)
    found = verdict(step, kernel=5 * MS, communication=2 * MS)
    assert (found.word, found.promise) == ("unknown", "")
    assert "a simulation of them is off by 51 %" in found.sentence


def test_where_nothing_alone_sets_the_pace_most_of_the_step_must_go_to_one_thing() -> None:
    together = losses(device=0.04, host=0.03)
    assert verdict(mean_step(losses=together), kernel=5 * MS).word == "unknown"
    assert verdict(busy_pace(losses=together), kernel=9.8 * MS).word == "device-bound"


def test_input_bound_by_loading() -> None:
    tables = idle(("host", "dataloader", None, 7 * MS), ("host", "host op", None, 1 * MS))
    step = mean_step(**LATE, losses=losses(host=0.2, input=0.6))
    found = verdict(step, tables, kernel=2 * MS, dataloader=7 * MS)
    assert found.word == "input-bound"
    assert "waiting for the next batch" in found.sentence


def test_input_bound_by_copies() -> None:
    found = verdict(busy_pace(losses=losses(device=0.3, input=0.6)), kernel=3 * MS, memcpy=6 * MS)
    assert found.word == "input-bound"
    assert "Exposed copies, which overlap with no kernel, take 60 %" in found.sentence


def test_communication_bound() -> None:
    step = busy_pace(losses=losses(device=0.3, communication=0.6))
    found = verdict(step, kernel=3 * MS, communication=6 * MS)
    assert found.word == "communication-bound"
    assert "including the wait for other ranks" in found.sentence


def rooflines(bound: str, **shares: float) -> dict[str, Table[Any]]:
    return {"rooflines_by_family": drawn(Roofline, {"bound": bound, "work_ns": 9 * MS, **shares})}


@pytest.mark.parametrize("bound,word", [("compute", "compute-bound"), ("memory", "memory-bandwidth-bound")])
def test_bound_by_the_device(bound: str, word: str) -> None:
    step = busy_pace(losses=losses(device=0.9))
    findings = ranked(
        [("a", Category.HOST, advice(Claim(Time.DEVICE), device_ns=(3.0 * MS, 4.0 * MS)))], step
    )
    found = verdict_of(step, facts(), overview(step, kernel=9.8 * MS), findings, rooflines(bound))
    assert found.word == word
    assert found.promise == "Fixing #1 should bring the step to 6.0–7.1 ms."


def test_what_bounds_the_device_may_be_unknown() -> None:
    step = busy_pace(losses=losses(device=0.9))
    found = verdict(step, rooflines("unknown"), kernel=9 * MS)
    assert found.word == "device-bound"
    assert found.sentence.endswith("The profile does not show what limits its kernels.")


def test_healthy_says_what_bounds_it_and_how_far_that_is() -> None:
    step = busy_pace(losses=losses(device=0.9))
    found = verdict(step, rooflines("compute", peak_share=0.55), kernel=9.8 * MS)
    assert found.word == "healthy"
    assert "limited by arithmetic, at 55 % of the hardware's peak" in found.sentence
    assert "unprofiled" not in found.sentence, "profiling hardly changes it"


def test_healthy_only_without_the_profiler_says_so() -> None:
    step = mean_step(
        busy_ns=4.0 * MS,
        starved_ns=6.0 * MS,
        unprofiled_ns=(4.2 * MS, 4.5 * MS),
        losses=losses(device=0.4),
    )
    found = verdict(step, rooflines("compute", peak_share=0.55), kernel=4 * MS)
    assert found.word == "healthy"
    assert found.sentence.startswith(
        "The GPU computes for 40 % of the 10.0 ms step and for 89 % of the unprofiled one, limited by"
    )


def test_far_from_the_peak_is_not_healthy() -> None:
    step = busy_pace(losses=losses(device=0.9))
    assert verdict(step, rooflines("compute", peak_share=0.19), kernel=9.8 * MS).word == "compute-bound"


def test_a_large_gain_in_precision_is_not_healthy() -> None:
    step = busy_pace(losses=losses(device=0.9))
    unsure = advice(Claim(Time.DEVICE), device_ns=(0.0, 3.0 * MS))
    findings = ranked([("a", Category.PRECISION, unsure)], step)
    assert findings[0].severity == "low"
    found = verdict_of(step, facts(), overview(step, kernel=9.8 * MS), findings, rooflines("compute"))
    assert found.word == "compute-bound"


def test_compiling() -> None:
    rows: list[dict[str, Any]] = [{"step": 1, "total_ns": 30 * MS}, {"step": None, "total_ns": 300 * MS}]
    tables: dict[str, Table[Any]] = {"compilations": drawn(Compilation, *rows)}
    found = verdict(mean_step(), tables, kernel=2 * MS)
    assert (found.word, found.sentence[:4]) == ("compiling", "30 %")


def test_copies_that_take_more_than_kernels() -> None:
    step = mean_step(losses=losses(device=0.6, host=0.1))
    found = verdict(step, kernel=MS, memcpy=6 * MS, other=3 * MS)
    assert found.word == "copy-bound"
    assert found.sentence.endswith("Exposed copies, which overlap with no kernel, take 60 %.")
    assert verdict(step, kernel=4 * MS, memcpy=3 * MS, other=3 * MS).word == "device-bound"


def test_imbalanced() -> None:
    rows = [{"device": str(at), "window": "span", "busy_ns": ns} for at, ns in ((0, 9 * MS), (1, 4 * MS))]
    found = verdict(mean_step(), {"devices": drawn(Device, *rows)}, kernel=2 * MS)
    assert found.word == "imbalanced"
    assert "Device 1 is busy for 56 % less time than device 0" in found.sentence


def test_a_device_that_waits_for_what_was_not_recorded() -> None:
    step = mean_step(busy_ns=3.0 * MS, starved_ns=0.0, losses=losses(device=0.3))
    missing = {"idle_gaps": drawn(IdleGap, {"device": "0", "side": "unknown", "idle_ns": 60 * MS})}
    found = verdict(step, missing, kernel=3 * MS, other=6 * MS)
    assert found.word == "unknown"
    assert "launches of its work were not recorded" in found.sentence
    less = {"idle_gaps": drawn(IdleGap, {"device": "0", "side": "unknown", "idle_ns": 20 * MS})}
    assert verdict(step, less, kernel=3 * MS, other=6 * MS).word == "device-bound"


def test_without_a_device() -> None:
    step = mean_step(device=None, busy_ns=0.0, starved_ns=0.0, latency_ns=0.0)
    assert verdict(step, cpu=8 * MS, other=2 * MS).word == "host-bound"
    assert verdict(step, dataloader=8 * MS, other=2 * MS).word == "input-bound"
    assert verdict(step, communication=8 * MS, other=2 * MS).word == "communication-bound"
    assert verdict(step).word == "unknown"


@pytest.mark.parametrize(
    "parts,said",
    [
        ({"runtime": MS, "cpu": 5 * MS}, "what the device did is not recorded"),
        ({"other": 9 * MS}, "no operators either"),
    ],
)
def test_a_profile_that_lacks_the_device_has_no_verdict(parts: dict[str, float], said: str) -> None:
    found = verdict(mean_step(device=None, busy_ns=0.0, starved_ns=0.0), None, **parts)
    assert found.word == "unknown"
    assert said in found.sentence


def test_a_profile_that_lacks_the_kernels_has_no_verdict() -> None:
    step = mean_step(**LATE, losses=losses(host=0.6))
    seen = replace(overview(step, memcpy=MS, other=8 * MS), kernels_per_step=0)
    found = verdict_of(step, facts(), seen, (), {})
    assert found.word == "unknown"
    assert "no kernel" in found.sentence


def test_several_devices_of_one_process_are_told_apart() -> None:
    step = mean_step(**LATE, losses=losses(host=0.6, device=0.05))
    found = verdict_of(step, facts(), replace(overview(step, kernel=4 * MS), devices_with_work=2), (), {})
    assert found.sentence == (
        "At least one of 2 GPUs computes for 40 % of the 10.0 ms step. "
        "The busiest, GPU 0, is idle for 80 %, waiting for the host to launch work."
    )


def test_without_steps() -> None:
    assert verdict(mean_step(steps=0)).word == "unknown"


def test_the_promise_names_those_that_matter() -> None:
    step = mean_step()
    findings = ranked(
        [
            ("a", Category.HOST, advice(Claim(Time.STARVED), starved_ns=(3.0 * MS, 4.0 * MS))),
            ("b", Category.HOST, advice(Claim(Time.STARVED, Part.SYNCS), starved_ns=(2.0 * MS, 2.0 * MS))),
            ("c", Category.HOST, advice(Claim(Time.DEVICE, Part.COPY), device_ns=(0.0, 0.1 * MS))),
        ],
        step,
    )
    found = verdict_of(step, facts(), overview(step, kernel=5 * MS), findings, {})
    assert found.promise.startswith("Fixing #1 and #2 should bring the step to ")


def test_what_overlapping_fixes_bring_is_left_out_where_it_is_hardly_known() -> None:
    step = mean_step(computing_ns=0.5 * MS, unprofiled_ns=(10.0 * MS, 10.0 * MS))
    loading = Claim(Time.WAITED, Part.DATALOADER)
    both = [
        ("a", Category.INPUT, advice(loading, waited_ns=(2.0 * MS, 5.0 * MS))),
        ("b", Category.INPUT, advice(loading, waited_ns=(1.0 * MS, 4.0 * MS))),
    ]
    seen = overview(step, kernel=5 * MS)
    alone = verdict_of(step, facts(), seen, ranked(both[:1], step), {}).promise
    assert alone.startswith("Fixing #1 should bring the step to ")
    assert verdict_of(step, facts(), seen, ranked(both, step), {}).promise == alone


def test_the_promise_leaves_the_kernels_that_no_fix_makes_shorter() -> None:
    step = mean_step(computing_ns=5.0 * MS, unprofiled_ns=(10.0 * MS, 10.0 * MS))
    loading = advice(Claim(Time.WAITED, Part.DATALOADER), waited_ns=(4.0 * MS, 9.0 * MS))
    attention = advice(Claim(Time.DEVICE, Part.ATTENTION), device_ns=(2.0 * MS, 3.0 * MS))
    findings = ranked([("a", Category.INPUT, loading), ("b", Category.ATTENTION, attention)], step)
    promise = verdict_of(step, facts(), overview(step, kernel=5 * MS), findings, {}).promise
    assert promise.endswith("should bring the step to 3.5–5.6 ms.")


def test_of_a_device_whose_runtime_is_not_known_nothing_is_said() -> None:
    step = busy_pace(losses=losses(device=0.9))
    known = facts(vendor=Vendor.MTIA)
    found = verdict_of(step, known, overview(step, kernel=9.8 * MS), (), rooflines("compute"))
    assert found.word == "unknown"
    assert "CUDA" not in found.sentence
    assert "GPU" not in found.sentence


def decoding(*, tokens: int | None = 32, calls: int = 100, **told: Any) -> dict[str, Table[Any]]:
    """Decoding in a graph, of which the profile has no shapes."""
    iteration = {"kind": "decode", "kind_basis": "annotation", "tokens": tokens, **told.pop("iteration", {})}
    product = {"family": "matmul", "data_type": "bf16", "bound": "unknown", "calls": calls, "work_ns": 6 * MS}
    cache = {"family": "attention", "data_type": "bf16", "bound": "unknown", "calls": 50, "work_ns": 2 * MS}
    other = {"family": "elementwise", "bound": "unknown", "calls": 200, "work_ns": 1 * MS}
    return {
        "iterations": drawn(Iteration, iteration),
        "rooflines_by_family": drawn(Roofline, {**product, **told}, cache, other),
        "attention": drawn(Attention, {"longest": "paged_attention"}),
    }


def test_decoding_few_tokens_is_limited_by_reads_even_where_shapes_are_unknown() -> None:
    step = busy_pace(losses=losses(device=0.9))
    found = verdict(step, decoding(), kernel=9.8 * MS)
    assert found.word == "memory-bandwidth-bound", "not healthy: how close it is to the peak is unknown"
    assert "A step decodes at most 32 tokens, so reading the weights" in found.sentence


@pytest.mark.parametrize(
    "told",
    [
        {"tokens": 33},
        {"tokens": None},
        {"data_type": "fp32"},
        {"data_type": None},
        {"calls": 1000},
        {"iteration": {"kind": "mixed"}},
        {"iteration": {"kind_basis": "kernels"}},
    ],
    ids=str,
)
def test_nothing_is_said_of_decoding_that_the_profile_does_not_prove(told: dict[str, Any]) -> None:
    step = busy_pace(losses=losses(device=0.9))
    assert verdict(step, decoding(**told), kernel=9.8 * MS).word == "device-bound"


def test_latent_attention_may_be_limited_by_arithmetic() -> None:
    step = busy_pace(losses=losses(device=0.9))
    tables = decoding(work_ns=2 * MS)
    assert verdict(step, tables, kernel=9.8 * MS).word == "memory-bandwidth-bound"
    tables["attention"] = drawn(Attention, {"longest": "flash_mla_decode"})
    assert verdict(step, tables, kernel=9.8 * MS).word == "device-bound"
