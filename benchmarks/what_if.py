"""How soon the page of what-ifs answers: from an input to the changed bar of the step, in a real browser."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

__all__ = ["answered", "print_answers"]

# A field changes as under a hand, and the clock stops when the frame with the changed bar was shown.
INPUT = """async ([selector, value]) => {
    const field = document.querySelector(selector);
    const bars = document.querySelector(".whatif-bars");
    const changed = new Promise((done) => {
        const watch = new MutationObserver(() => { watch.disconnect(); done(); });
        watch.observe(bars, { childList: true });
    });
    const begun = performance.now();
    if (field.type === "checkbox") field.checked = !field.checked; else field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    await changed;
    await new Promise(requestAnimationFrame);
    await new Promise((done) => setTimeout(done, 0));
    return performance.now() - begun;
}"""
# A slider under a hand moves at every frame.
DRAG = """async (selector) => {
    const field = document.querySelector(selector);
    let shown = 0;
    const watch = new MutationObserver(() => { shown++; });
    watch.observe(document.querySelector(".whatif-bars"), { childList: true });
    for (let at = 0; at < 40; at++) {
        field.value = String(at / 20);
        field.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise(requestAnimationFrame);
    }
    await new Promise((done) => setTimeout(done, 500));
    watch.disconnect();
    return shown;
}"""
NAMES = "[...document.querySelectorAll('.whatif-switch input')].map((one) => one.name)"
HOST = ".whatif-slider input[type=range]"
TYPED, FACTOR = ".whatif-pattern input[type=text]", ".whatif-pattern input[type=range]"
FACTORS = ("0.95", "0.9", "0.8", "0.7", "0.5", "0.3", "0.1", "0", "1.5", "2")
PATTERNS = ("*gemm*", "*elementwise*", "*a*", "*copy*", "*nccl*")


def answered(page: Any) -> Iterator[tuple[str, list[float]]]:
    """What inputs of each kind take on an open page, in ms: nothing is asked for twice but switching off."""
    page.locator("[data-answered]").wait_for()
    page.locator(".whatif-gain:not(:empty)").first.wait_for()
    switches = [f".whatif-switch input[name={name}]" for name in page.evaluate(NAMES)]
    both = [[page.evaluate(INPUT, [one, ""]) for _ in ("on", "off")] for one in switches]
    yield "a switch on", [on for on, _ in both]
    yield "a switch off", [off for _, off in both]
    page.evaluate(INPUT, [switches[0], ""])
    yield "a second switch", [page.evaluate(INPUT, [one, ""]) for one in switches[1:]]
    yield "the slider of host work", [page.evaluate(INPUT, [HOST, factor]) for factor in FACTORS]
    page.locator(".whatif-scaled button").first.click()
    yield "a new pattern", [page.evaluate(INPUT, [TYPED, pattern]) for pattern in PATTERNS]
    yield "the slider of a pattern", [page.evaluate(INPUT, [FACTOR, factor]) for factor in FACTORS]


def print_answers(page: Any) -> float:
    """Prints what inputs take; the median of all of them, in ms."""
    every: list[float] = []
    for label, took in answered(page):
        print(f"what if, {label}: median {statistics.median(took):.0f} ms, most {max(took):.0f} ms")
        every += took
    print(f"what if, a slider dragged over 40 frames: {page.evaluate(DRAG, HOST)} answers shown", flush=True)
    return statistics.median(every)
