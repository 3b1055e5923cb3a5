"""Pictures drawn after a text, by a small diffusion transformer and CLIP's text model."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import halved, noise, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

TEXT_WIDTH = 768


class Layer(nn.Module):
    """Patches look at each other, then at the text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv = nn.Linear(width, 3 * width)
        self.query = nn.Linear(width, width)
        self.text = nn.Linear(sized(TEXT_WIDTH, 64), 2 * width)
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention over heads."""
        parts = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (query, key, value)]
        return functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """As many patches as came in."""
        x = x + self.outs[0](self.mixed(*self.qkv(self.norms[0](x)).chunk(3, -1)))
        x = x + self.outs[1](self.mixed(self.query(self.norms[1](x)), *self.text(text).chunk(2, -1)))
        return x + self.inner(self.norms[2](x))


class Painter(nn.Module):
    """Tells the noise in patches of a picture."""

    def __init__(self, width: int, layers: int, places: int) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.place = nn.Parameter(0.02 * torch.randn(places, width))
        self.time = nn.Linear(1, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.last = nn.Linear(width, 16)

    def forward(self, patches: Tensor, moment: Tensor, text: Tensor) -> Tensor:
        """The noise of each patch."""
        x = self.first(patches) + self.place + self.time(moment.view(-1, 1, 1))
        for layer in self.layers:
            x = layer(x, text)
        return self.last(x)


def text_model() -> Any:
    """CLIP's text model with random weights."""
    from transformers import CLIPTextConfig, CLIPTextModel

    width = sized(TEXT_WIDTH, 64)
    config = CLIPTextConfig(
        vocab_size=sized(49_408, 128),
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=max(1, width // 64),
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=1,
    )
    return halved(CLIPTextModel(config)).eval()


@pair(
    "text-encoded-again-in-every-turn",
    "The text is encoded inside the loop of denoising, although it does not change.",
    "It is encoded once, before the loop.",
    light_steps=2,
)
def eleventh_banner_painter(faulty: bool) -> Step:
    """Four banners are drawn in sixteen turns, guided by their texts."""
    turns, rows, places = sized(16, 2), sized(4, 1), sized(1024, 8)
    encoder = text_model()
    painter = halved(Painter(sized(768, 64), sized(8, 1), places)).eval()
    words = tokens(sized(40_000, 100), 2 * rows, sized(77, 8))
    moments = torch.linspace(1, 0, turns + 1, device=DEVICE).to(painter.first.weight.dtype)

    def encoded() -> Tensor:
        hidden: Tensor = encoder(input_ids=words).last_hidden_state
        return hidden

    @torch.inference_mode()
    def step() -> Tensor:
        picture = noise(rows, places, 16)
        text = encoded()
        for turn in range(turns):
            if faulty and turn > 0:
                text = encoded()
            moment = moments[turn].expand(2 * rows)
            guided, free = painter(picture.repeat(2, 1, 1), moment, text).chunk(2)
            guess = free + 5.0 * (guided - free)
            picture = picture + (moments[turn + 1] - moments[turn]) * guess
        return picture

    return step
