"""The machine that reads pickles of plain values: equal to pickle's own, never more, and never down."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trying import tries

from stepscope import _native

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300)
_KEYS = st.text(max_size=8) | st.integers() | st.tuples(st.integers(), st.text(max_size=3))
_PLAIN = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=6) | st.tuples(inner, inner) | st.dictionaries(_KEYS, inner, max_size=6)
    ),
    max_leaves=40,
)


class _Strict(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


class TestEqual:
    @pytest.mark.slow
    @given(_PLAIN, st.integers(2, 5))
    @settings(max_examples=tries(100, 3000))
    def test_to_what_was_dumped(self, value: Any, protocol: int) -> None:
        assert _native.plain_pickle(pickle.dumps(value, protocol)) == (value, "")

    @given(_PLAIN, st.integers(2, 5))
    @settings(max_examples=tries(100))
    def test_with_a_pickler_in_python(self, value: Any, protocol: int) -> None:
        written = io.BytesIO()
        pickle._Pickler(written, protocol).dump(value)
        assert _native.plain_pickle(written.getvalue()) == (value, "")

    @given(_PLAIN)
    @settings(max_examples=tries(50))
    def test_after_pickletools_took_out_puts(self, value: Any) -> None:
        assert _native.plain_pickle(pickletools.optimize(pickle.dumps([value, value], 4))) == (
            [value, value],
            "",
        )

    @pytest.mark.parametrize("protocol", [3, 4, 5])
    def test_bytes_and_sets(self, protocol: int) -> None:
        value = [b"", b"x" * 300, b"y" * 70_000] + ([{1, 2}, frozenset({3})] if protocol > 3 else [])
        assert _native.plain_pickle(pickle.dumps(value, protocol)) == (value, "")

    def test_long_lists_and_long_texts(self) -> None:
        value = {"many": list(range(5000)), "long": "ü" * 100_000, "pairs": {str(i): i for i in range(3000)}}
        assert _native.plain_pickle(pickle.dumps(value, 4)) == (value, "")

    def test_shared_and_circular_values(self) -> None:
        shared = [1]
        assert _native.plain_pickle(pickle.dumps([shared, shared], 4)) == ([[1], [1]], "")
        circle: list[Any] = []
        circle.append(circle)
        found, cut = _native.plain_pickle(pickle.dumps(circle, 4))
        assert isinstance(found, list)
        assert not cut

    def test_odd_floats(self) -> None:
        found, _ = _native.plain_pickle(pickle.dumps([math.inf, -0.0, math.nan], 4))
        assert repr(found) == "[inf, -0.0, nan]"

    def test_surrogates(self) -> None:
        assert _native.plain_pickle(pickle.dumps("a\udc80b", 4)) == ("a\udc80b", "")


class _Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('os').abort()",)


class TestRefused:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_names_what_it_wanted(self, protocol: int) -> None:
        with pytest.raises(_native.PickleRefused, match=r"load (builtins|__builtin__)\.eval"):
            _native.plain_pickle(pickle.dumps({"segments": [_Attack()]}, protocol))

    @pytest.mark.parametrize(
        "code",
        [
            b"cos\nsystem\n",
            b"(ios\nsystem\n",
            b"P1\n",
            b"NQ",
            b"\x82\x01",
            b"N(o",
            b"NNR",
            b"NNb",
            b"\x97",
            b"NN\x81",
        ],
    )
    def test_every_operation_that_loads_or_calls(self, code: bytes) -> None:
        with pytest.raises(_native.PickleRefused):
            _native.plain_pickle(b"\x80\x04" + code + b".")

    def test_a_class_by_names_from_the_memo(self) -> None:
        code = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93."
        with pytest.raises(_native.PickleRefused, match="load a class or function"):
            _native.plain_pickle(code)


class TestDamaged:
    @pytest.mark.slow
    @given(_PLAIN, st.integers(2, 5), st.data())
    @settings(max_examples=tries(80, 2000))
    def test_cut_ones_say_so(self, value: Any, protocol: int, data: st.DataObject) -> None:
        whole = pickle.dumps(value, protocol)
        _, cut = _native.plain_pickle(whole[: data.draw(st.integers(0, len(whole) - 1))])
        assert cut

    @pytest.mark.slow
    @given(_PLAIN, st.integers(2, 5), st.data())
    @settings(max_examples=tries(150, 4000))
    def test_mutated_ones_give_something_or_are_refused(
        self, value: Any, protocol: int, data: st.DataObject
    ) -> None:
        raw = bytearray(pickle.dumps(value, protocol))
        for _ in range(data.draw(st.integers(1, 8))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        _no_more_than_pickle(bytes(raw))

    @given(st.binary(max_size=200))
    @settings(max_examples=tries(150, 4000))
    def test_noise(self, noise: bytes) -> None:
        _no_more_than_pickle(b"\x80\x04" + noise)

    @pytest.mark.parametrize(
        "code",
        [
            b"]" * 200_000 + b"a" * 199_999 + b".",  # nested lists
            b"(" * 200_000 + b"t" * 200_000 + b".",
            b"\x8d" + struct.pack("<Q", 1 << 62),  # a text longer than the file
            b"\x8b\xff\xff\xff\xff",
            b"j\xff\xff\xff\xff.",
            b"]r\xff\xff\xff\xff.",
            b"a",
            b"e",
            b"s",
            b"u",
            b"0",
            b"1",
            b"2",
            b"\x87",
            b"\x90",
            b"\x94",
            b"(.",
            b".",
        ],
    )
    def test_hostile_ones(self, code: bytes) -> None:
        _no_more_than_pickle(b"\x80\x04" + code)

    @pytest.mark.slow
    def test_more_at_once_than_is_held(self) -> None:
        _, cut = _native.plain_pickle(b"\x80\x04" + b"N" * (65 << 20))
        assert cut == "it holds more at once than a snapshot does"


def _no_more_than_pickle(raw: bytes) -> None:
    """Whatever is read whole is what pickle reads, if it reads anything."""
    try:
        found, cut = _native.plain_pickle(raw)
    except _native.PickleRefused:
        return
    if cut:
        return
    try:
        expected = _Strict(io.BytesIO(raw)).load()
    except Exception:  # noqa: BLE001  # pickle raises anything
        return
    assert type(found) is type(expected) or isinstance(expected, bytearray | frozenset) or found is None
