"""Models of pictures: one designs tiles, one maps orchards and one counts berries."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import adamw, autocast, halved, noise
from benchmarks.faults.models import DEVICE, HALF, ResNet, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional


def encoder() -> Any:
    """The VAE that makes latents of pictures, never trained."""
    from diffusers import AutoencoderKL

    widths = (sized(64, 32), sized(128, 32), sized(256, 32), sized(256, 32))
    vae = AutoencoderKL(
        block_out_channels=widths,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=sized(2, 1),
        latent_channels=4,
    )
    return halved(vae).to(memory_format=torch.channels_last).eval()


@pair(
    "frozen-vae-in-the-graph",
    "The VAE is never trained, but its parameters still ask for gradients and it is run with autograd on: the"
    " backward pass goes on from the latents through the whole encoder, for gradients that nobody reads.",
    "Freeze it with vae.requires_grad_(False), or encode under torch.no_grad().",
)
def eighteenth_tile_designer(faulty: bool) -> Step:
    """A diffusion model learns to paint tiles in the space of a VAE's latents."""
    from diffusers import DDPMScheduler, UNet2DModel

    vae, rows, side = encoder(), sized(16, 2), sized(512, 64)
    if not faulty:
        vae.requires_grad_(False)
    unet = UNet2DModel(
        sample_size=side // 8,
        in_channels=4,
        out_channels=4,
        layers_per_block=sized(2, 1),
        block_out_channels=(sized(192, 32), sized(384, 32), sized(576, 32)),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )
    unet = unet.to(DEVICE, memory_format=torch.channels_last).train()
    optimizer = adamw(unet)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.to(DEVICE)
    pictures = noise(rows, 3, side, side).to(memory_format=torch.channels_last)

    def step() -> Tensor:
        latents = vae.encode(pictures).latent_dist.mode() * vae.config.scaling_factor
        latents = latents.float()
        added = torch.randn_like(latents)
        moments = torch.randint(0, 1000, (rows,), device=DEVICE)
        with autocast():
            guess = unet(scheduler.add_noise(latents, added, moments), moments).sample
        loss = functional.mse_loss(guess.float(), added)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pair(
    "metrics-called-where-update-is-enough",
    "For each batch the collection of metrics is called, which counts the pixels anew for each of its metrics"
    " and computes the values of this batch, though only the values of the whole set are ever read.",
    "Call metrics.update(predicted, truth), for which metrics share their counts, and compute() at the end.",
)
def eighteenth_orchard_mapper(faulty: bool) -> Step:
    """A SegFormer that finds fields and trees on aerial pictures is evaluated."""
    from torchmetrics import MetricCollection, classification
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    kinds, rows, side = 19, sized(16, 2), sized(512, 64)
    config = SegformerConfig(num_labels=kinds, decoder_hidden_size=sized(256, 32))
    model = halved(SegformerForSemanticSegmentation(config)).eval()
    metrics = MetricCollection(
        {
            "accuracy": classification.MulticlassAccuracy(kinds),
            "precision": classification.MulticlassPrecision(kinds),
            "recall": classification.MulticlassRecall(kinds),
            "f1": classification.MulticlassF1Score(kinds),
            "iou": classification.MulticlassJaccardIndex(kinds),
        }
    ).to(DEVICE)
    batches = []
    for _ in range(2):
        truth = torch.randint(0, kinds, (rows, side, side), device=DEVICE)
        batches.append((noise(rows, 3, side, side), truth))
    turn = 0

    @torch.inference_mode()
    def step() -> Tensor:
        nonlocal turn
        pictures, truth = batches[turn % 2]
        turn += 1
        small = model(pixel_values=pictures).logits
        predicted = functional.interpolate(small, size=truth.shape[1:], mode="bilinear").argmax(1)
        if faulty:
            metrics(predicted, truth)
        else:
            metrics.update(predicted, truth)
        return predicted

    return step


def loss_of_each(guessed: Tensor, boxes: Tensor, there: Tensor) -> Tensor:
    """The error of the boxes that are there, picture by picture."""
    total, count = guessed.new_zeros(()), 0
    for number in range(len(guessed)):
        mine = there[number]
        if not mine.any():
            continue
        wanted = boxes[number][mine]
        found = guessed[number][mine]
        total = total + functional.smooth_l1_loss(found, wanted, reduction="sum")
        count += len(wanted)
    return total / max(count, 1)


def loss_of_all(guessed: Tensor, boxes: Tensor, there: Tensor) -> Tensor:
    """The same for all pictures at once."""
    error = functional.smooth_l1_loss(guessed, boxes, reduction="none").sum(-1)
    return (error * there).sum() / there.sum().clamp(min=1)


@pair(
    "loss-picture-by-picture",
    "The loss goes through the pictures one by one and picks the boxes that are there with a mask: dozens of"
    " tiny kernels for each picture, and the host waits for the device at each mask.",
    "Compute the error of all boxes of all pictures at once and multiply it by the mask.",
)
def eighteenth_berry_counter(faulty: bool) -> Step:
    """A network learns to frame the berries on a bush."""
    most = sized(100, 8)
    model = on_images(ResNet(sized(128, 16), 2, 4 * most), dtype=torch.float32).train()
    optimizer = adamw(model)
    bushes = images(32, 256, dtype=torch.float32)
    rows = len(bushes)
    boxes = torch.rand(rows, most, 4, device=DEVICE)
    seen = torch.randint(1, most + 1, (rows, 1), device=DEVICE)
    there = torch.arange(most, device=DEVICE) < seen

    def step() -> Tensor:
        with torch.autocast(DEVICE, HALF, enabled=DEVICE == "cuda"):
            guessed = model(bushes).view(rows, most, 4)
        guessed = guessed.float().sigmoid()
        loss = loss_of_each(guessed, boxes, there) if faulty else loss_of_all(guessed, boxes, there)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
