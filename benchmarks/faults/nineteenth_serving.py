"""Services: sounds of old broadcasts, pictures of vases and answers in a museum."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import halved, llama
from benchmarks.faults.models import DEVICE, HALF, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional


class BroadcastIndex:
    """The vectors of the recordings heard last, and how near a new one is to them."""

    def __init__(self, slots: int, width: int) -> None:
        self.vectors = np.zeros((slots, width), dtype=np.float32)
        self.at = 0

    def add(self, found: np.ndarray) -> float:
        """Keeps the vectors of a batch; returns how much it looks like what is known."""
        nearest = float((found @ self.vectors.T).max(1).mean())
        places = (self.at + np.arange(len(found))) % len(self.vectors)
        self.vectors[places] = found
        self.at += len(found)
        return nearest


def pooled(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The mean over the patches of each recording that hold sound, of length one."""
    patches = hidden[:, 2:].float()
    heard = (torch.arange(patches.shape[1], device=patches.device) < lengths[:, None]).float()
    mean = torch.bmm(heard[:, None], patches)[:, 0] / heard.sum(1, keepdim=True)
    return functional.normalize(mean, dim=1)


@pair(
    "hidden-states-copied-to-host-before-pooling",
    "An audio transformer embeds recordings; the vectors of all patches go to the host and are pooled there.",
    "The mean is taken on the GPU: one vector per recording is copied.",
)
def nineteenth_radio_catalog(faulty: bool) -> Step:
    """Old broadcasts are put into a catalogue by how they sound."""
    from transformers import ASTConfig, ASTModel

    rows, frames, width = sized(32, 2), sized(512, 32), sized(768, 32)
    config = ASTConfig(
        hidden_size=width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        intermediate_size=4 * width,
        max_length=frames,
        num_mel_bins=128,
        attn_implementation="sdpa",
    )
    model = halved(ASTModel(config)).eval()
    index = BroadcastIndex(sized(1024, 8), width)
    made = torch.Generator().manual_seed(4)
    shelves = [
        (
            pinned(torch.randn(rows, frames, 128, generator=made).to(HALF)),
            pinned(torch.randint(20, 12 * (frames // 10 - 1), (rows,), generator=made)),
        )
        for _ in range(2)
    ]
    queue = itertools.cycle(shelves)

    @torch.inference_mode()
    def step() -> float:
        spectra, lengths = next(queue)
        hidden = model(input_values=spectra.to(DEVICE, non_blocking=True)).last_hidden_state
        if faulty:
            return index.add(pooled(hidden.cpu(), lengths).numpy())
        return index.add(pooled(hidden, lengths.to(DEVICE, non_blocking=True)).cpu().numpy())

    return step


class VaseStudio:
    """Text encoder, denoiser, schedule and decoder of a small latent diffusion model."""

    def __init__(self) -> None:
        from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
        from transformers import CLIPTextConfig, CLIPTextModel

        wide, text, groups = sized(192, 16), sized(768, 32), sized(32, 8)
        self.text = halved(
            CLIPTextModel(
                CLIPTextConfig(
                    vocab_size=sized(49_408, 100),
                    hidden_size=text,
                    intermediate_size=4 * text,
                    num_hidden_layers=sized(16, 1),
                    num_attention_heads=sized(12, 2),
                    bos_token_id=1,
                    eos_token_id=2,
                )
            )
        ).eval()
        self.denoiser = halved(
            UNet2DConditionModel(
                sample_size=sized(48, 8),
                block_out_channels=(wide, 2 * wide, 3 * wide),
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
                layers_per_block=sized(2, 1),
                cross_attention_dim=text,
                attention_head_dim=8,
                norm_num_groups=groups,
            )
        ).eval()
        self.decoder = halved(
            AutoencoderKL(
                block_out_channels=(sized(64, 8), sized(128, 8)),
                down_block_types=("DownEncoderBlock2D",) * 2,
                up_block_types=("UpDecoderBlock2D",) * 2,
                norm_num_groups=8,
            )
        ).eval()
        self.schedule = DDIMScheduler(num_train_timesteps=1000, set_alpha_to_one=False)

    def condition(self, wanted: Tensor, unwanted: Tensor) -> Tensor:
        """What the denoiser is told: the unwanted first, then the wanted."""
        return self.text(input_ids=torch.cat([unwanted, wanted])).last_hidden_state

    def guided(self, latents: Tensor, time: Tensor, told: Tensor, strength: float) -> Tensor:
        """The noise in the latents, drawn towards what is wanted."""
        both = self.schedule.scale_model_input(torch.cat([latents, latents]), time)
        without, towards = self.denoiser(both, time, encoder_hidden_states=told).sample.chunk(2)
        return torch.lerp(without, towards, strength)


@pair(
    "prompt-encoded-again-at-every-denoising-step",
    "A loop of diffusers draws vases; the text encoder is called inside the loop, with the same prompts.",
    "The prompts are encoded once before the loop.",
)
def nineteenth_ceramic_designer(faulty: bool) -> Step:
    """Vases are drawn from descriptions."""
    studio = VaseStudio()
    rows, side, turns = 4, sized(48, 8), sized(6, 2)
    chance = torch.Generator(device=DEVICE).manual_seed(6)
    orders = pinned(torch.randint(3, sized(49_408, 100), (5, rows, sized(77, 8))))
    unwanted = torch.full((rows, orders.shape[-1]), 2, device=DEVICE)
    queue = itertools.cycle(orders)

    @torch.inference_mode()
    def step() -> Tensor:
        wanted = next(queue).to(DEVICE, non_blocking=True)
        latents = torch.randn(rows, 4, side, side, generator=chance, device=DEVICE).to(HALF)
        studio.schedule.set_timesteps(turns)
        told = None if faulty else studio.condition(wanted, unwanted)
        times = studio.schedule.timesteps
        for number, time in zip(times.tolist(), pinned(times).to(DEVICE, non_blocking=True), strict=True):
            known = studio.condition(wanted, unwanted) if told is None else told
            noise = studio.guided(latents, time, known, 6.0)
            latents = studio.schedule.step(noise, number, latents).prev_sample
        pictures = studio.decoder.decode(latents / 0.18215).sample
        return pictures.float().add(1.0).mul(127.5).clamp(0, 255).byte()

    return step


class Guide:
    """Chooses the exhibit that a visitor asks about, from a long description of the whole hall."""

    def __init__(self, model: Any, hall: Tensor, exhibits: Tensor) -> None:
        self.model = model
        self.hall = hall
        self.exhibits = exhibits
        self.known: Any = None

    def read_hall(self) -> None:
        """Reads the description once and keeps the keys and values of it."""
        from transformers import DynamicCache

        read = self.model(
            input_ids=self.hall, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1
        )
        self.known = read.past_key_values

    def scores_in_full(self, questions: Tensor) -> Tensor:
        """Description and question go through the model together, for every visitor."""
        ids = torch.cat([self.hall.expand(len(questions), -1), questions], 1)
        return self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]

    def scores_of_rest(self, questions: Tensor) -> Tensor:
        """Only the questions go through the model, behind what was kept of the description."""
        cache = copy.deepcopy(self.known)
        cache.batch_repeat_interleave(len(questions))
        read = self.model(input_ids=questions, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return read.logits[:, -1]

    def choose(self, questions: Tensor) -> tuple[Tensor, Tensor]:
        """Which exhibit each visitor means, and how sure that is."""
        scores = self.scores_in_full(questions) if self.known is None else self.scores_of_rest(questions)
        chances = scores[:, self.exhibits].float().softmax(-1)
        return chances.argmax(-1), chances.amax(-1)


@pair(
    "shared-prompt-prefilled-for-every-request",
    "A Llama answers visitors; the same long description stands before each question and is read each time.",
    "The description is read once; its keys and values are repeated for the questions of a batch.",
)
def nineteenth_museum_guide(faulty: bool) -> Step:
    """Visitors' questions are led to the right exhibit."""
    model = llama(12, 1024, words=16_384).eval()
    words, rows, length = sized(16_384, 128), sized(24, 2), sized(32, 4)
    made = torch.Generator().manual_seed(9)
    hall = torch.randint(2, words, (1, sized(1536, 16)), generator=made).to(DEVICE)
    exhibits = torch.randperm(words, generator=made)[: sized(40, 8)].to(DEVICE)
    asked = itertools.cycle(
        [pinned(torch.randint(2, words, (rows, length), generator=made)) for _ in range(4)]
    )
    guide = Guide(model, hall, exhibits)
    if not faulty:
        with torch.inference_mode():
            guide.read_hall()
    visits = torch.zeros(len(exhibits), device=DEVICE)

    @torch.inference_mode()
    def step() -> list[int]:
        chosen, sure = guide.choose(next(asked).to(DEVICE, non_blocking=True))
        visits.index_add_(0, chosen, sure)
        return chosen.tolist()

    return step
