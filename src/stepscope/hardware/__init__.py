"""Peak rates and limits of accelerators, as data with a source for every figure.

The figures stand in `accelerators.json`: dense peaks by data type, memory bandwidth and size, number of
multiprocessors, and how devices of one machine are connected. A device is recognised by the product name that
a profile gives, and checked against its multiprocessors and its memory: a part of a device (MIG, partition
modes) has other peaks than the whole. What is not recognised is said, not guessed, and can be given by the
user.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.records import dataclass

__all__ = ["DATA_TYPES", "Accelerator", "Link", "Source", "accelerators", "named", "recognised", "with_peaks"]

DATA_TYPES = ("fp64", "fp64_matrix", "fp32", "fp32_matrix", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
"""The data types that peaks are given for; `_matrix` where matrix units have a rate of their own."""

_FILE = Path(__file__).with_name("accelerators.json")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Source:
    """Where a figure is published."""

    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Link:
    """How a device is connected to others of the same machine."""

    name: str
    bytes_per_s: float
    """One direction, all links of the device together."""
    peers: int | None
    """Peers that have a link each; None where a switch gives any peer the whole rate."""

    def peak(self, group_size: int) -> float:
        """Bytes a second, in one direction, for a device in a group of that many on one machine."""
        return self.bytes_per_s * (min(1.0, (group_size - 1) / self.peers) if self.peers else 1.0)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One product, as a device of a profile."""

    product: str
    pattern: str
    """What its name in a profile contains, as a regular expression."""
    peak_flops: dict[str, float]
    """Operations a second by data type, dense."""
    bytes_per_s: float | None
    memory_gib: tuple[int, ...]
    units: int | None
    """Multiprocessors or compute units."""
    sources: dict[str, Source]
    note: str = ""
    link: Link | None = None
    """None where cards may or may not have a bridge, or where it is not published."""

    def link_of(self, name: str) -> Link | None:
        """Its link, for a device of that name: one name here may stand for modules and for cards."""
        is_card = re.search(r"pcie", name, re.IGNORECASE)
        return None if self.link is None or (is_card and "PCIe" not in self.link.name) else self.link

    def peak(self, data_type: str | None, *, matrix: bool) -> float | None:
        """Operations a second in a data type, on the matrix units or beside them.

        What does not run on matrix units computes in fp32 even where its numbers are stored in fewer bits.
        """
        if data_type is None:
            return None
        if not matrix:
            return self.peak_flops.get("fp64" if data_type == "fp64" else "fp32")
        return self.peak_flops.get(f"{data_type}_matrix", self.peak_flops.get(data_type))


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """All products whose figures are known."""
    read = json.loads(_FILE.read_text(encoding="utf-8"))
    sources = {key: Source(**value) for key, value in read["sources"].items()}
    return tuple(_accelerator(entry, sources) for entry in read["accelerators"])


def recognised(
    name: str | None, *, units: int | None = None, memory_bytes: int | None = None
) -> tuple[Accelerator | None, str]:
    """The product with that name in a profile, or None and why not."""
    if not name:
        return None, "the profile does not name its device"
    fitting = [one for one in accelerators() if re.search(one.pattern, name, re.IGNORECASE)]
    if not fitting:
        return None, f"the peaks of '{name}' are not known"
    whole = [one for one in fitting if None in (units, one.units) or units == one.units]
    if not whole:
        return (
            None,
            f"'{name}' has {units} multiprocessors, not the {fitting[0].units} of {fitting[0].product}",
        )
    gib = memory_bytes / _GIB if memory_bytes else _gib_in(name)
    right = [one for one in whole if gib is None or any(_is_about(gib, size) for size in one.memory_gib)]
    if not right:
        return (
            None,
            f"'{name}' has {gib:.0f} GiB of memory, unlike {' or '.join(one.product for one in whole)}",
        )
    if any(_figures(one) != _figures(right[0]) and one.pattern == right[0].pattern for one in right):
        return None, f"'{name}' may be {' or '.join(one.product for one in right)}"
    return right[0], ""


def named(product: str) -> Accelerator:
    """The product that a user names: by its name here, or as a profile would name it."""
    exact = [one for one in accelerators() if one.product.lower() == product.strip().lower()]
    if exact:
        return exact[0]
    found, reason = recognised(product)
    if found is None:
        known = ", ".join(one.product for one in accelerators())
        raise StepscopeError(
            f"unknown hardware {product!r}: {reason}", hint=f"there are: {known}", exit_code=2
        )
    return found


def with_peaks(
    accelerator: Accelerator | None, peak_tflops: Sequence[str], peak_gb_s: float | None
) -> Accelerator | None:
    """The accelerator with figures that a user gives, `bf16=989` each; given ones stand above known ones."""
    if not peak_tflops and peak_gb_s is None:
        return accelerator
    given = dict(_peak(text) for text in peak_tflops)
    if peak_gb_s is not None and not peak_gb_s > 0:
        raise StepscopeError(f"a bandwidth of {peak_gb_s} GB/s is not possible", exit_code=2)
    if accelerator is None:
        accelerator = Accelerator("", "", {}, None, (), None, {})
    # A rate that is given for a data type counts for its matrix units too.
    kept = {
        key: rate for key, rate in accelerator.peak_flops.items() if key.removesuffix("_matrix") not in given
    }
    return dataclasses.replace(
        accelerator,
        product=f"{accelerator.product}, with given peaks" if accelerator.product else "given peaks",
        peak_flops={**kept, **given},
        bytes_per_s=accelerator.bytes_per_s if peak_gb_s is None else peak_gb_s * 1e9,
    )


def _peak(text: str) -> tuple[str, float]:
    data_type, equals, rate = text.partition("=")
    try:
        tflops = float(rate)
    except ValueError:
        tflops = 0.0
    if not equals or data_type not in DATA_TYPES or not 0 < tflops < float("inf"):
        raise StepscopeError(
            f"cannot read the peak {text!r}",
            hint=f"write a data type and TFLOP/s, like bf16=989; data types: {', '.join(DATA_TYPES)}",
            exit_code=2,
        )
    return data_type, float(round(tflops * 1e12))


def _accelerator(entry: dict[str, Any], sources: dict[str, Source]) -> Accelerator:
    memory = entry["memory_gb"]
    return Accelerator(
        product=entry["product"],
        pattern=entry["name"],
        peak_flops={data_type: float(round(tflops * 1e12)) for data_type, tflops in entry["tflops"].items()},
        bytes_per_s=entry["gb_s"] * 1e9,
        memory_gib=tuple(memory) if isinstance(memory, list) else (memory,),
        units=entry["units"],
        sources={key: sources[source] for key, source in entry["sources"].items() if source},
        note=entry.get("note", ""),
        link=_link(entry.get("link")),
    )


def _link(entry: dict[str, Any] | None) -> Link | None:
    return Link(entry["name"], entry["gb_s"] * 1e9, entry.get("peers")) if entry else None


def _figures(one: Accelerator) -> tuple[dict[str, float], float | None]:
    return one.peak_flops, one.bytes_per_s


def _gib_in(name: str) -> float | None:
    found = re.search(r"\b(\d+)\s?GB\b", name, re.IGNORECASE)
    return float(found[1]) if found else None


def _is_about(gib: float, nominal: int) -> bool:
    """Drivers and error correction keep a few per cent for themselves."""
    return 0.88 * nominal <= gib <= 1.02 * nominal
