"""Programs on real libraries that show a familiar pattern which costs them nothing, and healthy ones."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_diffusion import unet
from benchmarks.faults.library_models import halved, llama, noise, tokens, training
from benchmarks.faults.library_vision import made
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "attention-by-matrix-products",
    'A very wide Llama is trained with attn_implementation="eager" over 32 positions.',
    'attn_implementation="sdpa".',
    kind="fair",
)
def library_fair_eager_attention(faulty: bool) -> Step:
    """The scores are tiny beside the linear layers."""
    model = llama(2, 4096, attention="eager" if faulty else "sdpa")
    ids = tokens(128, sized(512, 2), sized(32, 8))
    return training(model, lambda: model(input_ids=ids, labels=ids).loss)


@pair(
    "loss-read-in-every-step",
    "Accelerate trains a wide Llama and shows loss.item() in every step.",
    "The loss is added up on the device.",
    kind="fair",
)
def library_fair_loss_read(faulty: bool) -> Step:
    """One wait in a step that the device spends in long products."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=DEVICE == "cpu")
    model = llama(3, 4096)
    model, optimizer = accelerator.prepare(model, adamw(model))
    ids = tokens(128, sized(8, 2), sized(1024, 8))
    total = torch.zeros((), device=DEVICE)
    shown: list[float] = []

    def step() -> None:
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if faulty:
            shown[:] = [loss.item()]
        else:
            total.add_(loss.detach())

    return step


@pair(
    "two-calls-in-place-of-one",
    "Guidance calls a large U-Net twice, each time with a batch of sixteen large latents.",
    "One call takes both as one batch.",
    kind="fair",
)
def library_fair_guidance(faulty: bool) -> Step:
    """Either way the device is full."""
    model = halved(unet(512)).eval()
    rows = sized(16, 1)
    x, text = noise(rows, 4, sized(64, 8), sized(64, 8)), noise(2 * rows, 77, sized(512, 32))

    def step() -> None:
        with torch.no_grad():
            if faulty:
                both: Any = [model(x, 500, part).sample for part in text.chunk(2)]
            else:
                both = model(torch.cat([x, x]), 500, text).sample.chunk(2)
            both[0].lerp_(both[1], 7.5)

    return step


@pair(
    "loader-without-workers",
    "A wide Llama gets its batches from DataLoader(num_workers=0), which only looks rows up.",
    "Workers and pinned memory.",
    kind="fair",
)
def library_fair_loader(faulty: bool) -> Step:
    """The batch is ready long before the device is."""
    model, rows = llama(3, 4096), sized(16, 2)
    texts = torch.utils.data.TensorDataset(torch.randint(0, 128, (1000, sized(512, 8))))
    endless = torch.utils.data.RandomSampler(texts, replacement=True, num_samples=10_000_000)
    ahead: dict[str, Any] = {"num_workers": 4, "persistent_workers": True, "pin_memory": DEVICE == "cuda"}
    loader = torch.utils.data.DataLoader(texts, batch_size=rows, sampler=endless, **({} if faulty else ahead))
    batches = iter(loader)

    def loss() -> Tensor:
        ids = next(batches)[0].to(DEVICE, non_blocking=True)
        found: Tensor = model(input_ids=ids, labels=ids).loss
        return found

    return training(model, loss)


# ---------------------------------------------------------------- healthy


@healthy("A wide Llama is trained in bf16 with fused attention and a fused optimizer.")
def library_healthy_llama() -> Step:
    """Long products; launches run far ahead."""
    model = llama(3, 4096)
    ids = tokens(128, sized(8, 2), sized(2048, 8))
    return training(model, lambda: model(input_ids=ids, labels=ids).loss)


@healthy("A large ViT of timm is trained in bf16 with a large batch.")
def library_healthy_vit() -> Step:
    """The device is busy with products."""
    model = halved(made("vit_large_patch16_224", "vit_tiny_patch16_224", num_classes=1000, depth=sized(5, 1)))
    pictures, labels = noise(sized(128, 2), 3, 224, 224), tokens(1000, sized(128, 2))
    return training(model, lambda: functional.cross_entropy(model(pictures).float(), labels))


@healthy("A DiT of diffusers takes noise away from a large batch in bf16.")
def library_healthy_dit() -> Step:
    """Eager inference that the device leads."""
    from diffusers import DiTTransformer2DModel

    model = halved(
        DiTTransformer2DModel(
            num_attention_heads=sized(16, 2),
            attention_head_dim=sized(72, 16),
            num_layers=sized(6, 1),
            sample_size=sized(32, 8),
            out_channels=4,
        )
    ).eval()
    rows = sized(128, 1)
    x, times, kinds = noise(rows, 4, sized(32, 8), sized(32, 8)), tokens(1000, rows), tokens(1000, rows)

    def step() -> None:
        with torch.no_grad():
            model(x, timestep=times, class_labels=kinds)

    return step


@healthy("A mixture of experts is trained with grouped products, fused attention and fused updates.")
def library_healthy_experts() -> Step:
    """Few, long kernels in place of a loop over experts."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=sized(8192, 128),
        hidden_size=sized(2048, 64),
        moe_intermediate_size=sized(2048, 64),
        num_hidden_layers=sized(3, 1),
        num_attention_heads=sized(32, 2),
        num_key_value_heads=sized(8, 1),
        head_dim=sized(64, 32),
        num_experts=8,
        num_experts_per_tok=2,
        attn_implementation="sdpa",
        experts_implementation="grouped_mm",
    )
    model: nn.Module = halved(Qwen3MoeForCausalLM(config))
    ids = tokens(128, sized(16, 2), sized(1024, 16))
    return training(model, lambda: model(input_ids=ids, labels=ids).loss)
