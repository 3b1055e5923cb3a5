"""Generates tokens with a small language model, prompt after prompt."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
).eval()
for _ in range(16):
    model.generate(torch.randint(3, 64, (2, 8)), max_new_tokens=16, do_sample=False, pad_token_id=0)
