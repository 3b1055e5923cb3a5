"""Models that are fine-tuned: one writes recipes, one knows moths and one learns from novels."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import llama, noise, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn


@pair(
    "batch-cut-into-crumbs",
    "The batch of sixteen is run as four pieces of four whose gradients are added up, a setting copied from a"
    " small card: each piece is too small to keep the device busy, and all sixteen fit many times over.",
    "Run the sixteen rows as one batch, with gradient_accumulation_steps=1.",
)
def eighteenth_recipe_writer(faulty: bool) -> Step:
    """A language model is fine-tuned on recipes with accelerate."""
    from accelerate import Accelerator

    pieces = 4 if faulty else 1
    rows, length = sized(16, 4), sized(256, 16)
    accelerator = Accelerator(cpu=DEVICE == "cpu", gradient_accumulation_steps=pieces)
    model = llama(10, 768).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    recipes = tokens(sized(8192, 128), rows, length)

    def step() -> Tensor:
        losses = []
        for piece in recipes.chunk(pieces):
            with accelerator.accumulate(model):
                loss = model(input_ids=piece, labels=piece, use_cache=False).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    return step


def depth_of(name: str, layers: int) -> int:
    """Which layer a parameter belongs to, counted from the head of the model down."""
    if "classifier" in name:
        return 0
    if "layer." in name or "layers." in name:
        found = [part for part in name.split(".") if part.isdigit()]
        return layers - int(found[0])
    return 0 if "layernorm" in name else layers + 1


def layered(model: nn.Module, layers: int, *, each: bool) -> list[dict[str, Any]]:
    """Groups of parameters whose rate of learning falls with the depth, and no decay for norms and biases."""
    groups: dict[Any, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        depth, decay = depth_of(name, layers), 0.05 if parameter.dim() > 1 else 0.0
        key = name if each else (depth, decay)
        fresh: dict[str, Any] = {"params": [], "lr": 1e-4 * 0.9**depth, "weight_decay": decay}
        groups.setdefault(key, fresh)["params"].append(parameter)
    return list(groups.values())


@pair(
    "group-for-each-parameter",
    "The rate of learning falls from layer to layer, and each parameter has been given a group of its own for"
    " it: the optimizer runs its kernel, and all the Python before it, four hundred times in each step.",
    "Put the parameters that share a rate and a decay into one group: two groups for each layer.",
)
def eighteenth_moth_classifier(faulty: bool) -> Step:
    """A vision transformer is fine-tuned to tell moths apart."""
    from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup

    layers, width, side = sized(24, 2), sized(512, 64), sized(224, 32)
    config = ViTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        image_size=side,
        patch_size=16,
        num_labels=sized(500, 10),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = ViTForImageClassification(config).to(DEVICE).train()
    optimizer = torch.optim.AdamW(layered(model, layers, each=faulty), fused=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, 10, 100_000)
    rows = sized(16, 2)
    moths = noise(rows, 3, side, side, dtype=torch.float32)
    labels = torch.randint(0, sized(500, 10), (rows,), device=DEVICE)

    def step() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            loss = model(pixel_values=moths, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pair(
    "precision-left-at-its-default",
    "Fabric is made without a precision, so the model learns in float32: TF32 is allowed, but bf16 would"
    " still double the speed of the products and halve what attention and the head read and write.",
    "Make it with Fabric(precision='bf16-mixed').",
)
def eighteenth_novel_trainer(faulty: bool) -> Step:
    """A GPT-2 learns from novels with Lightning Fabric."""
    from lightning.fabric import Fabric
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_float32_matmul_precision("high")  # Lightning asks for it when it starts
    where = "gpu" if DEVICE == "cuda" else "cpu"
    if faulty:
        fabric = Fabric(accelerator=where, devices=1)
    else:
        fabric = Fabric(accelerator=where, devices=1, precision="bf16-mixed")
    known, rows, length = sized(16_384, 128), sized(16, 2), sized(512, 16)
    config = GPT2Config(
        vocab_size=known,
        n_positions=sized(1024, 32),
        n_embd=sized(1280, 64),
        n_layer=sized(8, 1),
        n_head=sized(20, 1),
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    network = GPT2LMHeadModel(config)
    network.train()
    model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=1e-4, foreach=True))
    chapters = [tokens(known, rows, length) for _ in range(4)]
    seen = 0

    def step() -> Tensor:
        nonlocal seen
        chapter = chapters[seen % 4]
        seen += 1
        loss = model(input_ids=chapter, labels=chapter, use_cache=False).loss
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
