"""Learns of the DataLoaders that a program iterates: their settings, and how long it waits for batches."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["found", "reset", "unwatch", "watch"]

_MARK = "_stepscope_taken"
_MOST_LOADERS = 100
_replaced: list[tuple[type, str, Callable[..., Any], Callable[..., Any]]] = []
"""Class, method, what it was, and what we put in its place."""
_loaders: list[_Taken] = []
_by_loader: weakref.WeakKeyDictionary[Any, _Taken] = weakref.WeakKeyDictionary()


class _Taken:
    """What was taken from one loader."""

    __slots__ = ("batches", "settings", "waited_ns")

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.batches = 0
        self.waited_ns = 0


def watch() -> bool:
    """Begins to watch, once torch.utils.data is imported; False where it is not, or is one we do not know."""
    module = sys.modules.get("torch.utils.data.dataloader")
    loader, iterator = getattr(module, "DataLoader", None), getattr(module, "_BaseDataLoaderIter", None)
    if loader is None or iterator is None:
        return False
    if not _replaced:
        for owner, name, around in ((loader, "__iter__", _iterating), (iterator, "__next__", _taking)):
            plain = getattr(owner, name)
            ours = around(plain)
            setattr(owner, name, ours)
            _replaced.append((owner, name, plain, ours))
    return True


def unwatch() -> None:
    """Puts back what `watch` replaced, unless somebody else has put something around it since."""
    for owner, name, plain, ours in _replaced:
        if getattr(owner, name, None) is ours:
            setattr(owner, name, plain)
    _replaced.clear()


def reset() -> None:
    """Counts batches and waits anew."""
    for taken in _loaders:
        taken.batches = taken.waited_ns = 0


def found(steps: int) -> list[dict[str, Any]]:
    """Settings of the loaders that gave batches since `reset()`, and their waits, for so many steps."""
    per = max(1, steps)
    return [
        {
            **taken.settings,
            "batches": taken.batches,
            "waited_ns": taken.waited_ns,
            "batches_per_step": taken.batches / per,
            "waited_ns_per_step": round(taken.waited_ns / per),
        }
        for taken in _loaders
        if taken.batches
    ]


def _iterating(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(plain)
    def iterate(self: Any) -> Iterator[Any]:
        iterator = plain(self)
        with contextlib.suppress(Exception):  # an iterator of another kind is learnt of at its first batch
            vars(iterator).setdefault(_MARK, _taken_of(self))
        return iterator  # type: ignore[no-any-return]

    return iterate


def _taking(
    plain: Callable[[Any], Any], clock: Callable[[], int] = time.perf_counter_ns
) -> Callable[[Any], Any]:
    @functools.wraps(plain)
    def take(self: Any) -> Any:
        began = clock()
        batch = plain(self)
        try:
            taken = self.__dict__[_MARK]
        except KeyError:
            taken = _unknown(self)
        taken.waited_ns += clock() - began
        taken.batches += 1
        return batch

    return take


def _taken_of(loader: Any) -> _Taken:
    """What counts for a loader: the same for every time that it is iterated."""
    taken = _by_loader.get(loader)
    if taken is None:
        taken = _Taken(_settings(loader))
        _by_loader[loader] = taken
        _keep(taken)
    return taken


def _unknown(iterator: Any) -> _Taken:
    """What counts for an iterator that was made before we watched: it knows most of its loader."""
    batches = getattr(iterator, "_index_sampler", None)
    known = {
        "dataset": _class_of(getattr(iterator, "_dataset", None)),
        "sampler": _class_of(getattr(batches, "sampler", batches)),
        "batch_size": getattr(batches, "batch_size", None),
        "num_workers": getattr(iterator, "_num_workers", None),
        "pin_memory": getattr(iterator, "_pin_memory", None),
        "prefetch_factor": getattr(iterator, "_prefetch_factor", None),
        "persistent_workers": getattr(iterator, "_persistent_workers", None),
        "drop_last": getattr(iterator, "_drop_last", None),
        "collate": _name_of(getattr(iterator, "_collate_fn", None)),
    }
    taken = _Taken(_plain_values(known))
    _keep(taken)
    iterator.__dict__[_MARK] = taken
    return taken


def _keep(taken: _Taken) -> None:
    """Remembers a loader; a program that makes one for every batch must not grow by it."""
    if len(_loaders) >= _MOST_LOADERS:
        _loaders.sort(key=lambda one: -one.batches)
        del _loaders[_MOST_LOADERS // 2 :]
    _loaders.append(taken)


def _settings(loader: Any) -> dict[str, Any]:
    context = getattr(loader, "multiprocessing_context", None)
    known = {
        "loader": _class_of(loader),
        "dataset": _class_of(getattr(loader, "dataset", None)),
        "sampler": _class_of(getattr(loader, "sampler", None)),
        "batch_sampler": _class_of(getattr(loader, "batch_sampler", None)),
        "batch_size": getattr(loader, "batch_size", None) or _batch_size(loader),
        "num_workers": getattr(loader, "num_workers", None),
        "pin_memory": getattr(loader, "pin_memory", None),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "persistent_workers": getattr(loader, "persistent_workers", None),
        "multiprocessing_context": getattr(context, "_name", None),
        "drop_last": getattr(loader, "drop_last", None),
        "collate": _name_of(getattr(loader, "collate_fn", None)),
    }
    return _plain_values(known)


def _batch_size(loader: Any) -> Any:
    """Of a loader that was given a batch sampler of its own."""
    return getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


def _plain_values(known: dict[str, Any]) -> dict[str, Any]:
    """What can be written as JSON; what is absent is left out."""
    return {name: value for name, value in known.items() if isinstance(value, str | int | bool)}


def _class_of(thing: Any) -> str | None:
    if thing is None:
        return None
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"[:200]


def _name_of(function: Any) -> str | None:
    if function is None:
        return None
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', '')}.{name}"[:200]
