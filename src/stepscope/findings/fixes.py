"""What to type, as it fits the program: the flag of who owns the code, the words of who made the device.

A rule writes its fix for a program with a loop of its own, and says of each line what it changes. Where a
framework owns that, its own way to change it is printed instead; `_variants.py` has them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.findings._variants import (
    EXTRAS,
    INFERENCE_ONLY,
    NEEDS_GRAPHS,
    TRAINING_ONLY,
    VALUES,
    VARIANTS,
    Change,
)
from stepscope.findings.program import Program, Vendor
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.findings import Advice

__all__ = ["Change", "Fix", "FixLine", "fitted", "fix_of", "in_words_of", "line", "sixteen_bits"]


@dataclass(frozen=True, slots=True)
class FixLine:
    """A line of a fix, or a few that belong together."""

    change: Change | None
    """What it changes; None if only code of the program can do it."""
    text: str
    values: tuple[tuple[str, str], ...] = ()
    """What the frameworks' own ways to change it need: `dtype`, `workers`."""


class Fix(str):
    """What to type, as a text that knows what its lines change."""

    __slots__ = ("lines",)
    lines: tuple[FixLine, ...]


def line(change: Change, text: str, **values: object) -> FixLine:
    """A line of a fix, by what it changes; `values` are for the variants of frameworks."""
    return FixLine(change, text, tuple((name, str(value)) for name, value in values.items()))


def fix_of(*lines: FixLine | str) -> Fix:
    """A fix of these lines; a plain text is code that only the program itself can change.

    A line may be a fix itself, whose lines are taken.
    """
    kept: list[FixLine] = []
    for one in lines:
        if isinstance(one, Fix):
            kept += one.lines
        else:
            kept.append(FixLine(None, one) if isinstance(one, str) else one)
    fix = Fix("\n".join(dict.fromkeys(one.text for one in kept)))
    fix.lines = tuple(kept)
    return fix


def fitted(advice: Advice, program: Program) -> Advice:
    """The advice as it fits a program: its fix, and words for its device."""
    return replace(
        advice,
        title=in_words_of(program.vendor, advice.title),
        because=in_words_of(program.vendor, advice.because),
        fix=_fix(advice.fix, program),
        check=in_words_of(program.vendor, advice.check),
    )


def _fix(fix: str, program: Program) -> str:
    if not fix:
        return ""
    lines = fix.lines if isinstance(fix, Fix) else (FixLine(None, fix),)
    written = [in_words_of(program.vendor, text) for one in lines for text in _written(one, program)]
    if program.vendor in _DEVICES:
        written = [text for text in written if not _CUDA_ALONE.search(text)]
    extras = [text for one in lines for text in _extras(one, program)]
    if not written and program.server:
        package = program.server.lower().replace("-", "_")
        written = [
            f"pip install -U {package}    # this code is {program.server}'s: report it there if it stays"
        ]
    return "\n".join(dict.fromkeys([*written, *extras]))


def _written(one: FixLine, program: Program) -> Iterator[str]:
    """The line, or what the outermost framework with a way of its own has for it, or nothing."""
    change = one.change
    if change in TRAINING_ONLY and program.trains is False:
        return
    if change in INFERENCE_ONLY and program.trains:
        return
    if change in NEEDS_GRAPHS and program.vendor in (Vendor.INTEL, Vendor.MTIA):
        return
    if change is Change.TF32 and program.vendor not in (Vendor.NVIDIA, Vendor.UNKNOWN):
        return
    for framework in program.frameworks:
        if change is not None and (variant := VARIANTS.get((change, framework))) is not None:
            if variant:
                yield variant.format_map({**VALUES, **dict(one.values)})
            return
    if program.server is None or change is Change.MACHINE:  # which nobody's code owns
        yield one.text


def _extras(one: FixLine, program: Program) -> Iterator[str]:
    """What the device's maker has for this."""
    if one.change is None:
        return
    for owner in (*program.frameworks, None):
        if (extra := EXTRAS.get((one.change, program.vendor, owner))) is not None:
            yield extra
            return


# Words of CUDA in sentences and comments. torch.cuda, NCCL_DEBUG and the like are names, and right on ROCm.
_WORDS = {
    Vendor.AMD: (
        (r"\bCUDA graph", "HIP graph"),
        (r"\bcudaGraphLaunch\b", "hipGraphLaunch"),
        (r"\bcuDNN\b", "MIOpen"),
        (r"\bcuBLAS\b", "hipBLAS"),
        (r"\bNCCL\b(?!_)", "RCCL"),
        (r"\btensor cores\b", "matrix cores"),
    ),
}
_OTHER_WORDS = (
    (r"\bCUDA graph", "device graph"),
    (r"\bcudaGraphLaunch\b", "graph launches"),
    (r"\btorch\.cuda\.", "torch.{device}."),
    (r'"cuda"', '"{device}"'),
    (r"\.cuda\(\)", ".{device}()"),
    (r"\bNCCL\b(?!_)", "the device's collectives"),
    (r"\btensor cores\b", "matrix units"),
)
# What only CUDA and ROCm have, even if it is said in other words.
_CUDA_ALONE = late_pattern(r"cuda|cudnn|nccl|tf32", re.IGNORECASE)
_DEVICES = {Vendor.INTEL: "xpu", Vendor.MTIA: "mtia"}


def in_words_of(vendor: Vendor, text: str) -> str:
    """A text with CUDA's words replaced by those for another maker's device."""
    pairs: tuple[tuple[str, str], ...] = _WORDS.get(vendor, ())
    if vendor in _DEVICES:
        pairs = tuple((old, new.format(device=_DEVICES[vendor])) for old, new in _OTHER_WORDS)
    for old, new in pairs:
        text = re.sub(old, new, text)
    return text


_SIXTEEN_BITS = {"bf16": ("bfloat16", "bf16-mixed"), "fp16": ("float16", "16-mixed")}


def sixteen_bits(half: str, where: str) -> tuple[FixLine, FixLine]:
    """How to compute in 16 bits: in training with autocast, in inference with weights of this type."""
    dtype, lightning = _SIXTEEN_BITS[half]
    return (
        line(
            Change.AUTOCAST,
            f'with torch.autocast("cuda", dtype=torch.{dtype}):    # {where}',
            dtype=dtype,
            short=half,
            lightning=lightning,
        ),
        line(Change.WEIGHTS, f"model.to(torch.{dtype})    # for inference", dtype=dtype),
    )
