"""Training loops of several domains: text, driving, pictures and event logs."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, ResNet, adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def tagger(layers: int, width: int, labels: int) -> Any:
    """A BERT that gives every word a label."""
    from transformers import BertConfig, BertForTokenClassification

    config = BertConfig(
        vocab_size=sized(30_528, 256),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        num_labels=labels,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    return BertForTokenClassification(config).to(DEVICE)


@pair(
    "teacher-in-the-backward-pass",
    "A tagger is distilled; the teacher is only in eval mode, so backward also runs through all its layers.",
    "teacher.requires_grad_(False): its forward pass records nothing and backward ends at the student.",
)
def clause_marker(faulty: bool) -> Step:
    """Clauses of contracts are marked by a small tagger that learns from a large one."""
    labels, rows, length = sized(24, 5), sized(48, 2), sized(256, 16)
    width = sized(768, 64)
    teacher = tagger(sized(12, 2), width, labels).eval()
    student = tagger(sized(4, 1), sized(512, 64), labels)
    if not faulty:
        teacher.requires_grad_(False)
    optimizer = adamw(student, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=1000)
    ids, truth = tokens(sized(30_528, 256), rows, length), tokens(labels, rows, length)
    temperature = 2.0

    def step() -> Tensor:
        with autocast():
            taught = teacher(input_ids=ids).logits
            said = student(input_ids=ids).logits
        hard = functional.cross_entropy(said.flatten(0, 1).float(), truth.flatten())
        soft = functional.kl_div(
            functional.log_softmax(said.flatten(0, 1).float() / temperature, -1),
            functional.softmax(taught.flatten(0, 1).float() / temperature, -1),
            reduction="batchmean",
        )
        loss = 0.5 * hard + 0.5 * temperature**2 * soft
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class StreetModel(nn.Module):
    """A shared trunk with a head each for depth, classes and normals."""

    def __init__(self, sizes: list[int], depths: list[int], classes: int) -> None:
        super().__init__()
        from transformers import ConvNextConfig, ConvNextModel

        self.trunk = ConvNextModel(ConvNextConfig(hidden_sizes=sizes, depths=depths))
        self.depth = self.head(sizes[-1], 1)
        self.classes = self.head(sizes[-1], classes)
        self.normals = self.head(sizes[-1], 3)

    @staticmethod
    def head(inside: int, outside: int) -> nn.Module:
        """Four times as wide and high, with as many channels as asked for."""
        return nn.Sequential(
            nn.Conv2d(inside, 64, 3, padding=1),
            nn.GELU(),
            nn.Upsample(scale_factor=4, mode="bilinear"),
            nn.Conv2d(64, outside, 1),
        )

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Depth, scores of the classes and normals."""
        features = self.trunk(pixel_values=pictures).last_hidden_state
        return self.depth(features), self.classes(features), self.normals(features)


@pair(
    "backward-once-per-task",
    "Three losses on one trunk, each with its own backward(retain_graph=True).",
    "One backward of the sum of the losses.",
)
def kerb_perception(faulty: bool) -> Step:
    """Depth, classes and normals of street scenes are learnt together."""
    from lightning.fabric import Fabric

    classes, rows, side = sized(19, 4), sized(32, 2), sized(256, 64)
    fabric = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed" if DEVICE == "cuda" else "32-true")
    sizes = [sized(96, 8) << turn for turn in range(4)]
    plain = StreetModel(sizes, [sized(3, 1), sized(3, 1), sized(9, 1), sized(3, 1)], classes)
    plain.to(memory_format=torch.channels_last)
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=4e-4, fused=True))
    pictures = noise(rows, 3, side, side, dtype=torch.float32).to(memory_format=torch.channels_last)
    small = side // 8
    metres = noise(rows, 1, small, small, dtype=torch.float32).abs()
    truth = tokens(classes, rows, small, small)
    upright = functional.normalize(noise(rows, 3, small, small, dtype=torch.float32), dim=1)
    task_weights = {"depth": 1.0, "classes": 0.5, "normals": 2.0}

    def step() -> dict[str, Tensor]:
        depth, scores, normals = model(pictures)
        losses = {
            "depth": functional.smooth_l1_loss(depth, metres),
            "classes": functional.cross_entropy(scores, truth),
            "normals": (1 - functional.cosine_similarity(normals, upright, dim=1)).mean(),
        }
        if faulty:
            for name, loss in losses.items():
                fabric.backward(task_weights[name] * loss, retain_graph=True)
        else:
            fabric.backward(torch.stack([task_weights[name] * loss for name, loss in losses.items()]).sum())
        optimizer.step()
        optimizer.zero_grad()
        return {name: loss.detach() for name, loss in losses.items()}

    return step


@pair(
    "cuda-cache-emptied-every-step",
    "torch.cuda.empty_cache() at the end of each step of a diffusion model's training.",
    "Without it: the allocator keeps its segments from step to step.",
)
def sprite_painter(faulty: bool) -> Step:
    """A diffusion model learns to paint sprites."""
    from accelerate import Accelerator
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.optimization import get_cosine_schedule_with_warmup

    side, rows, width = sized(64, 16), sized(16, 2), sized(128, 32)
    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    unet = UNet2DModel(
        sample_size=side,
        in_channels=3,
        out_channels=3,
        layers_per_block=sized(2, 1),
        block_out_channels=(width, 2 * width, 2 * width, 4 * width),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )
    scheduler: Any = DDPMScheduler(num_train_timesteps=1000)
    optimizer: Any = torch.optim.AdamW(unet.parameters(), lr=1e-4, fused=True)
    schedule: Any = get_cosine_schedule_with_warmup(optimizer, 500, 100_000)
    model: Any
    model, optimizer, schedule = accelerator.prepare(unet, optimizer, schedule)
    sprites = noise(rows, 3, side, side, dtype=torch.float32)

    def step() -> Tensor:
        wanted = torch.randn_like(sprites)
        times = tokens(1000, rows)
        noisy = scheduler.add_noise(sprites, wanted, times)
        loss = functional.mse_loss(model(noisy, times, return_dict=False)[0], wanted)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if faulty:
            torch.cuda.empty_cache()
        return loss.detach()

    return step


def negatives_of(rows: int) -> Tensor:
    """Which pairs of the views of a batch show different things."""
    mask = torch.ones(2 * rows, 2 * rows, dtype=torch.bool, device=DEVICE)
    mask.fill_diagonal_(False)
    for row in range(rows):
        mask[row, rows + row] = False
        mask[rows + row, row] = False
    return mask


class ContrastiveLoss(nn.Module):
    """NT-Xent: both views of a picture are to be more alike than any others."""

    negatives: Tensor | None

    def __init__(self, temperature: float, rows: int | None = None) -> None:
        super().__init__()
        self.temperature = temperature
        self.register_buffer("negatives", negatives_of(rows) if rows else None, persistent=False)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """The loss of a batch of two views."""
        rows = len(left)
        both = functional.normalize(torch.cat([left, right]).float(), dim=1)
        alike = both @ both.T / self.temperature
        mask = negatives_of(rows) if self.negatives is None else self.negatives
        positive = torch.cat([alike.diagonal(rows), alike.diagonal(-rows)])[:, None]
        scores = torch.cat([positive, alike.masked_fill(~mask, -torch.inf)], 1)
        return functional.cross_entropy(scores, torch.zeros(2 * rows, dtype=torch.long, device=scores.device))


@pair(
    "mask-filled-entry-by-entry",
    "A contrastive loss builds its mask in every call, writing single entries in a Python loop.",
    "The mask is built once, when the loss is made, and kept as a buffer.",
)
def lichen_contrast(faulty: bool) -> Step:
    """Features of lichen photographs are learnt from two views of each."""
    rows = sized(256, 2)
    model = on_images(ResNet(width=sized(64, 8), blocks=sized(2, 1), classes=sized(128, 16)))
    criterion = ContrastiveLoss(0.5, None if faulty else rows)
    optimizer = adamw(model, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    first, second = images(256, 64), images(256, 64)

    def step() -> Tensor:
        left, right = model(torch.cat([first, second])).chunk(2)
        loss = criterion(left, right)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class EventLayer(nn.Module):
    """An encoder layer whose output stays within the range of its type."""

    def __init__(self, width: int, heads: int, *, checked: bool) -> None:
        super().__init__()
        self.heads = heads
        self.checked = checked
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attention over all events, then the feed-forward part."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        x = x + self.feed(self.norms[1](x))
        limit = torch.finfo(x.dtype).max - 1000
        if self.checked:
            if torch.isinf(x).any():
                x = torch.clamp(x, -limit, limit)
            return x
        return torch.clamp(x, -limit, limit)


class EventModel(nn.Module):
    """Sorts a sequence of events into faults of the machine."""

    def __init__(self, layers: int, width: int, events: int, faults: int, *, checked: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(events, width)
        self.layers = nn.ModuleList(
            EventLayer(width, max(1, width // 64), checked=checked) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, faults)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the faults."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


@pair(
    "branch-on-values-in-a-compiled-model",
    'Layers of a compiled encoder ask "if torch.isinf(x).any()", which breaks the graph and waits, in each.',
    "clamp without a question, which changes nothing where nothing is infinite: one graph.",
)
def turbine_events(faulty: bool) -> Step:
    """Faults of wind turbines are told from their event logs."""
    events, faults, width = sized(4096, 64), 32, sized(512, 64)
    with torch.device(DEVICE):
        plain = EventModel(sized(6, 2), width, events, faults, checked=faulty).to(HALF)
    model: Any = torch.compile(plain, backend="inductor" if DEVICE == "cuda" else "eager")
    optimizer = adamw(plain)
    ids, truth = tokens(events, sized(32, 2), sized(256, 16)), tokens(faults, sized(32, 2))
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        loss = functional.cross_entropy(model(ids).float(), truth)
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.05)

    return step
