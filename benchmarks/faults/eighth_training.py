"""Training loops of several fields, with what people leave in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, llama, noise, tokens
from benchmarks.faults.models import DEVICE, Residual, adamw, gpt, on_images, sized, words
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- super-resolution


class Enlarger(nn.Module):
    """Residual blocks, then twice the size."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*(Residual(width) for _ in range(blocks)))
        self.up = nn.Conv2d(width, 4 * 3, 3, padding=1)

    def forward(self, small: Tensor) -> Tensor:
        """Images of twice the size."""
        x = torch.relu(self.first(small))
        return functional.pixel_shuffle(self.up(x + self.body(x)), 2)


def judge(width: int) -> nn.Module:
    """Tells real images from made ones."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 1),
    )


@pair(
    "backward-through-the-generator-for-the-discriminator",
    "A GAN for super-resolution: the discriminator's loss is taken of D(fake), not of D(fake.detach()), and"
    " goes backward with retain_graph=True, through the whole generator.",
    "D(fake.detach()), and no retain_graph.",
)
def eighth_super_resolution(faulty: bool) -> Step:
    """A generator and a discriminator learn in turn."""
    rows, side = sized(96, 2), sized(64, 8)
    generator = on_images(Enlarger(sized(64, 8), sized(8, 1)), dtype=torch.float32)
    discriminator = on_images(judge(sized(64, 8)), dtype=torch.float32)
    generator_optimizer, discriminator_optimizer = adamw(generator), adamw(discriminator)
    small = noise(rows, 3, side, side, dtype=torch.float32).to(memory_format=torch.channels_last)
    large = noise(rows, 3, 2 * side, 2 * side, dtype=torch.float32).to(memory_format=torch.channels_last)
    real, made = torch.ones(rows, 1, device=DEVICE), torch.zeros(rows, 1, device=DEVICE)
    told = functional.binary_cross_entropy_with_logits

    def step() -> None:
        with autocast():
            fake = generator(small)

        # the discriminator
        discriminator_optimizer.zero_grad()
        with autocast():
            on_real = discriminator(large)
            on_fake = discriminator(fake if faulty else fake.detach())
        judged = (told(on_real.float(), real) + told(on_fake.float(), made)) / 2
        judged.backward(retain_graph=faulty)
        discriminator_optimizer.step()

        # the generator
        generator_optimizer.zero_grad()
        discriminator.requires_grad_(False)
        with autocast():
            on_fake = discriminator(fake)
        loss = functional.l1_loss(fake.float(), large) + 1e-3 * told(on_fake.float(), real)
        loss.backward()
        generator_optimizer.step()
        discriminator.requires_grad_(True)

    return step


# ---------------------------------------------------------------- smoothed labels


class LabelSmoothing(nn.Module):
    """The wanted distribution of every position is written out, as in a well-known tutorial."""

    def __init__(self, size: int, padding: int, smoothing: float = 0.1) -> None:
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="sum")
        self.size = size
        self.padding = padding
        self.smoothing = smoothing

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """The divergence of what is told from what is wanted."""
        told = scores.log_softmax(-1)
        wanted = told.detach().clone()
        wanted.fill_(self.smoothing / (self.size - 2))
        wanted.scatter_(1, target.unsqueeze(1), 1 - self.smoothing)
        wanted[:, self.padding] = 0
        wanted.masked_fill_((target == self.padding).unsqueeze(1), 0.0)
        return self.criterion(told, wanted)


@pair(
    "smoothed-labels-written-out",
    "A language model is trained with a hand-written LabelSmoothing: a distribution over 50 thousand words is"
    " written for every position and given to KLDivLoss.",
    "nn.CrossEntropyLoss(label_smoothing=0.1).",
)
def eighth_smoothed_labels(faulty: bool) -> Step:
    """A small language model with a large vocabulary."""
    count = sized(50_304, 128)
    model = gpt(3, 768, words=count)
    optimizer = adamw(model)
    batch = words(16, 513, count)
    inside, target = batch[:, :-1].contiguous(), batch[:, 1:].flatten()
    if faulty:
        criterion: nn.Module = LabelSmoothing(count, padding=0)
    else:
        criterion = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=0, reduction="sum")
    positions = target.numel()

    def step() -> None:
        scores = model(inside).flatten(0, 1).float()
        loss = criterion(scores, target) / positions
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- an optimizer of one's own


class Lion(torch.optim.Optimizer):
    """The Lion optimizer, as it is passed around."""

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Moves every parameter by the sign of its momentum."""
        for group in self.param_groups:
            lr, decay, (first, second) = group["lr"], group["weight_decay"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad, self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                p.mul_(1 - lr * decay)
                update = exp_avg.clone().mul_(first).add_(grad, alpha=1 - first).sign_()
                p.add_(update, alpha=-lr)
                exp_avg.mul_(second).add_(grad, alpha=1 - second)


class ForeachLion(Lion):
    """The same, all parameters at once."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Moves all parameters by the signs of their momenta."""
        for group in self.param_groups:
            lr, decay, (first, second) = group["lr"], group["weight_decay"], group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            averages = [self.state[p]["exp_avg"] for p in params]
            torch._foreach_mul_(params, 1 - lr * decay)
            updates = torch._foreach_mul(averages, first)  # noqa: SLF001
            torch._foreach_add_(updates, grads, alpha=1 - first)
            updates = torch._foreach_sign(updates)  # noqa: SLF001
            torch._foreach_add_(params, updates, alpha=-lr)
            torch._foreach_mul_(averages, second)
            torch._foreach_add_(averages, grads, alpha=1 - second)


@pair(
    "optimizer-in-a-python-loop",
    "A ViT is fine-tuned with a Lion copied from the internet, which goes over the parameters one by one.",
    "The same Lion with torch._foreach operations.",
)
def eighth_lion(faulty: bool) -> Step:
    """A small vision transformer learns to sort images."""
    from transformers import ViTConfig, ViTForImageClassification

    width, rows, side = sized(384, 32), sized(64, 2), sized(224, 32)
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=sized(10, 1),
        num_attention_heads=sized(6, 2),
        intermediate_size=4 * width,
        image_size=side,
        patch_size=16,
        num_labels=100,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    model: Any = ViTForImageClassification(config).to(DEVICE).train()
    optimizer = (Lion if faulty else ForeachLion)(model.parameters())
    pictures, labels = noise(rows, 3, side, side, dtype=torch.float32), tokens(100, rows)

    def step() -> None:
        with autocast():
            loss = model(pixel_values=pictures, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- time series


class Forecaster(nn.Module):
    """A recurrent network that tells mean and spread of the next value."""

    def __init__(self, inside: int, width: int, *, by_step: bool) -> None:
        super().__init__()
        self.by_step = by_step
        self.lstm = nn.LSTM(inside, width, num_layers=2, batch_first=True)
        self.mean = nn.Linear(width, 1)
        self.spread = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of every moment."""
        if self.by_step:
            state, outputs = None, []
            for moment in range(x.shape[1]):
                output, state = self.lstm(x[:, moment : moment + 1], state)
                outputs.append(output)
            hidden = torch.cat(outputs, 1)
        else:
            hidden, _ = self.lstm(x)
        return self.mean(hidden).squeeze(-1), functional.softplus(self.spread(hidden)).squeeze(-1) + 1e-4


@pair(
    "lstm-called-for-every-moment",
    "A DeepAR-like forecaster is trained with the true values, yet calls its nn.LSTM for one moment after the"
    " other in a Python loop.",
    "nn.LSTM is called once with the whole series.",
)
def eighth_forecaster(faulty: bool) -> Step:
    """A forecaster of many series learns from windows of their past."""
    rows, length, extra = sized(512, 4), sized(48, 6), 7
    model = Forecaster(1 + extra, sized(128, 8), by_step=faulty).to(DEVICE)
    optimizer = adamw(model)
    series = noise(rows, length + 1, dtype=torch.float32)
    known = noise(rows, length, extra, dtype=torch.float32)

    def step() -> None:
        mean, spread = model(torch.cat([series[:, :-1, None], known], -1))
        loss = functional.gaussian_nll_loss(mean, series[:, 1:], spread.square())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- a tidy memory


@pair(
    "cache-emptied-every-step",
    "A Llama is fine-tuned with accelerate; torch.cuda.empty_cache() ends every step, left from a hunt for"
    " an out-of-memory error.",
    "Without torch.cuda.empty_cache().",
)
def eighth_tidy_finetuning(faulty: bool) -> Step:
    """A language model is tuned; memory is plenty."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    model = llama(4, 1024).float().train()
    optimizer = adamw(model)
    model, optimizer = accelerator.prepare(model, optimizer)
    ids = tokens(128, sized(8, 2), sized(1024, 16))

    def step() -> None:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if faulty:
            torch.cuda.empty_cache()

    return step
