"""Services: an assistant with an adapter, a search over texts and a painter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import bert, halved, llama, noise, tokenizer, tokens
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "adapter-not-merged",
    "A Llama with a LoRA adapter of peft on all its linear layers writes answers with generate().",
    "model.merge_and_unload() before serving.",
    light_steps=2,
)
def sixth_assistant(faulty: bool) -> Step:
    """Four questions are answered at a time."""
    from peft import LoraConfig, get_peft_model

    linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapter = LoraConfig(r=sized(16, 4), lora_alpha=32, target_modules=linear, task_type="CAUSAL_LM")
    model: Any = get_peft_model(llama(6, 1024), adapter).to(DEVICE, HALF)
    if not faulty:
        model = model.merge_and_unload()
    model.eval()
    prompt, count = tokens(128, sized(4, 2), sized(96, 8)), sized(16, 3)
    mask = torch.ones_like(prompt)
    answered = 0

    def step() -> Tensor:
        nonlocal answered
        with torch.inference_mode():
            found: Tensor = model.generate(
                input_ids=prompt,
                attention_mask=mask,
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
            )
        answered += len(found)
        return found[:, prompt.shape[1] :].cpu()

    return step


class PassageIndex:
    """Vectors of passages, searched by their products with those of questions."""

    def __init__(self, vectors: np.ndarray, *, resident: bool) -> None:
        self.vectors = vectors
        self.table = torch.from_numpy(vectors).to(DEVICE) if resident else None

    def search(self, questions: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The best passages of every question."""
        table = self.table
        if table is None:
            table = torch.from_numpy(self.vectors).to(questions.device)
        scores = functional.normalize(questions, dim=-1) @ table.T
        best = scores.topk(count, dim=-1)
        return best.values, best.indices


@pair(
    "index-uploaded-for-every-request",
    "The vectors of 40,000 passages, a numpy array, are put on the device inside search().",
    "They are put there once, in the constructor.",
)
def sixth_passage_search(faulty: bool) -> Step:
    """Sixteen questions are encoded and looked up."""
    width = sized(768, 64)
    encoder = bert(12, width, attn_implementation="sdpa").bert.to(HALF).eval()
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((sized(40_000, 100), width), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = PassageIndex(vectors, resident=not faulty)
    encode = tokenizer()
    questions = [" ".join(f"word{(7 * row + k) % 200}" for k in range(8 + row)) for row in range(16)]

    @torch.inference_mode()
    def step() -> list[dict[str, Any]]:
        batch = encode(questions, padding=True, return_tensors="pt", return_token_type_ids=False)
        batch = {name: value.to(DEVICE) for name, value in batch.items()}
        states = encoder(**batch).last_hidden_state
        weights = batch["attention_mask"][..., None]
        pooled = (states * weights).sum(1).float() / weights.sum(1)
        scores, places = index.search(pooled, 10)
        return [
            {"places": where, "scores": value}
            for where, value in zip(places.tolist(), scores.tolist(), strict=True)
        ]

    return step


class PainterBlock(nn.Module):
    """A transformer block that is told the moment of the diffusion."""

    def __init__(self, width: int, heads: int, *, upcast: bool) -> None:
        super().__init__()
        self.heads = heads
        self.upcast = upcast
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.modulation = nn.Linear(width, 4 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def attention(self, x: Tensor) -> Tensor:
        """Every patch looks at every other."""
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.upcast:
            parts = parts.float()
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value).to(x.dtype)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))

    def forward(self, x: Tensor, moment: Tensor) -> Tensor:
        """Attention and the feed-forward part, scaled and shifted by the moment."""
        scale, shift, scale_too, shift_too = self.modulation(functional.silu(moment))[:, None].chunk(4, -1)
        x = x + self.attention(self.norms[0](x) * (1 + scale) + shift)
        return x + self.feed(self.norms[1](x) * (1 + scale_too) + shift_too)


class Painter(nn.Module):
    """A diffusion transformer over latent patches."""

    def __init__(self, layers: int, width: int, *, upcast: bool) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.moments = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(
            PainterBlock(width, max(1, width // 64), upcast=upcast) for _ in range(layers)
        )
        self.last = nn.Linear(width, 16)

    def forward(self, x: Tensor, moment: Tensor) -> Tensor:
        """The noise in the patches."""
        told = self.moments(moment)
        x = self.first(x)
        for block in self.blocks:
            x = block(x, told)
        return self.last(x)


@pair(
    "attention-upcast-to-fp32",
    "A diffusion transformer in bf16 paints with upcast_attention: queries, keys and values become fp32.",
    "Without the upcast: the flash kernel in bf16 keeps its sums in fp32 anyway.",
)
def sixth_painter(faulty: bool) -> Step:
    """Two moments of painting eight pictures, with guidance."""
    model = halved(Painter(sized(12, 1), sized(1024, 64), upcast=faulty)).eval()
    rows, patches = sized(8, 1), sized(1024, 16)
    latents = noise(rows, patches, 16)
    moments = torch.tensor([600, 300], device=DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        x = latents
        for moment in moments:
            both = model(torch.cat([x, x]), moment.expand(2 * rows))
            free, guided = both.chunk(2)
            x = x - 0.1 * (free + 4.5 * (guided - free))
        return x

    return step
