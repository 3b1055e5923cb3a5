"""Data classes that cost little to declare: a report declares two hundred, and makes few kinds of them.

`dataclasses.dataclass` compiles six functions for each class. Here `__init__` is compiled at its first use,
and the others are closures. To the type checker, and to whoever uses one, it is the same thing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

Methods = dict[str, Any]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True):
        """A data class like those of the standard library, with the few options that are in use here."""

        def made(plain):
            return _made(plain, frozen=frozen, slots=slots, eq=eq)

        return made if cls is None else made(cls)


def _made(plain: type, *, frozen: bool, slots: bool, eq: bool) -> Any:
    written = set(vars(plain))
    if plain.__doc__ is None:
        plain.__doc__ = plain.__name__  # else it would be made of the signature, which is not there yet
    cls = _with_fields(plain, slots=slots)
    fields = dataclasses.fields(cls)
    if any(one.kw_only or not one.init or one.hash is not None for one in fields):
        raise TypeError(f"{cls.__name__}: such fields need dataclasses.dataclass")
    names = tuple(one.name for one in fields)
    shown = tuple(one.name for one in fields if one.repr)
    methods: Methods = {"__init__": _Init(cls), "__repr__": _repr_of(shown)}
    if eq:
        methods |= _comparing(tuple(one.name for one in fields if one.compare), hashed=frozen)
    if frozen:
        methods |= _refusing(cls, frozenset(names))
    if frozen and slots:
        methods |= _pickling(names)
    for name, method in methods.items():
        if name not in written:
            setattr(cls, name, method)
    return cls


def _with_fields(plain: type, *, slots: bool) -> Any:
    """A class that knows its fields. The standard library does that, without the texts of their types.

    It would look through each text for a type of its own, which takes longer than all the rest.
    """
    types = vars(plain).get("__annotations__", {})
    if not any(word in str(one) for one in types.values() for word in ("ClassVar", "InitVar", "KW_ONLY")):
        plain.__annotations__ = dict.fromkeys(types, object)
    cls: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(plain)
    cls.__annotations__ = types
    for one in dataclasses.fields(cls):
        one.type = types.get(one.name, one.type)
    return cls


class _Factory:
    """Stands in signatures for what is made for each one."""

    def __repr__(self) -> str:
        return "<factory>"


class _Init:
    """Stands for the `__init__` of a class until somebody asks for it."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        made = _compiled_init(self._cls)
        type.__setattr__(self._cls, "__init__", made)
        return made.__get__(instance, owner)


def _compiled_init(cls: type) -> Any:
    fields = dataclasses.fields(cls)
    known: dict[str, Any] = {"_puts": [_setter(cls, one.name) for one in fields], "_absent": _Factory()}
    parameters, values = ["_self"], []
    for number, one in enumerate(fields):
        parameter, value = one.name, one.name
        if one.default is not dataclasses.MISSING:
            known[f"_default_{number}"] = one.default
            parameter += f"=_default_{number}"
        elif one.default_factory is not dataclasses.MISSING:
            known[f"_make_{number}"] = one.default_factory
            parameter += "=_absent"
            value = f"_make_{number}() if {value} is _absent else {value}"
        parameters.append(parameter)
        values.append(f"{value},")
    # A loop takes half as long to compile as a line for each field, and runs no slower.
    body = f"for _put, _value in zip(_puts, ({' '.join(values)})): _put(_self, _value)"
    if hasattr(cls, "__post_init__"):
        body += "\n _self.__post_init__()"
    exec(f"def __init__({', '.join(parameters)}):\n {body}", known)  # noqa: S102  # of names of fields only
    init = known["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {one.name: one.type for one in fields} | {"return": None}
    return init


def _setter(cls: type, name: str) -> Callable[[object, Any], None]:
    """What sets a field, also of an object that refuses to be changed."""
    slot = getattr(cls, name, None)
    if isinstance(slot, MemberDescriptorType):
        return slot.__set__
    return lambda one, value: object.__setattr__(one, name, value)


def _values_of(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


def _repr_of(names: tuple[str, ...]) -> Callable[[object], str]:
    def __repr__(self: object) -> str:  # noqa: N807  # the name that errors show
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({inside})"

    return __repr__


def _comparing(names: tuple[str, ...], *, hashed: bool) -> Methods:
    values = _values_of(names)

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if hashed else None}


def _refusing(cls: Any, names: frozenset[str]) -> Methods:
    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _pickling(names: tuple[str, ...]) -> Methods:
    def __getstate__(self: object) -> list[Any]:  # noqa: N807
        return [getattr(self, name) for name in names]

    def __setstate__(self: object, state: list[Any]) -> None:  # noqa: N807
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": __getstate__, "__setstate__": __setstate__}
