"""Training scripts: grains on a belt, patients walking and the tides."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def to_device(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A pinned batch on its way to the device."""
    return {name: value.to(DEVICE, non_blocking=True) for name, value in batch.items()}


class BeltCameras:
    """Photographs of grains with the grade that an inspector gave them, as loaded by the workers."""

    def __init__(self, batches: int, rows: int, side: int, grades: int) -> None:
        made = torch.Generator().manual_seed(3)
        self.batches = [
            {
                "photos": pinned(torch.randint(0, 256, (rows, 3, side, side), generator=made).byte()),
                "grades": pinned(torch.randint(0, grades, (rows,), generator=made)),
            }
            for _ in range(batches)
        ]

    def __iter__(self) -> Any:
        return itertools.cycle(self.batches)


def normalised(photos: Tensor) -> Tensor:
    """Bytes to numbers around zero."""
    return photos.float().div_(127.5).sub_(1.0)


@pair(
    "training-in-full-fp32",
    "A ViT is trained under Lightning Fabric whose precision was never chosen: all products are in fp32.",
    'Fabric(precision="bf16-mixed").',
)
def nineteenth_grain_inspector(faulty: bool) -> Step:
    """Grains of wheat are graded on a belt."""
    from lightning.fabric import Fabric
    from transformers import ViTConfig, ViTForImageClassification

    side, rows, grades = sized(224, 32), sized(96, 2), 12
    width = sized(384, 32)
    config = ViTConfig(
        image_size=side,
        patch_size=16,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(6, 2),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=grades,
        attn_implementation="sdpa",
    )
    options: dict[str, Any] = {} if faulty else {"precision": "bf16-mixed"}
    fabric = Fabric(accelerator="cuda" if DEVICE == "cuda" else "cpu", devices=1, **options)
    plain = ViTForImageClassification(config).to(DEVICE)
    model, optimizer = fabric.setup(plain, adamw(plain, weight_decay=0.05))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    correct = torch.zeros((), device=DEVICE)
    belt = iter(BeltCameras(3, rows, side, grades))

    def step() -> Tensor:
        batch = to_device(next(belt))
        scores = model(pixel_values=normalised(batch["photos"])).logits
        loss = criterion(scores, batch["grades"])
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        correct.add_((scores.detach().argmax(-1) == batch["grades"]).sum())
        return loss.detach()

    return step


@pair(
    "allocator-cache-emptied-every-step",
    "VideoMAE is trained with accelerate; clear_device_cache() follows every step, against fragmentation.",
    "The call is dropped: the allocator keeps its memory from step to step.",
)
def nineteenth_gait_clinic(faulty: bool) -> Step:
    """Videos of walking patients are sorted by what ails them."""
    from accelerate import Accelerator
    from accelerate.utils.memory import clear_device_cache
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    side, frames, rows, width = sized(192, 32), sized(16, 2), sized(16, 2), sized(512, 32)
    config = VideoMAEConfig(
        image_size=side,
        num_frames=frames,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(8, 1),
        num_attention_heads=sized(8, 2),
        num_labels=6,
        attn_implementation="sdpa",
    )
    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    plain = VideoMAEForVideoClassification(config).to(DEVICE)
    model, optimizer = accelerator.prepare(plain, adamw(plain, weight_decay=0.05))
    made = torch.Generator().manual_seed(5)
    clips = [
        {
            "frames": pinned(torch.randint(0, 256, (rows, frames, 3, side, side), generator=made).byte()),
            "labels": pinned(torch.randint(0, 6, (rows,), generator=made)),
        }
        for _ in range(2)
    ]
    queue = itertools.cycle(clips)
    running = torch.zeros((), device=DEVICE)

    def train(batch: dict[str, Tensor]) -> Tensor:
        with accelerator.autocast():
            loss = model(pixel_values=normalised(batch["frames"]), labels=batch["labels"]).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def step() -> Tensor:
        loss = train(to_device(next(queue)))
        running.lerp_(loss, 0.02)
        if faulty:
            clear_device_cache()
        return loss

    return step


class Lamb(torch.optim.Optimizer):
    """LAMB: the step of Adam, scaled for each tensor by the ratio of its norm to that of the step."""

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, decay: float = 0.01, *, joined: bool
    ) -> None:
        super().__init__(params, {"lr": lr, "decay": decay, "betas": (0.9, 0.999), "eps": 1e-6})
        self.joined = joined

    def moments_of(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """The two running means of a parameter."""
        state = self.state[p]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
        return state["mean"], state["square"]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One update of all parameters."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if self.joined:
                self.update_all(group, params)
                continue
            for p in params:
                self.update_one(group, p)

    def update_one(self, group: dict[str, Any], p: Tensor) -> None:
        """The paper, line by line."""
        mean, square = self.moments_of(p)
        first, second = group["betas"]
        mean.mul_(first).add_(p.grad, alpha=1 - first)
        square.mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
        update = mean / square.sqrt().add_(group["eps"])
        update.add_(p, alpha=group["decay"])
        weight_norm = p.norm().clamp(max=10.0)
        update_norm = update.norm()
        if weight_norm > 0 and update_norm > 0:
            trust = (weight_norm / update_norm).item()
        else:
            trust = 1.0
        p.add_(update, alpha=-group["lr"] * trust)

    def update_all(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """The same for all tensors at once, with the ratios kept on the device."""
        first, second = group["betas"]
        grads = [p.grad for p in params]
        means, squares = map(list, zip(*(self.moments_of(p) for p in params), strict=True))
        torch._foreach_lerp_(means, grads, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, grads, grads, 1 - second)
        roots = torch._foreach_sqrt(squares)  # noqa: SLF001
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, roots)  # noqa: SLF001
        torch._foreach_add_(updates, params, alpha=group["decay"])
        weights = torch.stack(torch._foreach_norm(params)).clamp(max=10.0)  # noqa: SLF001
        steps = torch.stack(torch._foreach_norm(updates))  # noqa: SLF001
        trust = torch.where((weights > 0) & (steps > 0), weights / steps, 1.0)
        torch._foreach_mul_(updates, list((trust * -group["lr"]).unbind()))
        torch._foreach_add_(params, updates)


class TideModel(nn.Module):
    """A transformer over a month of levels at several harbours."""

    def __init__(self, harbours: int, width: int, layers: int, hours: int, ahead: int) -> None:
        super().__init__()
        self.inlet = nn.Linear(harbours, width)
        self.places = nn.Parameter(torch.randn(hours, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.outlet = nn.Linear(width, harbours * ahead)
        self.ahead = ahead

    def forward(self, levels: Tensor) -> Tensor:
        """The levels of the coming hours."""
        x = self.encoder(self.inlet(levels) + self.places)
        return self.outlet(x[:, -1]).unflatten(-1, (self.ahead, -1))


@pair(
    "optimizer-branches-on-the-host-for-every-parameter",
    "A tide model is trained with a LAMB from a gist: tensor after tensor, its trust ratio read by Python.",
    "LAMB with foreach operations, the trust ratios by torch.where on the device.",
)
def nineteenth_tide_oracle(faulty: bool) -> Step:
    """Tides of ten harbours are forecast for a day."""
    harbours, hours, ahead, rows = 10, sized(336, 24), sized(24, 4), sized(64, 2)
    model = TideModel(harbours, sized(384, 32), sized(8, 1), hours, ahead).to(DEVICE)
    optimizer = Lamb(model.parameters(), 2e-3, joined=not faulty)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=100_000, cycle_momentum=False)
    year = torch.randn(sized(20_000, 200), harbours, device=DEVICE)
    offsets = torch.arange(hours + ahead, device=DEVICE)
    error = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        starts = torch.randint(0, len(year) - hours - ahead, (rows, 1), device=DEVICE)
        windows = year[starts + offsets]
        past, future = windows[:, :hours], windows[:, hours:]
        with autocast():
            forecast = model(past)
        loss = functional.huber_loss(forecast.float(), future)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        error.lerp_((forecast.detach() - future).abs().mean(), 0.02)
        return loss.detach()

    return step
