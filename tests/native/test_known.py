"""Events that come again with other numbers: recognised whole, and read as json reads them."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest
from tests.native.rebuilt import loads, read
from tests.native.test_differential import CUT_DOWN, check_same

DATA = Path(__file__).parent.parent / "data"
ODD_NUMBERS = (
    *("0", "-0", "7", "-7", "12345678", "123456789", "123456789012345678", "1234567890123456789"),
    *("0.5", "0.560", "12.739", "1234.5678", "99999.999", "100000.001", "3844884466404.714", "1e3", "1.5E-2"),
    *("1750000000000000.123", "-3.250", "0.0005", "00.5", "null", '"12"', "12.", "1.2.3"),
)
EVENT = (
    '{{\n    "ph": "X", "cat": "python_function", "name": "{name}", "pid": 1, "tid": {tid},\n'
    '    "ts": {ts}, "dur": {dur},\n'
    '    "args": {{\n      "Python parent id": {parent}, "Python id": {id}, "Ev Idx": {at}\n    }}\n  }}'
)


def drawn_event(dice: random.Random, at: int) -> str:
    """One of a few events, with numbers of its own and now and then a number of another spelling."""

    def number(usual: str) -> str:
        return dice.choice(ODD_NUMBERS) if dice.random() < 0.05 else usual

    return EVENT.format(
        name=dice.choice(("f", "module.py(12): a_function_with_a_long_name" * 4, "torch/nn.py(3): call", "")),
        tid=dice.choice((1, 2, '"x"')),
        ts=number(f"{3844884466404 + at}.{dice.randrange(1000):03d}"),
        dur=number(f"{dice.randrange(10 ** dice.randrange(1, 8)) / 1000:.3f}"),
        parent=number(str(at // 3)),
        id=number(str(at)),
        at=number(str(at * 1000)),
    )


def drawn_trace(seed: int, events: int = 400) -> bytes:
    dice = random.Random(seed)
    return f'{{"traceEvents": [{", ".join(drawn_event(dice, at) for at in range(events))}]}}'.encode()


@pytest.mark.parametrize("seed", range(12))
def test_odd_numbers_in_known_events_are_read_on_both_paths_alike(seed: int) -> None:
    raw = drawn_trace(seed)
    slow = read(raw, templates=False)
    for piece in (None, 4096, 333):
        fast = read(raw, piece, check_every=7)
        assert fast.without_templates() == slow.without_templates()
        assert fast.template_mismatches == 0
        assert fast.known_hits > 100


def test_known_events_are_what_json_says() -> None:
    """The same without spellings that are no JSON numbers or no times."""
    raw = re.sub(rb'(?<=[ :])(00\.5|12\.|1\.2\.3|"12")(?=[,\n])', b"5", drawn_trace(99, 2000))
    # Nor times that no clock shows; others may be as far apart as they like.
    raw = re.sub(rb'("(?:ts|dur)": )(12345678901234567\d+|1750000000000000\.123)(?=[,\n])', rb"\g<1>5", raw)
    whole = check_same(raw, None, most_apart_ns=1 << 62)
    assert whole.known_hits > 1000


def test_every_known_event_may_be_checked() -> None:
    raw = drawn_trace(5)
    fast = read(raw, check_every=1)
    assert fast.template_mismatches == 0
    assert fast.without_templates() == read(raw, templates=False).without_templates()


def test_known_events_are_forgotten_with_the_texts_they_name() -> None:
    """A dictionary that is drained again and again numbers texts anew."""
    raw = drawn_trace(6, 2000)
    drained, slow = read(raw, 4096, dictionary_bytes=4000, batch_rows=64), read(raw, templates=False)
    assert drained.known_hits > 100
    assert drained.events() == slow.events()
    assert len(drained.skeletons) > len(slow.skeletons)


@pytest.mark.parametrize("name", CUT_DOWN)
def test_a_sample_that_comes_twice_is_known_the_second_time(name: str) -> None:
    trace = gzip.decompress((DATA / name).read_bytes())
    events = loads(trace)["traceEvents"]
    listed = re.search(rb'"traceEvents"\s*:\s*\[', trace)
    assert listed
    first = listed.end()
    # Whatever follows the list stays where it is.
    last = first + _end_of_list(trace[first:])
    again = trace[:last] + b"," + trace[first:last] + b"," + trace[first:last] + trace[last:]
    whole = check_same(again, 1 << 16)
    assert len(whole.rows) == 3 * len(events)
    assert whole.known_hits > len(events)


def _end_of_list(text: bytes) -> int:
    """Where the list that begins before `text` ends: the bracket on a line of its own, or the last one."""
    found = re.search(rb"\}\s*\]\s*(,\s*\"[A-Za-z_]+\"\s*:|\})", text[-20000:])
    assert found
    return max(0, len(text) - 20000) + found.start() + 1
