"""An encoder runs again for every token that a decoder writes."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.encoder_reruns import EncoderReruns
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._dropped import saved_by_dropping_stretches
from stepscope.findings._phrases import often, times
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["recomputed_encoder"]

_FIX = fix_of(
    "memory = model.encode(source)    # once, before the loop; in it: model.decode(tokens, memory)",
    "encoder_outputs = model.get_encoder()(input_ids)    # transformers",
    "model(decoder_input_ids=tokens, encoder_outputs=encoder_outputs)    # or pass it to model.generate",
)


@rule(category=Category.INFERENCE)
def recomputed_encoder(
    mean_step: MeanStep, encoder_reruns: Table[EncoderReruns], *, least_share: float = 0.03
) -> Advice | None:
    """A loop that writes token by token runs the encoder each time, though its result stays the same.

    Gain: of n passes over one input, all but one need no encoder.

    - at most: 1.3 times the encoder's part of the step in these passes, with the Python around it, and all of
      its time on the GPU.
    - at least: 85 % of that part, and all of its time on the GPU.
    """
    reruns = mean_step.per_step(sum(row.reruns for row in encoder_reruns))
    host_ns = mean_step.per_step(sum(row.host_ns for row in encoder_reruns))
    device_ns = mean_step.per_step(sum(row.device_ns for row in encoder_reruns))
    saving = saved_by_dropping_stretches(mean_step, host_ns, device_ns)
    if not reruns or mean_step.gain(saving).high_share < least_share:
        return None
    longest = max(encoder_reruns, key=lambda row: row.host_ns)
    return Advice(
        title="The encoder runs again for every token",
        because=f"{times(sum(row.passes for row in encoder_reruns), 'forward pass')} follow one another in "
        f"{times(len(encoder_reruns), 'run')} {_grows(longest)}. Each pass also runs "
        f"{times(longest.ops, 'operator')} whose work stays the same, as that of an encoder of the same "
        f"input. Running them once for each run of passes would save {often(reruns, 'encoder call')}, with "
        f"{units.duration(host_ns)} of host time and {units.duration(device_ns)} of GPU time.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show encoder_reruns: no rows.",
        evidence={
            "reruns_per_step": reruns,
            "runs": len(encoder_reruns),
            "encoder_ops": longest.ops,
            "host_ns": round(host_ns),
            "device_ns": round(device_ns),
        },
        claims=frozenset({Claim(Time.STARVED), Claim(Time.DEVICE)}),
        locations=locations_of(
            (row.user_frame, often(reruns, "rerun"), (row.first_ops.split(", ", 1)[0],))
            for row in encoder_reruns
        ),
    )


def _grows(row: EncoderReruns) -> str:
    """What tells the passes from one another."""
    if row.first_length is None or row.last_length is None:
        return "that read one token of every sequence, with a cache of keys and values"
    lengths = f"{units.count(row.first_length)} to {units.count(row.last_length)}"
    return f"in which every sequence gets longer by one token, as from {lengths}"
