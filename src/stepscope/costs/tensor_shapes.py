"""The inputs of an operator as a profile with shapes records them: sizes, types, strides and plain values."""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any

from stepscope.patterns import late_pattern
from stepscope.records import dataclass

__all__ = ["Inputs", "Tensor", "UnknownCostError", "dims_of", "element_bytes", "inputs_of"]

_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "long int": 8,
    "long": 8,
    "long long": 8,
    "int": 4,
    "short": 2,
    "short int": 2,
    "signed char": 1,
    "char": 1,
    "unsigned char": 1,
    "bool": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::complex<c10::Half>": 4,
    "c10::Float4_e2m1fn_x2": 1,
}
_EIGHT_BITS = late_pattern(r"c10::(Float8_|q?u?int8)", re.IGNORECASE)
_SCALAR_TYPES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2}
"""Bytes of an element by torch's number of a type, as a `dtype` argument is recorded."""

_IN_LISTS = late_pattern(r"OpaqueType<(\d+)u?>|(c10::BFloat16|c10::Half|double|float)")
"""How kernels over lists of tensors name the type of their elements; a profile does not record it."""


_NO_TENSOR = ("Scalar", "ScalarList", "TensorList", "GenericList")


class UnknownCostError(Exception):
    """What an operator did cannot be told from the profile; the message says why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its sizes, the type of its elements, and its strides where they are recorded."""

    dims: tuple[int, ...]
    type: str
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.dims)

    @property
    def stored(self) -> int:
        """How many of them lie in memory: a dimension that was expanded repeats what is there."""
        if len(self.strides) != len(self.dims):
            return self.elements
        return prod(size for size, stride in zip(self.dims, self.strides, strict=True) if stride or not size)

    @property
    def element_bytes(self) -> int:
        """Size of an element."""
        return element_bytes(self.type)

    @property
    def bytes(self) -> int:
        """What reading it takes."""
        return self.stored * self.element_bytes


@dataclass(frozen=True, slots=True)
class Inputs:
    """All inputs of one call. Tensors are asked for by their place in the operator's signature."""

    dims: list[Any]
    types: list[str]
    strides: list[Any]
    values: list[str] | None
    """Plain values as text, empty for tensors; None where the profile has none."""
    kernel: str = ""
    """The kernel that did most of the work."""

    def tensor(self, place: int) -> Tensor:
        """The tensor at a place; it has to be there."""
        found = self.optional(place)
        if found is None:
            raise UnknownCostError("the profile does not record the sizes of its inputs")
        return found

    def optional(self, place: int) -> Tensor | None:
        """The tensor at a place, or None where none was passed."""
        if place >= len(self.dims) or not self.types[place] or self.types[place] in _NO_TENSOR:
            return None
        sizes, strides = self.dims[place], self.strides[place] if place < len(self.strides) else []
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise UnknownCostError("the profile does not record the sizes of its inputs")
        return Tensor(tuple(sizes), self.types[place], tuple(strides))

    def tensors(self, count: int) -> list[Tensor]:
        """The tensors among the first inputs, numbers that were passed as tensors among them."""
        return [one for place in range(count) if (one := self.optional(place)) is not None]

    def list_elements(self, place: int) -> int:
        """How many elements the tensors of a list have together."""
        sizes = self.dims[place] if place < len(self.dims) else []
        if not sizes:
            raise UnknownCostError("the profile does not record the sizes of this list of tensors")
        # A list of one tensor may be recorded like the tensor itself.
        return prod(sizes) if isinstance(sizes[0], int) else sum(prod(one) for one in sizes)

    def is_list(self, place: int) -> bool:
        """Whether a list of tensors was passed there."""
        return place < len(self.types) and self.types[place] == "TensorList"

    def list_element_bytes(self) -> int:
        """Size of an element of lists, which only the name of the kernel tells."""
        found = _IN_LISTS.search(self.kernel)
        if found is None:
            raise UnknownCostError(
                "the profile does not record the type of the elements of a list of tensors"
            )
        return int(found[1]) if found[1] else element_bytes(found[2])

    def element_type(self) -> str | None:
        """Type of the elements of the first tensor, or of a list as the name of the kernel tells it."""
        for kind in self.types:
            if kind == "TensorList":
                found = _IN_LISTS.search(self.kernel)
                return found[2] if found else None
            if kind and kind not in _NO_TENSOR:
                return kind
        return None

    def numbers(self, place: int) -> list[int]:
        """A plain list of whole numbers."""
        text = self._text(place)
        found = re.findall(r"-?\d+", text)
        if not found and text != "[]":
            raise UnknownCostError("the profile does not record the plain arguments")
        return [int(number) for number in found]

    def flag(self, place: int) -> bool:
        """A plain truth value."""
        return self.flags(place)[0]

    def flags(self, place: int) -> list[bool]:
        """A plain list of truth values."""
        found = re.findall(r"True|False", self._text(place))
        if not found:
            raise UnknownCostError("the profile does not record the plain arguments")
        return [one == "True" for one in found]

    def given(self, place: int) -> bool:
        """Whether anything was passed there."""
        if place >= len(self.types):
            return False
        return bool(self.types[place]) or bool(
            self.values and place < len(self.values) and self.values[place]
        )

    def type_bytes(self, place: int) -> int | None:
        """Size of an element of the type that was passed as an argument, or None."""
        if self.values is None or place >= len(self.values) or not self.values[place].isdigit():
            return None
        return _SCALAR_TYPES.get(int(self.values[place]))

    def _text(self, place: int) -> str:
        if self.values is None or place >= len(self.values):
            raise UnknownCostError("the profile does not record the plain arguments")
        return self.values[place]

    @property
    def shapes(self) -> str:
        """The sizes of all tensors, in one line."""
        return " ".join(
            str(list(sizes)).replace(" ", "")
            for sizes, kind in zip(self.dims, self.types, strict=False)
            if sizes and kind
        )


def element_bytes(type_name: str) -> int:
    """Size of an element of a type as profiles name it."""
    if _EIGHT_BITS.match(type_name):
        return 1
    if type_name not in _BYTES:
        raise UnknownCostError(f"elements of the type '{type_name}' are not known")
    return _BYTES[type_name]


def dims_of(text: str | None) -> list[Any]:
    """The sizes of inputs as a query gives them; nothing where the file has something else there."""
    try:
        dims = json.loads(text or "[]")
    except ValueError:
        return []
    return dims if isinstance(dims, list) else []


def inputs_of(args: str | None, kernel: str = "") -> Inputs:
    """Reads the inputs from the arguments of an event."""
    read = json.loads(args) if args else {}
    if "Input Dims" not in read or not isinstance(read["Input Dims"], list):
        raise UnknownCostError("shapes are not recorded: record with record_shapes=True")
    types = read.get("Input type") or read.get("Input Type") or []
    dims = [sizes if isinstance(sizes, list) else [] for sizes in read["Input Dims"]]
    types = [str(one) for one in types][: len(dims)] + [""] * (len(dims) - len(types))
    strides = [one if isinstance(one, list) else [] for one in read.get("Input Strides") or []]
    values = read.get("Concrete Inputs")
    return Inputs(dims, types, strides, None if values is None else [str(one) for one in values], kernel)
