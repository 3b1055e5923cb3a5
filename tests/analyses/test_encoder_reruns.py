from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.encoder_reruns import EncoderReruns
from stepscope.tables import Table

Called = tuple[str, list[int], int]
"""An operator, the shape of what it reads, and the blocks of its kernel."""

BATCH, PASSES, SOURCE = 2, 6, 14
PRODUCT = 5
"""Blocks of the encoder's products."""
ENCODER: list[Called] = [
    ("aten::linear", [BATCH, SOURCE, 8], PRODUCT),
    ("aten::layer_norm", [BATCH, SOURCE, 8], BATCH * SOURCE),
    ("aten::linear", [BATCH, SOURCE, 8], PRODUCT),
    ("aten::layer_norm", [BATCH, SOURCE, 8], BATCH * SOURCE),
    ("aten::linear", [BATCH, SOURCE, 8], PRODUCT),
    ("aten::linear", [BATCH, SOURCE, 8], PRODUCT),
]


def lookup(length: int) -> Called:
    return "aten::embedding", [BATCH, length], BATCH * length


def decoder(length: int) -> list[Called]:
    """One layer; its products launch the same for a few tokens more or less."""
    names = ("layer_norm", "linear", "add", "layer_norm", "linear", "relu", "linear", "add")
    return [
        (f"aten::{name}", [BATCH, length, 8], 1 if name == "linear" else BATCH * length) for name in names
    ]


def choice(length: int) -> list[Called]:
    return [("aten::argmax", [BATCH, 50], 1), ("aten::cat", [BATCH, length], 1)]


def encoder_first(length: int) -> list[Called]:
    """The encoder reads its text, then the decoder reads what is written."""
    return [lookup(SOURCE), *ENCODER, lookup(length), *decoder(length), *choice(length)]


def lookups_first(length: int) -> list[Called]:
    """As nn.Transformer is called, with both sequences looked up."""
    return [lookup(SOURCE), lookup(length), *ENCODER, *decoder(length), *choice(length)]


def reruns(
    folder: Path,
    one_pass: Callable[[int], list[Called]],
    *,
    shapes: bool = False,
    copied: int = 0,
    training: bool = False,
    kernel_us: int = 3,
    gather: str = "vectorized_gather_kernel",
) -> Table[EncoderReruns]:
    """The table of a step of six passes: an operator each 10 µs takes 8 µs, and a kernel of 3 µs.

    Those of the encoder's products take `kernel_us`.
    """
    drawing, at, number = Drawing(), 10, 0
    for length in range(1, PASSES + 1):
        for name, shape, blocks in one_pass(length):
            number, table = number + 1, [[50, 8]] if name == "aten::embedding" else []
            args: dict[str, Any] = {"Input Dims": [*table, shape]} if shapes else {}
            drawing.op(name, at, 8, args=args)
            if table:
                drawing.op("aten::index_select", at + 1, 6).op("aten::gather", at + 2, 4)
            drawing.launch("cudaLaunchKernel", at + 3, 2, corr=number)
            kernel = gather if table else f"{name.removeprefix('aten::')}_kernel"
            long = kernel_us if blocks == PRODUCT else 3
            drawing.kernel(kernel, at + 6, long, corr=number, grid=[blocks, 1, 1], block=[128, 1, 1])
            at += 10
        if copied:
            number += 1
            drawing.op("aten::copy_", at, 8).launch("cudaMemcpyAsync", at + 1, 2, corr=number)
            drawing.memcpy("Memcpy HtoD (Pinned -> Device)", at + 4, 1, corr=number, bytes=copied)
            at += 10
    if training:
        drawing.op("autograd::engine::evaluate_function: AddmmBackward0", at, 5)
    drawing.mark(1, 0, at + 10)
    folder.mkdir(exist_ok=True)
    return stepscope.open(drawing.write(folder / "drawn.json")).table("encoder_reruns")


@pytest.mark.parametrize("shapes", [False, True])
def test_an_encoder_before_the_decoder_reads(tmp_path: Path, shapes: bool) -> None:
    # Its look-up and six operators in five passes; the first of these follows 7 + 11 operators.
    (row,) = reruns(tmp_path, encoder_first, shapes=shapes)
    assert (row.reruns, row.passes, row.first_length, row.last_length) == (5, 6, 1, 6)
    assert (row.ops, row.host_ns, row.device_ns) == (7, 5 * 68_000, 5 * 7 * 3_000)
    assert row.first_ops.startswith("aten::embedding, aten::linear, aten::layer_norm")
    assert (row.user_frame, row.start_ns % 1_000_000) == (None, 10_000 + 18 * 10_000)


@pytest.mark.parametrize("shapes", [False, True])
def test_an_encoder_after_both_are_looked_up(tmp_path: Path, shapes: bool) -> None:
    # The look-up of its text is not among its six operators, for another one follows.
    (row,) = reruns(tmp_path, lookups_first, shapes=shapes)
    assert (row.reruns, row.ops, row.host_ns, row.device_ns) == (5, 6, 5 * 58_000, 5 * 6 * 3_000)


@pytest.mark.parametrize("shapes", [False, True])
def test_a_decoder_with_a_cache(tmp_path: Path, shapes: bool) -> None:
    # A pass follows a choice: the first and the last one of the profile have none before or after them.
    (row,) = reruns(tmp_path, with_a_cache, shapes=shapes, kernel_us=6)
    assert (row.reruns, row.passes, row.first_length, row.last_length) == (4, 5, None, None)
    assert (row.ops, row.host_ns, row.device_ns) == (7, 4 * 68_000, 4 * (3 * 3_000 + 4 * 6_000))


def test_without_shapes_an_encoder_takes_longer_than_the_decoder(tmp_path: Path) -> None:
    assert len(reruns(tmp_path, with_a_cache)) == 0
    assert len(reruns(tmp_path / "shapes", with_a_cache, shapes=True)) == 1


@pytest.mark.parametrize("blocks,found", [(16, 0), (512, 1)])
def test_rows_that_are_not_aligned_are_many_if_they_have_many_blocks(
    tmp_path: Path, blocks: int, found: int
) -> None:
    def one_pass(length: int) -> list[Called]:
        positions: Called = ("aten::embedding", [SOURCE, SOURCE], blocks)
        return [*ENCODER[:2], positions, *ENCODER, lookup(1), *cached(length), *choice(1)]

    # A block gathers 1,024 numbers, and a row has 16,384 at most.
    gather = "_scatter_gather_elementwise_kernel<128, 8, …>"
    assert len(reruns(tmp_path, one_pass, kernel_us=6, gather=gather)) == found


def test_an_encoder_of_pictures(tmp_path: Path) -> None:
    def one_pass(length: int) -> list[Called]:
        seen = [("aten::conv2d", [BATCH, 3, 32, 32], 64)] * 4
        return [*seen, lookup(length), *decoder(length), *choice(length)]

    (row,) = reruns(tmp_path, one_pass)
    assert (row.reruns, row.ops, row.host_ns) == (5, 4, 5 * 38_000)


@pytest.mark.parametrize("shapes", [False, True])
def test_positions_of_the_encoder_are_one_for_all_sequences(tmp_path: Path, shapes: bool) -> None:
    def one_pass(length: int) -> list[Called]:
        read: list[Called] = [("aten::embedding", [20, 14], 280), ("aten::embedding", [14], 14)]
        written: Called = ("aten::embedding", [20, length], 20 * length)
        return [*read, *ENCODER, written, *decoder(length), *choice(length)]

    (row,) = reruns(tmp_path, one_pass, shapes=shapes)
    assert (row.reruns, row.ops) == (5, 8)


def test_what_comes_from_the_host_may_be_new(tmp_path: Path) -> None:
    # Up to 16 bytes for each of 2 × 6 tokens may be ids and a mask.
    assert len(reruns(tmp_path, encoder_first, copied=192)) == 1
    assert len(reruns(tmp_path / "more", encoder_first, copied=193)) == 0


def test_training_needs_it(tmp_path: Path) -> None:
    assert len(reruns(tmp_path, encoder_first, training=True)) == 0


def no_encoder(length: int) -> list[Called]:
    return [lookup(length), *decoder(length), *choice(length)]


def growing_encoder(length: int) -> list[Called]:
    tower = [(name, [BATCH, length, 8], BATCH * length) for name, _, _ in ENCODER]
    return [lookup(length), *tower, lookup(length), *decoder(length), *choice(length)]


def reads_the_last_token(length: int) -> list[Called]:
    return [lookup(1), *ENCODER, lookup(length), *decoder(length), *choice(length)]


def cached(length: int) -> list[Called]:
    """Two layers that read one token of each sequence, and the keys and values of all before.

    What joins them launches the same for one token more.
    """
    seen = [(f"aten::{name}", [BATCH, 4, length, 2], 1) for name in ("cat", "cat", "add")]
    rest = [(f"aten::{name}", [BATCH, 1, 8], 1) for name in ("layer_norm", "linear", "relu", "linear")]
    return [*rest, *seen, *rest, *seen, *rest]


def with_a_cache(length: int) -> list[Called]:
    return [lookup(SOURCE), *ENCODER, lookup(1), *cached(length), *choice(1)]


def reads_one_token_with_a_cache(length: int) -> list[Called]:
    return [lookup(1), *ENCODER, *cached(length), *choice(1)]


def head_after_the_choice(length: int) -> list[Called]:
    """It has layers enough, and reads a row of each sequence."""
    head = [(f"aten::{name}", [BATCH, 8], 1) for name in ("layer_norm", "linear", "relu", "linear")]
    return [lookup(1), *cached(length), *choice(1), *head, *head]


def nothing_is_chosen(length: int) -> list[Called]:
    return [lookup(SOURCE), *ENCODER, lookup(length), *decoder(length)]


def few_products(length: int) -> list[Called]:
    return [lookup(SOURCE), *ENCODER[:5], lookup(length), *decoder(length), *choice(length)]


def latents(length: int) -> list[Called]:
    """A fixed number of them attend to all tokens."""
    return [lookup(length), *decoder(length), *ENCODER, *choice(length)]


def latents_alone(length: int) -> list[Called]:
    """Nothing after them grows."""
    return [lookup(length), ("aten::add", [BATCH, length, 8], BATCH * length), *ENCODER, *choice(length)]


def latents_before_a_decoder(length: int) -> list[Called]:
    return [lookup(length), *decoder(length), *ENCODER, *decoder(length), *choice(length)]


@pytest.mark.parametrize("shapes", [False, True])
@pytest.mark.parametrize(
    "one_pass",
    [
        no_encoder,
        growing_encoder,
        reads_the_last_token,
        reads_one_token_with_a_cache,
        head_after_the_choice,
        nothing_is_chosen,
        few_products,
        latents,
        latents_alone,
        latents_before_a_decoder,
    ],
)
def test_other_passes(tmp_path: Path, one_pass: Callable[[int], list[Called]], shapes: bool) -> None:
    assert len(reruns(tmp_path, one_pass, shapes=shapes)) == 0


def test_launches_alone_do_not_tell_a_small_decoder_from_an_encoder(tmp_path: Path) -> None:
    """Its products and sums launch the same for one token more; its norms do not."""

    def one_pass(length: int) -> list[Called]:
        layer = [("aten::linear", [BATCH, length, 8], 1), ("aten::relu", [BATCH, length, 8], 1)] * 4
        return [lookup(length), *layer, *decoder(length), *choice(length)]

    assert len(reruns(tmp_path, one_pass)) == 0
    assert len(reruns(tmp_path / "shapes", one_pass, shapes=True)) == 0
