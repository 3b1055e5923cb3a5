"""Programs on real libraries that no rule was made for: what the report says of their faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests import faults
from tests.faults import smallest, smallest_of_each
from tests.samples import reported, tiered

LIBRARY = Path(__file__).parents[1] / "data" / "library"
PROGRAMS: dict[str, dict[str, Any]] = json.loads((LIBRARY / "measurements.json").read_text(encoding="utf-8"))[
    "programs"
]
KEPT = {name: program for name, program in PROGRAMS.items() if program["kept"]}
MISSED = {
    "library_padded_to_max_length": "how much is padding is not known, so other findings stand above it",
    "library_complete_graphs": "the sums over neighbours are no tenth of the step in the profile",
    "library_gloo_in_place_of_nccl": "one rank alone does not communicate in the profile",
    "library_molecules_collated": "without stacks, collating looks like launching",
    "library_sincos_every_step": "without stacks, NumPy looks like ordinary Python",
    "third_kept_logits": "the growing tensor is third or fourth",
    "fourth_full_adjacency": "which numbers of a matrix are zero is not in a profile",
}
"""Faults that the report does not name from a light recording, and why."""


GAINS = (
    "eighteenth_exam_grader",
    "eighteenth_frost_warner",
    "eighteenth_ticket_router",
    "eighth_scoring_service",
    "eighth_smoothed_labels",
    "eighth_super_resolution",
    "eighth_tidy_finetuning",
    "eleventh_click_ranker",
    "eleventh_habit_model",
    "eleventh_street_scene",
    "eleventh_voice_maker",
    "fifteenth_clause_sorter",
    "fifteenth_shop_ranker",
    "fifth_click_model",
    "fifth_defect_classifier",
    "fifth_masked_encoder",
    "fifth_reranker",
    "fifth_video_clips",
    "fourteenth_cell_slides",
    "fourteenth_clip_tagger",
    "fourth_batch_triplets",
    "fourth_checked_actions",
    "fourth_debug_backend",
    "fourth_drawn_rays",
    "fourth_feature_lists",
    "fourth_normed_vocoder",
    "library_generate_without_cache",
    "library_policy_by_environment",
    "library_sentences_one_by_one",
    "library_whisper_features",
    "nineteenth_lava_simulator",
    "ninth_call_sorter",
    "ninth_click_predictor",
    "ninth_load_forecaster",
    "settings_basket_model",
    "settings_song_ranking",
    "settings_text_embedder",
    "seventeenth_crystal_hardness",
    "seventeenth_photo_restorer",
    "seventeenth_wind_farm",
    "seventh_few_labels",
    "seventh_heart_signals",
    "seventh_logged_gradients",
    "seventh_spoken_languages",
    "sixteenth_style_tuner",
    "sixth_citation_graph",
    "sixth_painter",
    "sixth_walking_agent",
    "tenth_bird_calls",
    "tenth_energy_forecast",
    "tenth_event_stream",
    "tenth_speech_codes",
    "third_gradient_log",
    "third_kept_logits",
    "third_layer_decay",
    "third_rerank_casts",
    "third_unmerged_adapter",
    "third_whisper_features",
    "twelfth_call_center",
    "twelfth_film_picker",
    "twelfth_leaf_sorter",
    "twelfth_long_reader",
    "twelfth_storm_forecast",
    "twentieth_rock_flow",
    "twentyfirst_policy_lookup",
    "twentysecond_quake_archive",
    "twentysecond_vinyl_recommender",
    "twentythird_junction_forecaster",
)
"""Programs whose fix replaces a whole loop or stretch of work, or one kind of operator everywhere."""
NEAR = 0.2
"""Part of an end of an interval by which the measured gain may lie beyond it."""


def recording(name: str, side: str) -> Path:
    return LIBRARY / f"{name}.{side}.light.pt.trace.json.gz"


def main_recording(name: str) -> Path:
    return recording(name, "healthy" if KEPT[name]["kind"] == "healthy" else "faulty")


def of_kind(kind: str) -> list[str]:
    return [name for name, one in KEPT.items() if one["kind"] == kind]


PLANTED = {program["finding"] for program in faults.PROGRAMS.values() if program["kind"] == "fault"}


def new_findings(name: str) -> list[str]:
    return [one for one in KEPT[name]["findings"] if one not in PLANTED]


FAULTY = [name for name in of_kind("fault") if name not in MISSED]
IN_EVERY_RUN = {
    *smallest_of_each(
        [name for name in FAULTY if new_findings(name)],
        lambda name: new_findings(name)[0],
        main_recording,
    ),
    *smallest(GAINS, main_recording, 8),
    *smallest(of_kind("fair"), main_recording, 2),
    *smallest(of_kind("healthy"), main_recording, 3),
}
"""Programs for each finding that `tests/faults.py` has not, some whose gain was measured, and some without a
fault; an exhaustive run looks at all of them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(FAULTY, IN_EVERY_RUN))
def test_a_fault_is_first_or_second(name: str) -> None:
    found = [finding.id for finding in reported(recording(name, "faulty")).findings[:2]]
    assert set(found) & set(KEPT[name]["findings"])


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(of_kind("fair"), IN_EVERY_RUN))
def test_what_gains_nothing_is_no_alarm(name: str) -> None:
    report = reported(recording(name, "faulty"))
    planted = [one for one in report.findings if one.id in KEPT[name]["findings"]]
    assert not [one.id for one in planted if one.severity == "high"]


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(of_kind("healthy"), IN_EVERY_RUN))
def test_a_healthy_program_gets_no_alarm(name: str) -> None:
    report = reported(recording(name, "healthy"))
    assert [one.id for one in report.findings if one.severity == "high"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(GAINS, IN_EVERY_RUN))
def test_the_gain_of_a_whole_loop_is_as_predicted(name: str) -> None:
    found = [one for one in reported(recording(name, "faulty")).findings if one.id in KEPT[name]["findings"]]
    before, after = (KEPT[name]["sides"][side]["unprofiled_step_ns"] for side in ("faulty", "mended"))
    measured = 1 - after / before
    ends = [(one.gain.low_share * (1 - NEAR), one.gain.high_share * (1 + NEAR) + 0.01) for one in found]
    assert any(low <= measured <= high for low, high in ends), ends
