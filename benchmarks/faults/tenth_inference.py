"""Services that answer with vectors, choices and short texts."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import halved, llama, noise, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class RootMeanSquare(nn.Module):
    """Scales every vector to the same length, in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the type of the vectors."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class PatchLayer(nn.Module):
    """Attention with rotary positions and a gated feed-forward part, each scaled by a learned vector."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(RootMeanSquare(width) for _ in range(2))
        self.head_norms = nn.ModuleList(RootMeanSquare(width // heads) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 6 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)
        self.scales = nn.ParameterList(torch.full((width,), 0.1) for _ in range(2))

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Mixes all patches of a picture."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query = turned(self.head_norms[0](query), cosine, sine)
        key = turned(self.head_norms[1](key), cosine, sine)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.scales[0] * self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.scales[1] * self.down(functional.silu(gate) * up)


class ProductTower(nn.Module):
    """Turns pictures of products into vectors, and in training into classes."""

    def __init__(self, layers: int, width: int, side: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.layers = nn.ModuleList(PatchLayer(width, heads) for _ in range(layers))
        self.norm = RootMeanSquare(width)
        self.vector = nn.Linear(width, 256, bias=False)
        self.classes = nn.Linear(256, 1000)
        places = torch.arange((side // 16) ** 2)[:, None]
        angles = places / 100 ** torch.linspace(0, 1, width // heads // 2)
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def embed(self, pictures: Tensor) -> Tensor:
        """Vectors of length one."""
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return functional.normalize(self.vector(self.norm(x).mean(1)), dim=-1)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.classes(self.embed(pictures))


@pair(
    "what-is-called-is-not-compiled",
    "A search by picture turns products into vectors with a model that went through torch.compile.",
    "torch.compile is given the method that the service calls, embed(), instead of the module.",
)
def tenth_product_search(faulty: bool) -> Step:
    """Pictures are compared with a catalogue by their vectors."""
    rows, side = sized(256, 2), sized(224, 32)
    tower = halved(ProductTower(sized(4, 1), sized(768, 64), side)).eval()
    catalogue = functional.normalize(noise(sized(100_000, 64), 256), dim=-1)
    pictures = noise(rows, 3, side, side)
    if faulty:
        tower = torch.compile(tower)
    else:
        tower.embed = torch.compile(tower.embed)

    @torch.inference_mode()
    def step() -> Tensor:
        vectors = tower.embed(pictures)
        return (vectors @ catalogue.T).topk(10).indices

    return step


@pair(
    "logits-nobody-reads",
    "A Llama with a vocabulary of 128 000 answers questions of four choices by the score of one letter.",
    "logits_to_keep=1.",
)
def tenth_choice_scoring(faulty: bool) -> Step:
    """Sixteen questions with their texts are answered at once."""
    model = llama(6, 1024, words=128_000).eval()
    rows, length = sized(16, 2), sized(1024, 16)
    questions = tokens(128, rows, length)
    mask = torch.ones_like(questions)
    letters = torch.tensor([32, 33, 34, 35], device=DEVICE)
    answers = tokens(4, rows)
    right = torch.zeros((), device=DEVICE)
    options: dict[str, Any] = {} if faulty else {"logits_to_keep": 1}

    @torch.inference_mode()
    def step() -> None:
        scores = model(input_ids=questions, attention_mask=mask, use_cache=False, **options).logits
        chosen = scores[:, -1, letters].float().log_softmax(-1).argmax(-1)
        right.add_((chosen == answers).sum())

    return step


@pair(
    "adapters-not-merged",
    "A Llama with an adapter of peft writes answers about contracts with generate().",
    "merge_and_unload() before serving.",
    light_steps=2,
)
def tenth_contract_assistant(faulty: bool) -> Step:
    """Answers of twelve words to four questions."""
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(
        r=sized(16, 4), lora_alpha=32, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = get_peft_model(llama(8, 1024), adapter)
    if not faulty:
        model = model.merge_and_unload()
    model.eval()
    questions = tokens(128, sized(4, 2), sized(256, 8))
    mask = torch.ones_like(questions)
    count = sized(12, 3)

    def step() -> Tensor:
        written: Tensor = model.generate(
            input_ids=questions,
            attention_mask=mask,
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
        )
        return written

    return step
