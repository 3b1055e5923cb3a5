"""What is learnt of DataLoaders, with the real ones."""

from __future__ import annotations

import copy
import json
import pickle
import time
import timeit
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from stepscope.capture import loaders

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")


class Slow:
    """Items that take their time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 12

    def __getitem__(self, place: int) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.full((2,), place)


def stacked(items: list[Any]) -> Any:
    return torch.stack(items)


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    plain = data.DataLoader.__iter__, data.dataloader._BaseDataLoaderIter.__next__
    assert loaders.watch()
    loaders.reset()
    yield
    loaders.unwatch()
    assert (data.DataLoader.__iter__, data.dataloader._BaseDataLoaderIter.__next__) == plain
    loaders.reset()


def test_settings_and_waits() -> None:
    loader = data.DataLoader(Slow(0.002), batch_size=3, shuffle=True, drop_last=True, collate_fn=stacked)
    for _ in range(2):
        assert len(list(loader)) == 4
    (one,) = loaders.found(4)
    assert one["dataset"].endswith("test_loaders.Slow")
    assert one["sampler"] == "torch.utils.data.sampler.RandomSampler"
    assert one["collate"].endswith(".stacked")
    told = {name: one[name] for name in ("batch_size", "num_workers", "pin_memory", "drop_last")}
    assert told == {"batch_size": 3, "num_workers": 0, "pin_memory": False, "drop_last": True}
    assert (one["batches"], one["batches_per_step"]) == (8, 2.0)
    assert one["waited_ns"] >= 24 * 2_000_000
    assert one["waited_ns_per_step"] == round(one["waited_ns"] / 4)
    assert json.loads(json.dumps(one)) == one


def test_it_counts_from_the_reset() -> None:
    loader = data.DataLoader(Slow(), batch_size=1)
    batches = iter(loader)
    next(batches)
    loaders.reset()
    assert loaders.found(1) == []
    next(batches)
    assert [one["batches"] for one in loaders.found(1)] == [1]


def test_two_loaders_are_told_apart() -> None:
    first, second = data.DataLoader(Slow(), batch_size=6), data.DataLoader(Slow(), batch_size=4)
    for loader in (first, second, second):
        list(loader)
    assert [(one["batch_size"], one["batches"]) for one in loaders.found(1)] == [(6, 2), (4, 6)]


def test_an_iterator_that_was_there_before_is_known_too() -> None:
    loaders.unwatch()
    batches = iter(data.DataLoader(Slow(), batch_size=2))
    next(batches)
    loaders.watch()
    next(batches)
    (one,) = loaders.found(1)
    assert (one["batch_size"], one["num_workers"], one["batches"]) == (2, 0, 1)
    assert one["dataset"].endswith("test_loaders.Slow")


def test_types_pickles_and_copies_stay_what_they_were() -> None:
    loader = data.DataLoader(Slow(), batch_size=2)
    batches = iter(loader)
    assert next(batches).tolist() == [[0, 0], [1, 1]]
    assert type(batches).__name__ == "_SingleProcessDataLoaderIter"
    assert set(vars(pickle.loads(pickle.dumps(loader)))) == set(vars(loader))
    assert copy.copy(loader).batch_size == 2
    assert data.DataLoader.__iter__.__qualname__ == "DataLoader.__iter__"
    assert len(list(batches)) == 5
    with pytest.raises(StopIteration):
        next(batches)


def test_what_others_put_around_it_stays() -> None:
    ours = data.DataLoader.__iter__

    def theirs(self: Any) -> Any:
        return ours(self)

    data.DataLoader.__iter__ = theirs
    try:
        loaders.unwatch()
        assert data.DataLoader.__iter__ is theirs
        assert len(list(data.DataLoader(Slow(), batch_size=6))) == 2
    finally:
        data.DataLoader.__iter__ = ours.__wrapped__


def test_errors_of_the_dataset_come_through() -> None:
    class Broken(Slow):
        def __getitem__(self, place: int) -> Any:
            raise KeyError(place)

    with pytest.raises(KeyError):
        list(data.DataLoader(Broken(), batch_size=2))


@pytest.mark.slow
def test_workers() -> None:
    loader = data.DataLoader(
        Slow(),
        batch_size=3,
        num_workers=1,
        persistent_workers=True,
        prefetch_factor=3,
        multiprocessing_context="fork",
    )
    assert len(list(loader)) == len(list(loader)) == 4
    (one,) = loaders.found(8)
    told = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "batches")
    assert [one[name] for name in told] == [1, True, 3, "fork", 8]


def test_a_program_that_makes_many_loaders_does_not_grow() -> None:
    for _ in range(300):
        next(iter(data.DataLoader(Slow(), batch_size=2)))
    assert len(loaders.found(1)) <= 101


class Ready:
    """An iterator that has its batch at once, so that what is left is our own time."""

    def __next__(self) -> int:
        return 1


def test_a_batch_costs_less_than_a_microsecond_more() -> None:
    ready = Ready()
    plain, wrapped = Ready.__next__, loaders._taking(Ready.__next__)
    wrapped(ready)
    took = [min(timeit.repeat(partial(one, ready), number=20_000, repeat=5)) for one in (plain, wrapped)]
    # Generous, for a machine that does other things meanwhile: it is about 0.3 µs.
    assert (took[1] - took[0]) / 20_000 < 2e-6
