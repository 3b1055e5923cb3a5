"""Cuts the real profiles down to the small ones of this folder, and computes their expected tables.

    STEPSCOPE_SAMPLES=<folder of the real profiles> python -m tests.data.make_samples

The text of every event that is kept stays as the profiler printed it. The cut is by time: host events that
start in the window or lie around it, device work whose launch is kept or which starts in the window, and all
that only names things. Work whose launch lies before the window thereby becomes unlinked, as it does in real
profiles.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.oracle import MARK, RUNTIME, WORK, Oracle, integer, parse

HERE = Path(__file__).parent
SUFFIX = ".pt.trace.json.gz"


@dataclass(frozen=True)
class Cut:
    """Which steps of a profile are kept, and how much of their time (from .. to, as shares of it)."""

    steps: tuple[int, int]
    start: str = "0"
    end: str = "1"


CUTS = {
    "h200_compile_default": Cut((6, 6)),
    "h200_cuda_graph": Cut((4, 6)),
    "h200_ddp_gloo_rank0": Cut((3, 4)),
    "h200_ddp_gloo_rank1": Cut((3, 4)),
    "h200_mem_timeline": Cut((3, 4), "0.3", "0.55"),
    "h200_prefetch_serial": Cut((4, 6)),
    "h200_resnet50": Cut((3, 4), "0.44", "0.57"),
    "h200_rl_churn": Cut((3, 4), "0.48", "0.53"),
    "h200_slow_item": Cut((4, 5)),
    "h200_tutorial_baseline": Cut((3, 4)),
}


def blocks_of(text: str) -> tuple[str, list[str], str]:
    """What stands before the events, the text of each event, and what stands after."""
    head, body = text.split('"traceEvents": [\n', 1)
    inside, tail = body.rsplit("\n  ],", 1)
    return head + '"traceEvents": [\n', inside.split(",\n  {\n"), "\n  ]," + tail


def whole(block: str) -> str:
    """A block as split off, with its opening line."""
    return block if block.startswith("  {\n") else "  {\n" + block


def window_of(events: list[dict[str, Any]], cut: Cut) -> tuple[Decimal, Decimal]:
    marks = [e for e in events if e.get("cat") == "user_annotation" and MARK.fullmatch(e["name"])]
    kept = [m for m in marks if cut.steps[0] <= int(m["name"].split("#")[1]) <= cut.steps[1]]
    first, last = kept[0]["ts"], kept[-1]["ts"] + kept[-1]["dur"]
    return first + (last - first) * Decimal(cut.start), first + (last - first) * Decimal(cut.end)


def chosen(events: list[dict[str, Any]], cut: Cut) -> Iterator[bool]:
    """For every event, whether it is kept."""
    low, high = window_of(events, cut)

    def starts_inside(event: dict[str, Any]) -> bool:
        return bool(low <= Decimal(event["ts"]) < high)

    launches = {
        correlation_of(e) for e in events if e.get("cat") in RUNTIME and e["ph"] == "X" and starts_inside(e)
    }
    before = {correlation_of(e) for e in events if e.get("cat") in RUNTIME and e["ph"] == "X"} - launches
    for event in events:
        category, phase = event.get("cat"), event["ph"]
        if category is None or category == "Trace":
            yield True
        elif category in WORK:
            correlation = correlation_of(event)
            yield correlation in launches or (starts_inside(event) and correlation in before)
        elif category == "ac2g":
            yield starts_inside(event) or event["id"] in launches
        elif phase == "X" and category not in RUNTIME and category != "gpu_user_annotation":
            # Long frames and marks around the window stay, for they are what the rest lies in.
            ends = Decimal(event["ts"]) + Decimal(event["dur"])
            yield starts_inside(event) or bool(
                Decimal(event["ts"]) < low < ends and is_around(event, high - low)
            )
        else:
            yield starts_inside(event)


def correlation_of(event: dict[str, Any]) -> int | None:
    return integer(event.get("args", {}).get("correlation"))


def is_around(event: dict[str, Any], window: Decimal) -> bool:
    return bool(Decimal(event["dur"]) >= window / 4)


def cut_text(text: str, cut: Cut) -> str:
    """The text of a profile without the events that the cut leaves out."""
    head, blocks, tail = blocks_of(text)
    events = parse(text)[1]
    if len(events) != len(blocks):
        raise ValueError(f"{len(blocks)} blocks of text for {len(events)} events")
    kept = [whole(block) for block, keep in zip(blocks, chosen(events, cut), strict=True) if keep]
    return re.sub(r'"traceName": ".*"', '"traceName": "t.json"', head + ",\n".join(kept) + tail)


def expected_of(text: str) -> str:
    """The expected tables of a profile, a row a line."""
    tables = Oracle(*parse(text)).tables()
    lines = []
    for name, rows in tables.items():
        if isinstance(rows, list):
            written = sorted(json.dumps(row, ensure_ascii=False) for row in rows)
            lines.append(f"{json.dumps(name)}: [\n" + ",\n".join(written) + "\n]")
        else:
            lines.append(f"{json.dumps(name)}: {rows}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def main() -> None:
    samples = Path(os.environ.get("STEPSCOPE_SAMPLES") or HERE.parents[2] / "shared" / "data")
    (HERE / "expected").mkdir(exist_ok=True)
    for name, cut in CUTS.items():
        text = cut_text(read_text(samples / (name + SUFFIX)), cut)
        packed = gzip.compress(text.encode(), 9, mtime=0)
        (HERE / (name + SUFFIX)).write_bytes(packed)
        (HERE / "expected" / (name + ".json")).write_text(expected_of(text), encoding="utf-8")
        sys.stdout.write(
            f"{name:26} {len(packed):8,} bytes, {text.count(chr(34) + 'ph' + chr(34)):6,} events\n"
        )


if __name__ == "__main__":
    main()
