"""Real programs with known faults, each beside its mended twin, and programs with nothing to mend."""

from __future__ import annotations

from benchmarks.faults import (
    compiler,
    eighteenth_fields,
    eighteenth_healthy,
    eighteenth_serving,
    eighteenth_text,
    eighteenth_training,
    eighteenth_vision,
    eighth_fair,
    eighth_inference,
    eighth_inputs,
    eighth_training,
    eleventh_arm_agent,
    eleventh_banner_painter,
    eleventh_catalog_embedder,
    eleventh_chat_tuner,
    eleventh_click_ranker,
    eleventh_density_flow,
    eleventh_genome_model,
    eleventh_habit_model,
    eleventh_meter_reader,
    eleventh_order_bot,
    eleventh_paper_topics,
    eleventh_pocket_model,
    eleventh_recipe_writer,
    eleventh_review_sorter,
    eleventh_satellite_encoder,
    eleventh_street_scene,
    eleventh_ticket_triage,
    eleventh_tile_codec,
    eleventh_voice_maker,
    eleventh_yard_camera,
    fifteenth_fields,
    fifteenth_healthy,
    fifteenth_lookups,
    fifteenth_serving,
    fifteenth_text,
    fifteenth_vision,
    fifth_fair,
    fifth_healthy,
    fifth_inputs,
    fifth_serving,
    fifth_training,
    fourteenth_decoding,
    fourteenth_healthy,
    fourteenth_learning,
    fourteenth_media,
    fourteenth_science,
    fourteenth_text,
    fourth_fair,
    fourth_fields,
    fourth_healthy,
    fourth_text,
    fourth_vision,
    healthy,
    host,
    inputs,
    kernels,
    library_diffusion,
    library_fair,
    library_graphs,
    library_inputs,
    library_loops,
    library_text,
    library_vision,
    memory,
    nineteenth_healthy,
    nineteenth_serving,
    nineteenth_structured,
    nineteenth_text,
    nineteenth_training,
    nineteenth_vision,
    ninth_fair,
    ninth_fields,
    ninth_graphs,
    ninth_healthy,
    ninth_inference,
    ninth_inputs,
    ninth_training,
    serving,
    settings,
    seventeenth_fields,
    seventeenth_healthy,
    seventeenth_inputs,
    seventeenth_serving,
    seventeenth_text,
    seventeenth_vision,
    seventh_healthy,
    seventh_inference,
    seventh_inputs,
    seventh_training,
    sixteenth_healthy,
    sixteenth_serving,
    sixteenth_signals,
    sixteenth_tables,
    sixteenth_text,
    sixteenth_vision,
    sixth_fair,
    sixth_healthy,
    sixth_inputs,
    sixth_serving,
    sixth_training,
    tenth_fair,
    tenth_fields,
    tenth_games,
    tenth_healthy,
    tenth_inference,
    tenth_inputs,
    tenth_training,
    third_compile,
    third_fair,
    third_serving,
    third_text,
    third_training,
    thirteenth_fair,
    thirteenth_fields,
    thirteenth_healthy,
    thirteenth_pairs,
    thirteenth_tables,
    thirteenth_text,
    thirteenth_vision,
    twelfth_fair,
    twelfth_fields,
    twelfth_healthy,
    twelfth_serving,
    twelfth_text,
    twelfth_vision,
    twentieth_healthy,
    twentieth_inference,
    twentieth_inputs,
    twentieth_science,
    twentieth_training,
    twentyfifth_healthy,
    twentyfifth_serving,
    twentyfifth_structured,
    twentyfifth_training,
    twentyfirst_healthy,
    twentyfirst_inputs,
    twentyfirst_serving,
    twentyfirst_structured,
    twentyfirst_training,
    twentyfourth_healthy,
    twentyfourth_inputs,
    twentyfourth_serving,
    twentyfourth_structured,
    twentyfourth_training,
    twentysecond_healthy,
    twentysecond_inputs,
    twentysecond_serving,
    twentysecond_structured,
    twentysecond_training,
    twentyseventh_fields,
    twentyseventh_healthy,
    twentyseventh_serving,
    twentyseventh_text,
    twentyseventh_vision,
    twentysixth_fields,
    twentysixth_healthy,
    twentysixth_serving,
    twentysixth_text,
    twentysixth_vision,
    twentythird_healthy,
    twentythird_serving,
    twentythird_structured,
    twentythird_training,
    unseen,
    unseen_healthy,
    unseen_inputs,
    unseen_kernels,
    unseen_serving,
)
from benchmarks.faults.registry import PROGRAMS, Program, Step

GROUPS = (host, inputs, kernels, compiler, memory, serving, healthy)
UNSEEN = (unseen, unseen_inputs, unseen_kernels, unseen_serving, unseen_healthy)
"""Written and recorded when the rules were done, by somebody who did not know them."""
LIBRARY = (
    library_text,
    library_inputs,
    library_vision,
    library_diffusion,
    library_graphs,
    library_loops,
    library_fair,
)
"""On real libraries, imported when a program is built; by somebody who did not know the rules."""

THIRD = (third_training, third_text, third_serving, third_compile, third_fair)
"""On real libraries, too, and later; by somebody else who did not know the rules."""

FOURTH = (fourth_text, fourth_vision, fourth_fields, fourth_fair, fourth_healthy)
"""Mistakes that the sets before do not have; by somebody else again who did not know the rules."""

FIFTH = (fifth_training, fifth_inputs, fifth_serving, fifth_fair, fifth_healthy)
"""Mistakes as people make them most often; by somebody else again who did not know the rules."""

SIXTH = (sixth_training, sixth_inputs, sixth_serving, sixth_fair, sixth_healthy)
"""Other common mistakes; by somebody else again who did not know the rules."""

SEVENTH = (seventh_training, seventh_inputs, seventh_inference, seventh_healthy)
"""More of them; by somebody else again who did not know the rules."""

EIGHTH = (eighth_training, eighth_inputs, eighth_inference, eighth_fair)
"""Others again; by somebody else again who did not know the rules."""

NINTH = (
    ninth_training,
    ninth_fields,
    ninth_inputs,
    ninth_graphs,
    ninth_inference,
    ninth_fair,
    ninth_healthy,
)
"""Mistakes as people make them most often, whether sets before have them or not; by somebody else again."""

TENTH = (
    tenth_training,
    tenth_fields,
    tenth_games,
    tenth_inputs,
    tenth_inference,
    tenth_fair,
    tenth_healthy,
)
"""Common mistakes as above; by somebody else again who knew neither the rules nor the sets before."""

ELEVENTH = (
    eleventh_arm_agent,
    eleventh_banner_painter,
    eleventh_catalog_embedder,
    eleventh_chat_tuner,
    eleventh_click_ranker,
    eleventh_density_flow,
    eleventh_genome_model,
    eleventh_habit_model,
    eleventh_meter_reader,
    eleventh_order_bot,
    eleventh_paper_topics,
    eleventh_pocket_model,
    eleventh_recipe_writer,
    eleventh_review_sorter,
    eleventh_satellite_encoder,
    eleventh_street_scene,
    eleventh_ticket_triage,
    eleventh_tile_codec,
    eleventh_voice_maker,
    eleventh_yard_camera,
)
"""Common mistakes again, a module each; by somebody else again who did not know the rules."""

TWELFTH = (
    twelfth_vision,
    twelfth_text,
    twelfth_serving,
    twelfth_fields,
    twelfth_fair,
    twelfth_healthy,
)
"""Common mistakes of many fields; by somebody else again who knew neither the rules nor the sets before."""

SETTINGS = (settings,)
"""Settings that were forgotten, made with the rules about them."""

FOURTEENTH = (
    fourteenth_text,
    fourteenth_decoding,
    fourteenth_media,
    fourteenth_science,
    fourteenth_learning,
    fourteenth_healthy,
)
"""Common mistakes of serving, science and learning; by somebody else again who did not know the rules."""

THIRTEENTH = (
    thirteenth_vision,
    thirteenth_pairs,
    thirteenth_text,
    thirteenth_tables,
    thirteenth_fields,
    thirteenth_fair,
    thirteenth_healthy,
)
"""Common mistakes of training; by somebody else again who knew neither the rules nor the sets before."""

FIFTEENTH = (
    fifteenth_text,
    fifteenth_serving,
    fifteenth_vision,
    fifteenth_fields,
    fifteenth_lookups,
    fifteenth_healthy,
)
"""The most common mistakes once more; by somebody else again who did not know the rules."""

SIXTEENTH = (
    sixteenth_text,
    sixteenth_serving,
    sixteenth_vision,
    sixteenth_signals,
    sixteenth_tables,
    sixteenth_healthy,
)
"""Common mistakes of many fields; by somebody else again who did not know the rules."""

SEVENTEENTH = (
    seventeenth_text,
    seventeenth_vision,
    seventeenth_inputs,
    seventeenth_serving,
    seventeenth_fields,
    seventeenth_healthy,
)
"""Mistakes as people make them most often; by somebody else again who did not know the rules."""

EIGHTEENTH = (
    eighteenth_text,
    eighteenth_vision,
    eighteenth_training,
    eighteenth_serving,
    eighteenth_fields,
    eighteenth_healthy,
)
"""Common mistakes on real libraries; by somebody else again who did not know the rules."""

NINETEENTH = (
    nineteenth_training,
    nineteenth_text,
    nineteenth_vision,
    nineteenth_structured,
    nineteenth_serving,
    nineteenth_healthy,
)
"""Mistakes as a consultant meets them; by somebody else again who did not know the rules."""

TWENTIETH = (twentieth_training, twentieth_inference, twentieth_inputs, twentieth_science, twentieth_healthy)
"""Research code; by somebody else again who did not know the rules."""

TWENTYFIRST = (
    twentyfirst_training,
    twentyfirst_inputs,
    twentyfirst_serving,
    twentyfirst_structured,
    twentyfirst_healthy,
)
"""What is out there most often, as a reviewer of training scripts meets it; by somebody else again."""
TWENTYSECOND = (
    twentysecond_training,
    twentysecond_inputs,
    twentysecond_serving,
    twentysecond_structured,
    twentysecond_healthy,
)
"""From code bases, issues and forums of the last two years; by somebody else again."""
TWENTYTHIRD = (
    twentythird_training,
    twentythird_serving,
    twentythird_structured,
    twentythird_healthy,
)
"""What is seen every week in reviews and on forums; by somebody else again."""
TWENTYFOURTH = (
    twentyfourth_training,
    twentyfourth_serving,
    twentyfourth_inputs,
    twentyfourth_structured,
    twentyfourth_healthy,
)
"""What is most frequent in today's training and inference code; by somebody else again."""
TWENTYFIFTH = (
    twentyfifth_training,
    twentyfifth_serving,
    twentyfifth_structured,
    twentyfifth_healthy,
)
"""What is as frequent, or nearly; by somebody else again."""
TWENTYSIXTH = (
    twentysixth_text,
    twentysixth_vision,
    twentysixth_serving,
    twentysixth_fields,
    twentysixth_healthy,
)
"""What a consultant meets, each in proportion to how often it occurs; by somebody else again."""
TWENTYSEVENTH = (
    twentyseventh_text,
    twentyseventh_vision,
    twentyseventh_serving,
    twentyseventh_fields,
    twentyseventh_healthy,
)
"""The same, by somebody else again."""

__all__ = [
    "EIGHTEENTH",
    "EIGHTH",
    "ELEVENTH",
    "FIFTEENTH",
    "FIFTH",
    "FOURTEENTH",
    "FOURTH",
    "GROUPS",
    "LIBRARY",
    "NINETEENTH",
    "NINTH",
    "PROGRAMS",
    "SETTINGS",
    "SEVENTEENTH",
    "SEVENTH",
    "SIXTEENTH",
    "SIXTH",
    "TENTH",
    "THIRD",
    "THIRTEENTH",
    "TWELFTH",
    "TWENTIETH",
    "TWENTYFIFTH",
    "TWENTYFIRST",
    "TWENTYFOURTH",
    "TWENTYSECOND",
    "TWENTYSEVENTH",
    "TWENTYSIXTH",
    "TWENTYTHIRD",
    "UNSEEN",
    "Program",
    "Step",
]
