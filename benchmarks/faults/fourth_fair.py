"""Programs with a pattern that looks like a mistake, where mending it gains next to nothing."""

from __future__ import annotations

import tempfile
from itertools import cycle
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, bert, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional

CLASS_WEIGHTS = [1.0, 2.5, 0.5, 1.0, 4.0, 1.0, 0.8, 1.2, 3.0, 1.0]


def weighted_trainer(model: Any, *, made_in_every_step: bool) -> Any:
    """A Trainer with a loss of its own, as its page shows it: rare classes count more."""
    from transformers import Trainer, TrainingArguments

    kept = torch.tensor(CLASS_WEIGHTS, device=DEVICE)

    class WeightedTrainer(Trainer):
        """Makes the weights of the classes from a list in every step, or has them on the device."""

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Tensor:
            labels = inputs.pop("labels")
            scores = model(**inputs).logits
            weight = torch.tensor(CLASS_WEIGHTS).to(scores.device) if made_in_every_step else kept
            return functional.cross_entropy(scores.float(), labels, weight=weight)

    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        report_to=[],
        disable_tqdm=True,
        use_cpu=DEVICE == "cpu",
        bf16=DEVICE == "cuda",
        optim="adamw_torch_fused",
    )
    return WeightedTrainer(model, arguments)


@pair(
    "class-weights-copied-to-the-device-in-every-step",
    "The Trainer's loss makes the weights of ten classes from a list and copies them each time.",
    "Keep the weights on the device.",
    kind="fair",
)
def fourth_class_weights(faulty: bool) -> Step:
    """The host waits for the forward pass, then is ahead again at once: the layers are wide and few."""
    model = bert(3, 2048, attn_implementation="sdpa").train()
    trainer = weighted_trainer(model, made_in_every_step=faulty)
    trainer.create_optimizer_and_scheduler(1_000_000)
    trainer.current_gradient_accumulation_steps = 1
    run, optimizer = trainer.accelerator.prepare(model, trainer.optimizer)
    rows = sized(96, 2)
    ids, labels = tokens(200, rows, sized(256, 16)), tokens(10, rows)

    def step() -> Tensor:
        loss: Tensor = trainer.training_step(run, {"input_ids": ids, "labels": labels})
        optimizer.step()
        trainer.lr_scheduler.step()
        run.zero_grad()
        return loss

    return step


@pair(
    "batches-pinned-in-the-loop",
    "Trains a DeiT with accelerate and calls pin_memory() on every batch right before it is copied.",
    "Have the batches in pinned memory from the start (DataLoader(pin_memory=True)).",
    kind="fair",
)
def fourth_pinned_late(faulty: bool) -> Step:
    """The host pins a batch of bytes while the device is still at the one before."""
    from accelerate import Accelerator
    from transformers import DeiTConfig, DeiTForImageClassification

    accelerator = Accelerator(cpu=DEVICE == "cpu")
    side, width = sized(224, 32), sized(1024, 32)
    config = DeiTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(10, 1),
        num_attention_heads=sized(16, 2),
        image_size=side,
        num_labels=sized(1000, 10),
    )
    plain = DeiTForImageClassification(config).to(HALF)
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True))
    rows = sized(160, 2)
    stored = [torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8) for _ in range(4)]
    batches = cycle(stored if faulty else [pinned(batch) for batch in stored])
    labels = tokens(config.num_labels, rows)

    def step() -> Tensor:
        batch = pinned(next(batches)) if faulty else next(batches)
        pictures = batch.to(DEVICE, non_blocking=True).to(HALF).div_(127.5).sub_(1)
        loss: Tensor = model(pixel_values=pictures, labels=labels).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pair(
    "gradient-scaler-with-bfloat16",
    "Trains a large ViT of timm in bfloat16 with a gradient scaler, kept from the days of float16.",
    "Without the scaler: bfloat16 has the range of float32.",
    kind="fair",
)
def fourth_needless_scaler(faulty: bool) -> Step:
    """Gradients are divided and looked at once more, which is little beside the products."""
    import timm

    side = sized(224, 32)
    name = "vit_large_patch16_224" if DEVICE == "cuda" else "vit_tiny_patch16_224"
    model: Any = timm.create_model(name, img_size=side, depth=sized(8, 1), num_classes=sized(1000, 10))
    model = model.to(DEVICE).train()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler(DEVICE, enabled=faulty)
    pictures = noise(sized(160, 2), 3, side, side, dtype=torch.float32)
    labels = tokens(sized(1000, 10), len(pictures))

    def step() -> Tensor:
        with autocast():
            loss = functional.cross_entropy(model(pictures), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step
