"""Services and jobs: replies are written, portraits are drawn and passages are ranked."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from benchmarks.faults.library_models import bert, halved, llama, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence


class ReplyBook:
    """What has been written for every customer, and who has been answered."""

    def __init__(self, rows: int, stops: set[int]) -> None:
        self.replies: list[list[int]] = [[] for _ in range(rows)]
        self.stops = stops
        self.answered: set[int] = set()

    def note(self, row: int, token: int) -> None:
        """Appends a token to a reply that is not finished."""
        if row in self.answered:
            return
        self.replies[row].append(token)
        if token in self.stops:
            self.answered.add(row)

    def note_each(self, chosen: Tensor) -> None:
        """Notes the tokens of all rows."""
        for row in range(len(self.replies)):
            self.note(row, int(chosen[row].item()))

    def note_all(self, chosen: Tensor) -> None:
        """Notes the tokens of all rows."""
        for row, token in enumerate(chosen.tolist()):
            self.note(row, token)


@pair(
    "tokens-read-one-by-one",
    "A decoding loop on a Llama of transformers reads the new token of every row with .item() to look for "
    "stop tokens: 128 waits and copies for every token (ReplyBook.note_each).",
    "chosen.tolist() once for every token.",
)
def twentyseventh_reply_writer(faulty: bool) -> Step:
    """Replies to customers are written, many at a time."""
    rows, length, new = sized(128, 3), sized(64, 8), sized(12, 3)
    model = llama(8, 1024).eval()
    vocabulary = model.config.vocab_size
    prompts = tokens(vocabulary, rows, length)

    @torch.inference_mode()
    def step() -> list[list[int]]:
        book = ReplyBook(rows, {1, 2, 3})
        note = book.note_each if faulty else book.note_all
        outputs = model(input_ids=prompts, use_cache=True, logits_to_keep=1)
        for _ in range(new - 1):
            chosen = outputs.logits[:, -1].argmax(-1)
            note(chosen)
            outputs = model(
                input_ids=chosen[:, None], past_key_values=outputs.past_key_values, use_cache=True
            )
        note(outputs.logits[:, -1].argmax(-1))
        return book.replies

    return step


def portrait_unet(dtype: torch.dtype) -> Any:
    """The network of a latent diffusion model."""
    from diffusers import UNet2DConditionModel

    wide = sized(192, 32)
    with torch.device(DEVICE):
        unet = UNet2DConditionModel(
            sample_size=sized(64, 8),
            down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
            up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
            block_out_channels=(wide, 2 * wide, 4 * wide, 4 * wide),
            layers_per_block=sized(2, 1),
            attention_head_dim=sized(6, 2),
            cross_attention_dim=sized(768, 32),
        )
    return unet.to(DEVICE, dtype).eval()


def guided(unet: nn.Module, x: Tensor, time: Tensor, texts: Tensor, scale: float) -> Tensor:
    """The direction with guidance, both halves by one call."""
    both = unet(torch.cat([x, x]), time.expand(2 * len(x)), encoder_hidden_states=texts).sample
    without, wanted = both.chunk(2)
    return without + scale * (wanted - without)


@pair(
    "served-in-fp32",
    "The UNet of a diffusion service was loaded without a dtype and draws in fp32.",
    "The weights and everything that goes in are bf16.",
)
def twentyseventh_portrait_studio(faulty: bool) -> Step:
    """Portraits are drawn from descriptions."""
    dtype = torch.float32 if faulty else HALF
    rows, side, turns = sized(4, 1), sized(64, 8), sized(4, 2)
    unet = portrait_unet(dtype)
    texts = noise(2 * rows, sized(77, 8), sized(768, 32), dtype=dtype)
    levels = torch.linspace(1.0, 0.0, turns + 1, device=DEVICE, dtype=dtype)

    @torch.inference_mode()
    def step() -> Tensor:
        x = noise(rows, 4, side, side, dtype=dtype)
        for now, later in pairwise(levels.unbind()):
            x = x + (later - now) * guided(unet, x, now * 1000, texts, 5.0)
        return x

    return step


def passage_lengths(count: int, most: int) -> list[int]:
    """Most passages are short and a few are long."""
    draw = torch.Generator().manual_seed(5)
    drawn = torch.empty(count).log_normal_(4.4, 0.7, generator=draw)
    return drawn.clamp(12, most).long().tolist()


def score_passages(model: nn.Module, passages: list[Tensor], order: list[int], rows: int) -> Tensor:
    """The scores of the passages, in the order in which they came."""
    scores = []
    for first in range(0, len(order), rows):
        part = [passages[place] for place in order[first : first + rows]]
        ids = pad_sequence(part, batch_first=True)
        mask = pad_sequence([torch.ones_like(ids) for ids in part], batch_first=True)
        outputs = model(
            input_ids=ids.to(DEVICE, non_blocking=True), attention_mask=mask.to(DEVICE, non_blocking=True)
        )
        scores.append(outputs.logits[:, 0].float())
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(scores)[back.to(DEVICE)]


@pair(
    "batches-not-sorted-by-length",
    "A cross-encoder scores passages in the order of the search: every batch holds a long one, and about two "
    "thirds of the tokens are padding (score_passages).",
    "The passages are sorted by length before they are batched, and the scores put back in order.",
)
def twentyseventh_passage_ranker(faulty: bool) -> Step:
    """The passages that a search has found are ranked."""
    count, most, rows, best = sized(512, 12), sized(512, 40), sized(64, 4), sized(10, 3)
    model = halved(bert(12, 768, attn_implementation="sdpa")).eval()
    draw = torch.Generator().manual_seed(6)
    vocabulary = model.config.vocab_size
    passages = [
        torch.randint(1, vocabulary, (length,), generator=draw) for length in passage_lengths(count, most)
    ]

    @torch.inference_mode()
    def step() -> list[int]:
        order = list(range(count))
        if not faulty:
            order.sort(key=lambda place: len(passages[place]), reverse=True)
        return score_passages(model, passages, order, rows).topk(best).indices.tolist()

    return step
