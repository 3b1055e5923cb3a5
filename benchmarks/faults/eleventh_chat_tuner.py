"""A chat model of peft and transformers that is tuned with adapters."""

from __future__ import annotations

from benchmarks.faults.library_models import llama, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import nn, optim

ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pair(
    "adapters-in-fp32",
    "peft keeps the adapters of a bf16 model in fp32, and the loop has no autocast: what enters each layer is"
    " cast to fp32, multiplied and added there, and cast back.",
    "get_peft_model(autocast_adapter_dtype=False): the adapters are bf16 as the model is.",
)
def eleventh_chat_tuner(faulty: bool) -> Step:
    """A frozen Llama learns answers through adapters of rank 16."""
    from peft import LoraConfig, get_peft_model

    base = llama(6, 2048, words=16_384)
    config = LoraConfig(r=16, lora_alpha=32, target_modules=ADAPTED, task_type="CAUSAL_LM")
    model = get_peft_model(base, config, autocast_adapter_dtype=faulty).to(DEVICE)
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = optim.AdamW(learned, lr=2e-4, fused=True)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    conversation = tokens(sized(16_384, 128), sized(8, 2), sized(1024, 16))

    def step() -> None:
        loss = model(input_ids=conversation, labels=conversation, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step
