"""Training scripts for pictures: cameras in the wild, parts on a belt, textures and vessels of the eye."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, Residual, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


def camera_shots(count: int, width: int, height: int) -> list[bytes]:
    """Photographs as JPEG files in memory."""
    from PIL import Image

    draw = np.random.default_rng(11)
    files = []
    for _ in range(count):
        coarse = draw.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        picture.save(file, format="JPEG", quality=90)
        files.append(file.getvalue())
    return files


class CameraShots(Dataset[tuple[Tensor, int]]):
    """Photographs of camera traps: decoded, cropped, flipped and normalised."""

    MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
    SPREAD = np.array([0.229, 0.224, 0.225], dtype=np.float32)

    def __init__(self, files: list[bytes], side: int, species: int, count: int) -> None:
        self.files = files
        self.side = side
        self.species = species
        self.count = count

    def __len__(self) -> int:
        """How many photographs an epoch has."""
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """A photograph and its species."""
        from PIL import Image

        picture = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        wide, high = picture.size
        span = int(min(wide, high) * random.uniform(0.6, 1.0))
        left, top = random.randint(0, wide - span), random.randint(0, high - span)
        picture = picture.resize(
            (self.side, self.side), Image.Resampling.BICUBIC, box=(left, top, left + span, top + span)
        )
        values = np.asarray(picture, dtype=np.float32) / 255.0
        if random.random() < 0.5:
            values = values[:, ::-1]
        values = (values - self.MEAN) / self.SPREAD
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1))), index % self.species


def camera_batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """Batches of one epoch after the other."""
    while True:
        yield from loader


class SpeciesNet(nn.Module):
    """A transformer on patches of a photograph."""

    def __init__(self, side: int, width: int, layers: int, species: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.places = nn.Parameter(torch.zeros(1, (side // 16) ** 2, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, max(1, width // 64), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, species)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of the species."""
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


@pair(
    "too-few-loader-workers",
    "The DataLoader decodes and augments JPEG files with num_workers=2, the value of a Colab notebook, on a "
    "machine of sixteen cores; the device waits for it.",
    "num_workers=14.",
)
def twentyseventh_wildlife_cameras(faulty: bool) -> Step:
    """Animals in front of camera traps are told apart."""
    side, rows, species = sized(224, 32), sized(64, 4), 48
    shots = CameraShots(camera_shots(sized(64, 4), sized(512, 64), sized(384, 64)), side, species, 200_000)
    workers = 2 if faulty else 14
    loader = DataLoader(
        shots,
        batch_size=rows,
        shuffle=True,
        num_workers=sized(workers, 0),
        pin_memory=DEVICE == "cuda",
        persistent_workers=DEVICE == "cuda",
        drop_last=True,
    )
    model = SpeciesNet(side, sized(384, 64), sized(12, 1), species).to(DEVICE)
    optimizer = adamw(model, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    batches = camera_batches(loader)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        pictures, labels = next(batches)
        pictures = pictures.to(DEVICE, non_blocking=True)
        labels = labels.to(DEVICE, non_blocking=True)
        with autocast():
            loss = functional.cross_entropy(model(pictures), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step


class PartsNet(nn.Module):
    """Finds centres of parts, and how large they are."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
        )
        self.fine = nn.Sequential(*(Residual(width) for _ in range(3)))
        self.coarse = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), *(Residual(2 * width) for _ in range(4))
        )
        self.joined = nn.Conv2d(3 * width, width, 3, padding=1)
        self.heat = nn.Conv2d(width, classes, 1)
        self.extent = nn.Conv2d(width, 2, 1)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """The heat of every class and the extents, at a quarter of the size."""
        fine = self.fine(self.stem(pictures))
        coarse = functional.interpolate(self.coarse(fine), scale_factor=2.0)
        x = torch.relu(self.joined(torch.cat([fine, coarse], 1)))
        return self.heat(x), self.extent(x)


def draw_peak(heat: Tensor, x: int, y: int, radius: int) -> None:
    """Draws a bell around a centre where it is above what is there."""
    span = torch.arange(-radius, radius + 1, device=heat.device, dtype=heat.dtype)
    peak = torch.exp(-(span[:, None] ** 2 + span[None] ** 2) / (2 * (radius / 3) ** 2))
    high, wide = heat.shape
    left, right = min(x, radius), min(wide - x, radius + 1)
    top, bottom = min(y, radius), min(high - y, radius + 1)
    region = heat[y - top : y + bottom, x - left : x + right]
    region.copy_(torch.maximum(region, peak[radius - top : radius + bottom, radius - left : radius + right]))


def heat_by_box(boxes: Tensor, labels: Tensor, classes: int, side: int) -> Tensor:
    """The heat that the network should show: pictures, classes, side, side."""
    heat = torch.zeros(len(boxes), classes, side, side, device=boxes.device)
    for picture, (shapes, kinds) in enumerate(zip(boxes, labels, strict=True)):
        for box, kind in zip(shapes, kinds, strict=True):
            x, y = int((box[0] + box[2]) / 2), int((box[1] + box[3]) / 2)
            radius = max(2, int((box[2:] - box[:2]).min() / 3))
            draw_peak(heat[picture, int(kind)], x, y, radius)
    return heat


def heat_together(boxes: Tensor, labels: Tensor, classes: int, side: int) -> Tensor:
    """The heat that the network should show: pictures, classes, side, side."""
    pictures, count = labels.shape
    flat = boxes.flatten(0, 1)
    x, y = ((flat[:, :2] + flat[:, 2:]) / 2).long().unbind(1)
    radius = ((flat[:, 2:] - flat[:, :2]).amin(1) / 3).long().clamp(min=2)[:, None]
    place = torch.arange(side, device=boxes.device)
    across, down = place - x[:, None], place - y[:, None]
    bell = 2 * (radius / 3) ** 2
    rows = torch.exp(-(down**2) / bell) * (down.abs() <= radius)
    columns = torch.exp(-(across**2) / bell) * (across.abs() <= radius)
    peaks = (rows[:, :, None] * columns[:, None, :]).flatten(1)
    owner = torch.arange(pictures, device=boxes.device).repeat_interleave(count, output_size=pictures * count)
    slot = (owner * classes + labels.flatten())[:, None].expand_as(peaks)
    heat = torch.zeros(pictures * classes, side * side, device=boxes.device)
    return heat.scatter_reduce_(0, slot, peaks, "amax").view(pictures, classes, side, side)


def centre_loss(scores: Tensor, heat: Tensor) -> Tensor:
    """The focal loss of CornerNet."""
    found = scores.float().sigmoid().clamp(1e-4, 1 - 1e-4)
    peak = heat.eq(1).float()
    near = (1 - found) ** 2 * found.log() * peak
    far = found**2 * (1 - found).log() * (1 - heat) ** 4 * (1 - peak)
    return -(near + far).sum() / peak.sum().clamp(min=1)


def extent_loss(extents: Tensor, boxes: Tensor) -> Tensor:
    """How far the extents at the centres are from those of the boxes."""
    x, y = ((boxes[..., :2] + boxes[..., 2:]) / 2).long().unbind(-1)
    place = (y * extents.shape[-1] + x)[:, None].expand(-1, 2, -1)
    told = extents.float().flatten(2).gather(2, place)
    return functional.l1_loss(told, (boxes[..., 2:] - boxes[..., :2]).transpose(1, 2))


@pair(
    "targets-drawn-box-by-box",
    "The targets of a CenterNet are drawn on the device in a Python loop over pictures and boxes, whose "
    "coordinates are read by int() one by one (heat_by_box).",
    "All boxes are drawn at once and merged by scatter_reduce_ with amax.",
)
def twentyseventh_parts_finder(faulty: bool) -> Step:
    """Screws, nuts and washers are found on a belt."""
    rows, side, classes, count = sized(16, 2), sized(512, 64), 12, sized(12, 3)
    model = PartsNet(sized(96, 16), classes).to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10_000, 0.1)
    pictures = noise(rows, 3, side, side, dtype=torch.float32).to(memory_format=torch.channels_last)
    corner = torch.rand(rows, count, 2, device=DEVICE) * (side // 8)
    extent = torch.rand(rows, count, 2, device=DEVICE) * (side // 12) + 3
    boxes, labels = torch.cat([corner, corner + extent], -1), tokens(classes, rows, count)
    target_of = heat_by_box if faulty else heat_together
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        with autocast():
            scores, extents = model(pictures)
        heat = target_of(boxes, labels, classes, side // 4)
        loss = centre_loss(scores, heat) + 0.1 * extent_loss(extents, boxes)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 35.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step


def texture_vae() -> Any:
    """The frozen encoder of a latent diffusion model."""
    from diffusers import AutoencoderKL

    wide = sized(128, 32)
    with torch.device(DEVICE):
        vae = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(wide, 2 * wide, 4 * wide, 4 * wide),
            layers_per_block=sized(2, 1),
            latent_channels=4,
        )
    return vae.to(DEVICE, HALF).requires_grad_(False).eval()


def texture_unet() -> Any:
    """The part of a latent diffusion model that is trained."""
    from diffusers import UNet2DConditionModel

    wide = sized(192, 32)
    with torch.device(DEVICE):
        unet = UNet2DConditionModel(
            sample_size=32,
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            block_out_channels=(wide, 2 * wide, 2 * wide),
            layers_per_block=sized(2, 1),
            attention_head_dim=sized(6, 2),
            cross_attention_dim=sized(768, 32),
        )
    return unet.to(DEVICE, HALF).train()


@pair(
    "frozen-encoder-run-every-step",
    "The fixed pictures of a fine-tuning set, which are not augmented, go through the frozen AutoencoderKL "
    "of diffusers in every step.",
    "The moments of all pictures are computed once before training; a step draws its latents from them.",
)
def twentyseventh_texture_painter(faulty: bool) -> Step:
    """A diffusion model learns the textures of a studio."""
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    rows, side, count = sized(16, 2), sized(256, 32), sized(128, 4)
    vae, unet = texture_vae(), texture_unet()
    optimizer = adamw(unet)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 500))
    gallery = noise(count, 3, side, side)
    captions = noise(count, sized(77, 8), sized(768, 32))
    kept = torch.cos(torch.linspace(0.01, 1.55, 1000, device=DEVICE)).to(HALF)
    moments = Tensor()
    if not faulty:
        with torch.no_grad():
            parts = [vae.encode(part).latent_dist.parameters for part in gallery.split(rows)]
        moments = torch.cat(parts)
    running = torch.zeros((), device=DEVICE)
    turn = 0

    def latents_of(chosen: slice) -> Tensor:
        with torch.no_grad():
            if faulty:
                spread = vae.encode(gallery[chosen]).latent_dist
            else:
                spread = DiagonalGaussianDistribution(moments[chosen])
            return spread.sample() * vae.config.scaling_factor

    def step() -> None:
        nonlocal turn
        first = turn * rows % count
        turn += 1
        chosen = slice(first, first + rows)
        latents = latents_of(chosen)
        times = torch.randint(0, 1000, (rows,), device=DEVICE)
        level = kept[times][:, None, None, None]
        added = torch.randn_like(latents)
        noisy = level * latents + (1 - level**2).sqrt() * added
        told = unet(noisy, times, encoder_hidden_states=captions[chosen]).sample
        loss = functional.mse_loss(told.float(), added.float())
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step


class RetinaStage(nn.Sequential):
    """Two convolutions, each normalised."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        )


class VesselNet(nn.Module):
    """A U-Net of four heights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width << height for height in range(4)]
        self.down = nn.ModuleList(
            RetinaStage(inside, outside) for inside, outside in zip([3, *sizes], sizes, strict=False)
        )
        pairs = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(inside, outside, 2, 2) for inside, outside in pairs)
        self.up = nn.ModuleList(RetinaStage(2 * outside, outside) for _, outside in pairs)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The score of every pixel."""
        skipped = []
        for height, stage in enumerate(self.down):
            x = stage(functional.max_pool2d(x, 2) if height else x)
            skipped.append(x)
        skipped.pop()
        for wider, stage in zip(self.wider, self.up, strict=True):
            x = stage(torch.cat([skipped.pop(), wider(x)], 1))
        return self.head(x)


def outline_loss(scores: Tensor, drawn: Tensor) -> Tensor:
    """Cross entropy and dice."""
    scores = scores.float()
    found = scores.sigmoid()
    common = (found * drawn).sum((1, 2, 3))
    dice = 1 - (2 * common + 1) / (found.sum((1, 2, 3)) + drawn.sum((1, 2, 3)) + 1)
    return functional.binary_cross_entropy_with_logits(scores, drawn) + dice.mean()


@pair(
    "convolutions-not-channels-last",
    "A U-Net is trained in bf16 by autocast with weights and pictures in the default layout (NCHW), so cuDNN "
    "turns the layout around its convolutions.",
    "Model and pictures in torch.channels_last.",
)
def twentyseventh_vessel_outliner(faulty: bool) -> Step:
    """The vessels of the retina are outlined."""
    torch.backends.cudnn.benchmark = True
    rows, side = sized(16, 2), sized(512, 32)
    layout = torch.contiguous_format if faulty else torch.channels_last
    model = VesselNet(sized(64, 8)).to(DEVICE, memory_format=layout)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50_000)
    pictures = noise(rows, 3, side, side, dtype=torch.float32).contiguous(memory_format=layout)
    drawn = (torch.rand(rows, 1, side, side, device=DEVICE) > 0.9).float()
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        with autocast():
            scores = model(pictures)
        loss = outline_loss(scores, drawn)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step
