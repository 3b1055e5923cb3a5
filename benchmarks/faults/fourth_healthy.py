"""Programs that are well written: an expert would find little to gain in them."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import noise, tokens, training
from benchmarks.faults.models import DEVICE, HALF, adamw, pinned, sized
from benchmarks.faults.registry import Step, healthy
from benchmarks.faults.third_compile import Ahead
from benchmarks.faults.third_text import llama_config
from torch import Tensor, nn
from torch.nn import functional


@healthy("Tunes adapters of peft on a wide compiled Llama in bfloat16, with a large batch.")
def fourth_tuned_adapters() -> Step:
    """Only the adapters have gradients; nearly all of the time is that of matrix products."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    config = llama_config(5, 4096, 11008, 32000)
    with torch.device(DEVICE):
        base = LlamaForCausalLM(config).to(HALF)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted: Any = get_peft_model(base, LoraConfig(r=64, lora_alpha=64, target_modules=targets))
    adapted = adapted.to(DEVICE, HALF).train()
    trained = [one for one in adapted.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    model = torch.compile(adapted)
    ids = tokens(config.vocab_size, sized(6, 2), sized(1024, 16))
    return training(adapted, lambda: model(input_ids=ids, labels=ids).loss, optimizer)


@healthy(
    "A compiled ViT of timm in bfloat16 turns batches of bytes into vectors; the next is copied meanwhile."
)
def fourth_tuned_vectors() -> Step:
    """Inference in large batches; what is found stays on the device."""
    import timm

    side = sized(224, 32)
    name = "vit_large_patch16_224" if DEVICE == "cuda" else "vit_tiny_patch16_224"
    plain: Any = timm.create_model(name, img_size=side, depth=sized(12, 1), num_classes=0)
    plain = plain.to(DEVICE, HALF).eval()

    @torch.compile
    def vectors(pictures: Tensor) -> Tensor:
        found: Tensor = plain(pictures.to(HALF) / 127.5 - 1)
        return functional.normalize(found.float(), dim=-1)

    rows = sized(256, 2)
    stored = [torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8) for _ in range(3)]
    ahead = Ahead([pinned(batch) for batch in stored])

    @torch.inference_mode()
    def step() -> Tensor:
        return vectors(ahead.take())

    return step


@healthy("A wide LSTM of cuDNN learns to foretell many series at once in bfloat16.")
def fourth_tuned_forecast() -> Step:
    """One call runs all moments of both layers, each a large product."""
    width = sized(2048, 16)
    rows, moments, channels = sized(2048, 4), sized(48, 6), sized(64, 3)
    with torch.device(DEVICE):
        memory = nn.LSTM(channels, width, num_layers=2, batch_first=True)
        head = nn.Linear(width, channels)
    model = nn.ModuleList([memory, head]).to(HALF)
    memory.flatten_parameters()
    series = noise(rows, moments + 1, channels)

    def loss() -> Tensor:
        states, _ = memory(series[:, :-1])
        return functional.mse_loss(head(states).float(), series[:, 1:].float())

    return training(model, loss, adamw(model))
