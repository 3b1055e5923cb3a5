"""Numbers and names as files write them."""

from __future__ import annotations

from decimal import Decimal

from tests.analyses.comparing import KEYS
from tests.analyses.traps.rows import Drawn, call, category, device, kernel, op, trap
from tests.drawing import Drawing, Literal


@trap
def exponents() -> Drawn:
    # 1.5e3 µs to 1.6E+3 µs, and 25e-2 µs from 1700 µs on: a span of 200.25 µs.
    drawing = Drawing().kernel("k", Literal("1.5e3"), Literal("1E+2"))
    drawing.kernel("k", Literal("17e2"), Literal("25e-2"))
    return drawing, {
        "kernels": [kernel("k", [100_000, 250], 1.0)],
        "devices": [device("0", 200_250, 100_250, unlinked_ns=100_250)],
    }


@trap
def nanoseconds_since_the_epoch() -> Drawn:
    # A double has steps of a quarter µs here. Two kernels of 1 ns, 4 ns apart.
    drawing = Drawing().kernel("k", Decimal("1700000000000000.001"), Decimal("0.001"))
    drawing.kernel("k", Decimal("1700000000000000.005"), Decimal("0.001"))
    return drawing, {"devices": [device("0", 5, 2, unlinked_ns=2)], "kernels": [kernel("k", [1, 1], 1.0)]}


@trap
def half_nanoseconds() -> Drawn:
    # Half to even: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2; and 2.5001 -> 3. Starts likewise: 10000.5 -> 10000.
    drawing = Drawing()
    for start, dur in [("0", "0.0005"), ("1", "0.0015"), ("2", "0.0025"), ("10.0005", "0.0025001")]:
        drawing.kernel("k", Decimal(start), Decimal(dur))
    return drawing, {
        "kernels": [kernel("k", [0, 2, 2, 3], 1.0)],
        "devices": [device("0", 10_003, 7, unlinked_ns=7)],
    }


@trap
def base_time() -> Drawn:
    # The base moves everything alike.
    drawing = Drawing(base_ns=1_790_857_026_000_000_000)
    drawing.op("aten::mm", Decimal("3845050128765.975"), Decimal("69.911"))
    drawing.kernel("k", Decimal("3845050128770.001"), 2).kernel("k", Decimal("3845050128780.003"), 2)
    return drawing, {
        "ops": [op("aten::mm", 1, (69_911,) * 3)],
        "devices": [device("0", 12_002, 4_000, unlinked_ns=4_000)],
    }


@trap
def events_of_every_phase() -> Drawn:
    # Every event is in one row; a phase without durations has no total; a complete event without `dur` has 0.
    drawing = Drawing().op("aten::mm", 0, 10).named_thread("main").memory(1, 512).memory(2, -512)
    drawing.flow("s", 1, 3).flow("f", 1, 5, pid=0, tid=7)
    drawing.add({"ph": "i", "name": "Record Window End", "s": "g", "pid": "", "tid": "", "ts": 20})
    drawing.add({"ph": "C", "cat": "counter", "name": "power", "pid": 1, "ts": 3, "args": {"W": 500}})
    drawing.add({"ph": "X", "cat": "overhead", "name": "Instrumentation", "pid": -1, "tid": 0, "ts": 1})
    drawing.add({"ph": "X", "name": "no category", "pid": 1, "tid": 1, "ts": 1, "dur": 2})
    return drawing, {
        "categories": [
            category("cpu_op", "X", 1, 10_000),
            category(None, "M", 1, None),
            category("cpu_instant_event", "i", 2, None),
            category("ac2g", "s", 1, None),
            category("ac2g", "f", 1, None),
            category(None, "i", 1, None),
            category("counter", "C", 1, None),
            category("overhead", "X", 1, 0),
            category(None, "X", 1, 2_000),
        ],
        "ops": [op("aten::mm", 1, (10_000,) * 3)],
    }


@trap
def instants_in_categories_of_durations() -> Drawn:
    # Only complete events are work, calls or ops. These are counted in their categories and nowhere else.
    drawing = (
        Drawing().op("aten::mm", 0, 10).launch("cudaLaunchKernel", 1, 1, corr=1).kernel("k", 10, 2, corr=1)
    )
    for cat in ("cpu_op", "cuda_runtime", "kernel"):
        instant = {"ph": "i", "cat": cat, "name": "instant", "s": "t", "pid": 0, "tid": 7, "ts": 50}
        drawing.add({**instant, "args": {"correlation": 1, "device": 0}})
    return drawing, {
        "categories": [
            category("cpu_op", "X", 1, 10_000),
            category("cuda_runtime", "X", 1, 1_000),
            category("kernel", "X", 1, 2_000),
            category("cpu_op", "i", 1, None),
            category("cuda_runtime", "i", 1, None),
            category("kernel", "i", 1, None),
        ],
        "ops": [op("aten::mm", 1, (10_000, 10_000, 9_000), (2_000, 2_000))],
        "runtime_calls": [call("cudaLaunchKernel", 1, 1_000)],
        "kernels": [kernel("k", [2_000], 1.0)],
        "devices": [device("0", 2_000, 2_000)],
    }


@trap
def names_that_need_escapes() -> Drawn:
    # One name written in two ways is one name.
    written = {"pid": 100, "tid": 1, "ph": "X", "cat": "cpu_op"}
    drawing = Drawing().op('quote " backslash \\ slash / é', 0, 5)
    drawing.add(
        {**written, "name": Literal(r'"quote \u0022 backslash \\ slash \/ \u00e9"'), "ts": 10, "dur": 5}
    )
    drawing.op("tab\tnewline\n", 20, 5).op("", 30, 5).op('"ph": "X", "ts": 7', 40, 5).op("},\n  {", 50, 5)
    names = ["tab\tnewline\n", "", '"ph": "X", "ts": 7', "},\n  {"]
    return drawing, {
        "ops": [
            op('quote " backslash \\ slash / é', 2, (10_000,) * 3),
            *(op(name, 1, (5_000,) * 3) for name in names),
        ]
    }


@trap
def no_events() -> Drawn:
    return Drawing(), {name: [] for name in KEYS}
