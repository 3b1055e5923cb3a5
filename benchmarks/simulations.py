"""How true replays are: against steps without the profiler, against mended twins, against real CUDA graphs.

Three tables, all from recordings with the profiler and times measured without it:

- the step as it is, played again without what recording costs,
- the step with a fault, played again under the change that mends it, against the mended twin,
- a step as one CUDA graph, played again, against the same step captured and timed.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tests.faults import FAULTS, MENDED_BY, PROGRAMS

import stepscope
from stepscope.analyses.changed_steps import ChangedStep, changed_steps

Programs = dict[str, dict[str, Any]]


def played(name: str, side: str, by: str) -> ChangedStep:
    """A recording, played again under a change."""
    (row,) = changed_steps(stepscope.open(FAULTS / f"{name}.{side}.light.pt.trace.json.gz"), by=by)
    return row


def sides(programs: Programs) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every side of every program but one whose steps are compilations."""
    for name, program in programs.items():
        for side, facts in program["sides"].items():
            if name != "recompilations":
                yield name, side, facts


def print_errors(ratios: Iterable[float]) -> None:
    """What ratios of predicted to measured times come to."""
    errors = [abs(math.log(ratio)) for ratio in ratios]
    within = sum(error <= math.log(1.2) for error in errors) / len(errors)
    half = math.expm1(statistics.median(errors))
    print(f"\n{len(errors)} steps · half within {half:.0%} · {within:.0%} within 20 %\n")


def print_unprofiled(programs: Programs) -> None:
    """Steps without the profiler."""
    print(f"{'without the profiler':36} {'recorded':>10} {'predicted, ms':>18} {'measured':>10}")
    ratios = []
    for name, side, facts in sides(programs):
        row = played(name, side, "graph")
        true, low, high = facts["unprofiled_step_ns"], row.unprofiled_low_ns, row.unprofiled_high_ns
        ratios.append((low + high) / 2 / true)
        interval = f"{low / 1e6:8.3f} … {high / 1e6:.3f}"
        print(f"{f'{name}.{side}':36} {row.recorded_ns / 1e6:10.3f} {interval:>18} {true / 1e6:10.3f}")
    print_errors(ratios)


def print_mended(programs: Programs) -> None:
    """Faults that a change mends."""
    print(f"{'mended':36} {'change':18} {'replayed gain':>16} {'measured':>9}")
    for name, by in MENDED_BY.items():
        row, facts = played(name, "faulty", by), programs[name]["sides"]
        gain = 1 - facts["mended"]["unprofiled_step_ns"] / facts["faulty"]["unprofiled_step_ns"]
        interval = f"{row.gain_low_share:6.1%} … {row.gain_high_share:.1%}"
        print(f"{name:36} {by:18} {interval:>16} {gain:9.1%}")
    print()


def print_graphs(programs: Programs) -> None:
    """Whole steps as CUDA graphs."""
    print(f"{'as one CUDA graph':36} {'replayed, ms':>14} {'measured':>10}")
    ratios = []
    for name, side, facts in sides(programs):
        if true := facts.get("graph", {}).get("graphed_step_ns"):
            row = played(name, side, "graph")
            ratios.append(row.changed_high_ns / true)
            print(f"{f'{name}.{side}':36} {row.changed_high_ns / 1e6:14.3f} {true / 1e6:10.3f}")
    print_errors(ratios)


def main() -> int:
    """Prints the tables."""
    print_unprofiled(PROGRAMS)
    print_mended(PROGRAMS)
    print_graphs(PROGRAMS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
