"""A picture is coded in tiles, though it may fit into memory as a whole."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.python_frames import PythonFrame
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._fewer_calls import fewer_calls
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["tiled_decoding"]

# The functions of diffusers that cut a picture or a film, code each tile, and blend the results.
_TILED = late_pattern(r"diffusers/.*: _?(temporal_|spatial_)?tiled_(de|en)code$")
_OVERLAP = (0.15, 0.5)
"""Of the GPU's work on tiles: by default a quarter of a tile is computed again in the next one, along each
side. For many tiles that is 1 − 0.75² = 44 %, with the blending a little more; for a few it is less."""
_CALLS = 0.9
"""Of the host's work: one call for each layer, not one for each tile."""
_FIX = fix_of(
    "vae.disable_tiling()    # if the whole picture fits; pipe.vae in a pipeline",
    "vae.enable_slicing()    # if a batch does not fit: one picture at a time, without overlaps",
)


@rule(category=Category.MEMORY)
def tiled_decoding(
    mean_step: MeanStep, python_frames: Table[PythonFrame], *, least_share: float = 0.05
) -> Advice | None:
    """An autoencoder of diffusers works tile by tile, which saves memory and computes overlaps twice.

    Gain, if the picture is coded as a whole:

    - at most: half of the GPU's work on tiles, and nine tenths of the host's.
    - at least: 15 % of the GPU's, as where there are few tiles.
    """
    tiled = max(
        (row for row in python_frames if _TILED.search(row.name or "")),
        key=lambda row: row.total_ns,
        default=None,
    )
    if tiled is None:
        return None
    device_ns = min(mean_step.busy_ns, mean_step.per_step(tiled.device_ns))
    part = min(1.0, mean_step.share(mean_step.per_step(tiled.total_ns)))
    saving = fewer_calls(mean_step, (0.0, _CALLS * part), (_OVERLAP[0] * device_ns, _OVERLAP[1] * device_ns))
    if mean_step.gain(saving).high_share < least_share:
        return None
    return Advice(
        title="A picture is coded in tiles",
        because=f"`{(tiled.name or '').rpartition(' ')[2]}()` takes {units.duration(device_ns)} of the GPU's "
        f"time in a step. Tiles overlap, and what overlaps is computed several times and blended. "
        "It is meant for pictures that do not fit into memory.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show python_frames: no tiled_decode.",
        evidence={"device_ns": round(device_ns), "host_share": part, "calls": tiled.calls},
        claims=frozenset({Claim(Time.DEVICE), Claim(Time.STARVED)}),
        locations=locations_of([(tiled.name, f"{units.duration(device_ns)} of GPU time a step")]),
    )
