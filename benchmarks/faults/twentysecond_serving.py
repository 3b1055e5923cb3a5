"""Services: orders at a kiosk, questions at a harbour and pictures of glazes."""

from __future__ import annotations

import random
from typing import Any

import torch
from benchmarks.faults.library_models import halved, llama, noise, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor

# ---------------------------------------------------------------- orders


class Menu:
    """The dishes as a tree of tokens, whose leaves lead back to its root."""

    def __init__(self, dishes: int, words: int) -> None:
        chance = random.Random(11)
        self.words = words
        self.branches: list[dict[int, int]] = [{}]
        for _ in range(dishes):
            spot = 0
            name = [chance.randrange(3, words) for _ in range(chance.randint(2, 4))]
            for token in name[:-1]:
                if self.branches[spot].get(token, 0) == 0:
                    self.branches.append({})
                    self.branches[spot][token] = len(self.branches) - 1
                spot = self.branches[spot][token]
            self.branches[spot].setdefault(name[-1], 0)

    def walk(self, order: list[int]) -> int:
        """Where in the tree an order has come to."""
        spot = 0
        for token in order:
            spot = self.branches[spot].get(token, 0)
        return spot

    def table(self) -> Tensor:
        """Where each token leads from each place, or -1."""
        leads = torch.full((len(self.branches), self.words), -1)
        for spot, branches in enumerate(self.branches):
            for token, target in branches.items():
                leads[spot, token] = target
        return leads


class MenuMask:
    """A logits processor that keeps the places of all rows on the device."""

    def __init__(self, leads: Tensor, start: int) -> None:
        self.leads = leads
        self.start = start
        self.spots: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of the tokens that the menu has there."""
        if self.spots is None or input_ids.shape[1] == self.start:
            self.spots = torch.zeros(len(input_ids), dtype=torch.long, device=input_ids.device)
        else:
            self.spots = self.leads[self.spots, input_ids[:, -1]]
        return scores.masked_fill(self.leads[self.spots] < 0, -torch.inf)


@pair(
    "allowed-tokens-listed-on-the-host",
    "generate() is given a prefix_allowed_tokens_fn, which for every row and token brings the row to the"
    " host, walks a tree in Python and returns a list of ids.",
    "A logits processor with the tree as a table on the device.",
)
def kiosk_waiter(faulty: bool) -> Step:
    """A kiosk turns what guests say into dishes of the menu."""
    from transformers import LogitsProcessorList

    count, rows, length = sized(8192, 128), sized(32, 2), sized(192, 8)
    model = llama(8, 1024, words=8192).eval()
    menu = Menu(sized(500, 10), count)
    said = torch.randint(3, count, (rows, length), device=DEVICE)
    heard = torch.ones_like(said)
    mask = MenuMask(menu.table().to(DEVICE), length)

    def allowed(row: int, sequence: Tensor) -> list[int]:
        del row
        return list(menu.branches[menu.walk(sequence.tolist()[length:])])

    options: dict[str, Any] = (
        {"prefix_allowed_tokens_fn": allowed} if faulty else {"logits_processor": LogitsProcessorList([mask])}
    )

    @torch.inference_mode()
    def step() -> Tensor:
        return model.generate(
            said, attention_mask=heard, max_new_tokens=sized(8, 3), do_sample=False, pad_token_id=0, **options
        )

    return step


# ---------------------------------------------------------------- questions


@pair(
    "static-cache-far-too-long",
    "A service keeps a StaticCache of as many places as the model has positions, 16384, and eager attention"
    " reads all of them for orders of 200 tokens.",
    "A cache as long as the longest request with its answer.",
)
def harbor_clerk(faulty: bool) -> Step:
    """Questions about berths and tides are answered."""
    from transformers import StaticCache

    rows, length, answer = sized(24, 2), sized(192, 8), sized(6, 3)
    model = llama(8, 1024, words=8192).eval()
    places = sized(16_384, 64) if faulty else sized(256, 16)
    cache = StaticCache(config=model.config, max_cache_len=places)
    asked = tokens(sized(8192, 128) - 3, rows, length) + 3
    seen = torch.ones_like(asked)

    @torch.inference_mode()
    def step() -> Tensor:
        cache.reset()
        return model.generate(
            asked,
            attention_mask=seen,
            past_key_values=cache,
            max_new_tokens=answer,
            do_sample=False,
            pad_token_id=0,
            disable_compile=True,
        )

    return step


# ---------------------------------------------------------------- pictures


@pair(
    "noise-drawn-on-the-host",
    "The sampler of diffusers is given a generator of the host, so that the noise of every step is drawn by"
    " one thread of the host and copied.",
    "A generator of the device with the same seed.",
)
def pottery_glazer(faulty: bool) -> Step:
    """Glazes for pots are drawn, two rounds of the sampler at a time."""
    from diffusers import DDPMScheduler, UNet2DModel

    side, rows, widths = sized(256, 32), sized(8, 2), (sized(96, 16), sized(192, 32), sized(384, 32))
    model = halved(
        UNet2DModel(
            sample_size=side,
            block_out_channels=widths,
            layers_per_block=2,
            norm_num_groups=8,
            down_block_types=("DownBlock2D", "DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D", "UpBlock2D"),
        )
    ).eval()
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    scheduler.set_timesteps(50)
    moments = scheduler.timesteps.tolist()
    times = scheduler.timesteps.to(DEVICE)
    generator = torch.Generator("cpu" if faulty else DEVICE).manual_seed(17)
    start = noise(rows, 3, side, side)
    canvas = start
    turn = 0

    @torch.inference_mode()
    def step() -> Tensor:
        nonlocal canvas, turn
        for _ in range(2):
            if turn == len(moments) - 1:
                canvas, turn = start, 0
            guess = model(canvas, times[turn]).sample
            canvas = scheduler.step(guess, moments[turn], canvas, generator=generator).prev_sample
            turn += 1
        return canvas

    return step
