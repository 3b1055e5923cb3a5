"""Programs on diffusers: learning to take noise away, and taking it away."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import autocast, halved, noise, tokens, training
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional


def unet(width: int, *, conditional: bool = True, heads: int = 64) -> Any:
    """A U-Net of two levels with random weights, told by a text or not."""
    from diffusers import UNet2DConditionModel, UNet2DModel

    width = sized(width, 32)
    sizes = (width, 2 * width)
    if not conditional:
        return UNet2DModel(
            sample_size=32,
            block_out_channels=sizes,
            layers_per_block=sized(2, 1),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        ).to(DEVICE)
    return UNet2DConditionModel(
        sample_size=32,
        block_out_channels=sizes,
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=sized(512, 32),
        attention_head_dim=max(1, width // heads),
    ).to(DEVICE)


def vae(width: int) -> Any:
    """An autoencoder of pictures with random weights: three levels."""
    from diffusers import AutoencoderKL

    width = sized(width, 32)
    return AutoencoderKL(
        block_out_channels=(width, 2 * width, 2 * width),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=4,
        sample_size=sized(256, 32),
    ).to(DEVICE)


@pair(
    "moving-mean-tensor-by-tensor",
    "EMAModel of diffusers drags a copy of a small U-Net along, parameter by parameter.",
    "EMAModel(foreach=True).",
)
def library_unet_ema(faulty: bool) -> Step:
    """Two short kernels for each of some hundred tensors."""
    from diffusers import DDPMScheduler
    from diffusers.training_utils import EMAModel

    model = unet(64, conditional=False)
    ema = EMAModel(model.parameters(), decay=0.999, foreach=not faulty)
    ema.to(DEVICE)
    scheduler, optimizer = DDPMScheduler(), adamw(model)
    rows = sized(16, 1)
    pictures = noise(rows, 3, sized(32, 16), sized(32, 16), dtype=torch.float32)

    def step() -> None:
        target, times = torch.randn_like(pictures), tokens(1000, rows)
        with autocast():
            found = model(scheduler.add_noise(pictures, target, times), times).sample
        functional.mse_loss(found.float(), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.step(model.parameters())

    return step


@pair(
    "two-calls-in-place-of-one",
    "Guidance calls the U-Net twice in each step of denoising: with the text and without.",
    "One call takes both as one batch.",
    light_steps=2,
)
def library_guidance_in_two_calls(faulty: bool) -> Step:
    """Twice the launches of short kernels."""
    from diffusers import DDIMScheduler

    model, scheduler = halved(unet(192)).eval(), DDIMScheduler()
    scheduler.set_timesteps(3)
    start, text = noise(1, 4, 32, 32), noise(2, 77, sized(512, 32))

    def predicted(x: Tensor, time: Any) -> tuple[Tensor, Tensor]:
        if faulty:
            return model(x, time, text[:1]).sample, model(x, time, text[1:]).sample
        both: Tensor = model(torch.cat([x, x]), time, text).sample
        return both[:1], both[1:]

    def step() -> None:
        x = start
        with torch.no_grad():
            for time in scheduler.timesteps:
                without, told = predicted(x, time)
                x = scheduler.step(without + 7.5 * (told - without), time, x).prev_sample

    return step


@pair(
    "previews-in-every-step",
    "A callback decodes the latents after every step of denoising and makes PIL pictures for a preview.",
    "Only the last latents are decoded.",
    light_steps=2,
    full=False,
)
def library_previews(faulty: bool) -> Step:
    """The decoder and PIL run twice as often as needed, and the device waits."""
    from diffusers import DDIMScheduler
    from diffusers.image_processor import VaeImageProcessor

    model, decoder, scheduler = halved(unet(256)).eval(), halved(vae(96)).eval(), DDIMScheduler()
    scheduler.set_timesteps(2)
    processor = VaeImageProcessor()
    start, text = noise(2, 4, sized(64, 8), sized(64, 8)), noise(2, 77, sized(512, 32))

    def decoded(x: Tensor) -> None:
        processor.postprocess(decoder.decode(x).sample, output_type="pil")

    def step() -> None:
        x = start
        with torch.no_grad():
            for number, time in enumerate(scheduler.timesteps):
                x = scheduler.step(model(x, time, text).sample, time, x).prev_sample
                if faulty or number == 1:
                    decoded(x)

    return step


@pair(
    "frozen-part-in-fp32",
    "Latent diffusion is trained in bf16, but the frozen autoencoder of the pictures stays in fp32.",
    "The autoencoder is bf16, too.",
)
def library_vae_in_fp32(faulty: bool) -> Step:
    """Convolutions in fp32 take longer than all of the training."""
    encoder = vae(128).requires_grad_(False).eval()
    kind = torch.float32 if faulty or DEVICE == "cpu" else torch.bfloat16
    encoder, model = encoder.to(kind), halved(unet(192))
    rows, side = sized(8, 1), sized(256, 32)
    pictures, text = noise(rows, 3, side, side, dtype=kind), noise(rows, 77, sized(512, 32))
    times = tokens(1000, rows)

    def loss() -> Tensor:
        with torch.no_grad():
            latents = encoder.encode(pictures).latent_dist.sample().to(text.dtype)
        target = torch.randn_like(latents)
        return functional.mse_loss(model(latents + target, times, text).sample, target)

    return training(model, loss)


@pair(
    "attention-in-slices",
    'A U-Net with attention slicing ("max"), switched on for a smaller card, samples two pictures.',
    "Without slicing: scaled_dot_product_attention.",
    light_steps=2,
)
def library_attention_slices(faulty: bool) -> Step:
    """A loop over heads and pictures, scores written out for each."""
    model = halved(unet(192)).eval()
    if faulty:
        model.set_attention_slice("max")
    x, text = noise(2, 4, sized(64, 8), sized(64, 8)), noise(2, 77, sized(512, 32))

    def step() -> None:
        with torch.no_grad():
            model(x, 500, text)

    return step


@pair(
    "decoding-in-tiles",
    "AutoencoderKL.enable_tiling() decodes latents of 160 × 160 in overlapping tiles, though memory is free.",
    "Without tiles.",
    light_steps=2,
)
def library_vae_tiles(faulty: bool) -> Step:
    """Overlapping tiles are decoded one by one, and blended row by row in Python."""
    decoder = halved(vae(64)).eval()
    if faulty:
        decoder.enable_tiling()
    x = noise(1, 4, sized(160, 24), sized(160, 24))

    def step() -> None:
        with torch.no_grad():
            decoder.decode(x)

    return step
