from __future__ import annotations

from pathlib import Path

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.loader_starts import LoaderStart

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


class Loading(Drawing):
    """Steps of 1 ms that take batches."""

    def batch(self, at: int, *, fresh: bool, shuffles: bool = True) -> Loading:
        """A batch that takes 100 µs to load; `fresh` makes an iterator for it, 50 µs before."""
        if fresh:
            self.op("aten::empty", at - 55, 2).op("aten::random_", at - 50, 5).op("aten::item", at - 40, 5)
        length = 100
        if fresh and shuffles:
            self.op("aten::random_", at + 2, 3).op("aten::item", at + 6, 2)
            self.op("aten::randperm", at + 10, 40).op("aten::resolve_conj", at + 51, 1)
            length = 400
        self.op("aten::stack", at + length - 80, 60)
        self.annotation(LOADER, at, length)
        self.op("aten::to", at + length + 30, 10)
        return self

    def step(self, number: int) -> Loading:
        self.mark(number, 1000 * number, 990)
        return self

    def rows(self, folder: Path) -> list[LoaderStart]:
        return list(stepscope.open(self.write(folder / "drawn.json")).table("loader_starts"))


def test_an_iterator_for_each_batch(tmp_path: Path) -> None:
    drawing = Loading()
    for step in range(3):
        drawing.step(step).batch(1000 * step + 100, fresh=True)
    # From the seed, 50 µs before, to the first operator after the list, 320 µs into it, or to the next one
    # of the program, 430 µs after its begin.
    wanted = LoaderStart(
        "_SingleProcessDataLoaderIter", None, 3, 3, 3, 3 * 370_000, 3 * 480_000, 3 * 50_000, 0
    )
    assert drawing.rows(tmp_path) == [wanted]


def test_one_iterator_beside_another(tmp_path: Path) -> None:
    drawing = Loading()
    for step in range(3):
        drawing.step(step)
        drawing.batch(1000 * step + 100, fresh=True).batch(1000 * step + 700, fresh=False)
    (row,) = drawing.rows(tmp_path)
    assert (row.batches, row.starts, row.steps) == (6, 3, 3)


def test_the_first_batch_of_an_epoch(tmp_path: Path) -> None:
    drawing = Loading()
    for step in range(3):
        drawing.step(step).batch(1000 * step + 100, fresh=step == 1)
    (row,) = drawing.rows(tmp_path)
    assert (row.batches, row.starts, row.steps) == (3, 1, 1)


def test_without_shuffling_there_is_only_the_start(tmp_path: Path) -> None:
    drawing = Loading().step(0).batch(100, fresh=True, shuffles=False)
    (row,) = drawing.rows(tmp_path)
    assert (row.starts, row.start_up_ns, row.whole_ns) == (1, 50_000, 180_000)


def test_random_numbers_of_the_program_are_no_start(tmp_path: Path) -> None:
    drawing = Loading().step(0)
    drawing.op("aten::random_", 20, 5).op("aten::stack", 30, 5)
    (row,) = drawing.batch(100, fresh=False).rows(tmp_path)
    assert row.starts == 0


def test_workers_are_started_between_two_seeds(tmp_path: Path) -> None:
    drawing = Loading()
    for step in range(2):
        at = 1000 * step
        drawing.step(step).op("aten::empty", at + 20, 2).op("aten::random_", at + 30, 5)
        drawing.op("aten::item", at + 40, 5)
        # 200 µs for the workers, then the sampler's seed, and five calls, the last of which is in vain.
        drawing.batch(at + 300, fresh=True, shuffles=False)
        for later in range(4):
            drawing.batch(at + 420 + 120 * later, fresh=False)
    (row,) = drawing.rows(tmp_path)
    assert (row.batches, row.starts, row.making_ns, row.whole_ns) == (10, 2, 2 * 270_000, 2 * 400_000)
    assert row.ending_ns == 2 * 100_000
