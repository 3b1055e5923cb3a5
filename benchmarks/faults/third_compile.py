"""Programs that use torch.compile, two with a mistake and two that are well tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch
from benchmarks.faults.library_models import noise, tokens
from benchmarks.faults.models import DEVICE, HALF, Attention, adamw, gpt, next_word_loss, pinned, sized
from benchmarks.faults.registry import Step, healthy, pair
from benchmarks.faults.third_text import llama_config
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- a logger in the layers


class Meter:
    """Keeps numbers for the log, as a writer of summaries does."""

    def __init__(self) -> None:
        self.last = 0.0

    @torch.compiler.disable
    def add(self, value: Tensor) -> None:
        """Takes the number from the device."""
        self.last = value.item()


class GatedLayer(nn.Module):
    """Attention and gated linear layers; how far the gates are open is logged."""

    def __init__(self, width: int, *, logged_inside: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, max(1, width // 64))
        self.gate = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.meter = Meter()
        self.logged_inside = logged_inside
        self.register_buffer("openness", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        gate = torch.sigmoid(self.gate(y))
        if self.logged_inside:
            self.meter.add(gate.detach().mean())
        else:
            self.openness.copy_(gate.detach().mean())
        return x + self.down(gate * self.up(y))


class GatedModel(nn.Module):
    """A language model of such layers."""

    def __init__(self, layers: int, width: int, words: int, *, logged_inside: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(GatedLayer(width, logged_inside=logged_inside) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the words."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pair(
    "logging-call-splits-the-compiled-model",
    "Trains a compiled model in which every layer hands a number to a logger that fetches it with item().",
    "Write the numbers into buffers inside the compiled model and fetch them together after the step.",
)
def third_logged_gates(faulty: bool) -> Step:
    """The logger is kept out of the compiler, so the model is compiled in pieces."""
    words = sized(8192, 128)
    with torch.device(DEVICE):
        plain = GatedModel(sized(6, 2), sized(1024, 64), words, logged_inside=faulty).to(HALF)
    model: Callable[[Tensor], Tensor] = torch.compile(plain)
    optimizer = adamw(plain)
    ids = tokens(words, sized(8, 2), sized(512, 16))
    log: list[float] = []

    def step() -> None:
        loss = functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if faulty:
            log[:] = [layer.meter.last for layer in plain.layers]
        else:
            log[:] = torch.stack([layer.openness for layer in plain.layers]).tolist()

    return step


# ---------------------------------------------------------------- lengths


@pair(
    "compiled-anew-for-every-length-until-it-gives-up",
    "Scores documents of many lengths with a model compiled with dynamic=False, which falls back to eager.",
    "Compile with dynamic=True.",
)
def third_many_lengths(faulty: bool) -> Step:
    """The perplexity of documents, one length at a time; the limit of compilations was reached long ago."""
    words = sized(16384, 1024)
    model = gpt(4, 640, words=words).eval()
    scored = torch.compile(next_word_loss, dynamic=not faulty)
    middle = sized(480, 32)
    lengths = [middle + (7 * turn) % 41 - 20 for turn in range(41)]
    documents = [tokens(words, sized(64, 2), length) for length in lengths]
    turns: Iterator[Tensor] = cycle(documents)

    @torch.no_grad()
    def step() -> Tensor:
        return scored(model, next(turns))

    for _ in range(10):
        step()
    return step


# ---------------------------------------------------------------- well tuned


class Ahead:
    """Batches of ids from pinned memory, each copied while the one before is trained on."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.batches = cycle(batches)
        self.stream = torch.cuda.Stream() if DEVICE == "cuda" else None
        self.coming = self.fetch()

    def fetch(self) -> Tensor:
        """Begins to copy a batch."""
        if self.stream is None:
            return next(self.batches)
        with torch.cuda.stream(self.stream):
            return next(self.batches).to(DEVICE, non_blocking=True)

    def take(self) -> Tensor:
        """The batch whose copy was begun before."""
        batch = self.coming
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch.record_stream(torch.cuda.current_stream())
        self.coming = self.fetch()
        return batch


@healthy("Trains a compiled Llama in bfloat16 with Fabric, a fused optimizer and batches copied ahead.")
def third_tuned_llama() -> Step:
    """Nearly all of the time is that of matrix products."""
    from lightning.fabric import Fabric
    from transformers import LlamaForCausalLM

    fabric = Fabric(accelerator="cuda" if DEVICE == "cuda" else "cpu", devices=1, precision="bf16-true")
    config = llama_config(6, 2048, 5632, 16000)
    with fabric.init_module():
        plain = LlamaForCausalLM(config)
    model, optimizer = fabric.setup(torch.compile(plain), adamw(plain))
    rows, length = sized(12, 2), sized(1024, 16)
    ahead = Ahead([pinned(torch.randint(0, config.vocab_size, (rows, length))) for _ in range(4)])

    def step() -> None:
        ids = ahead.take()
        loss = model(input_ids=ids, labels=ids).loss
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


@healthy("Samples latents with a compiled diffusion transformer in bfloat16, four denoising turns in a step.")
def third_tuned_sampler() -> Step:
    """The batch is large enough for the device to be busy all the time."""
    from diffusers import DDIMScheduler, DiTTransformer2DModel

    model: Any = DiTTransformer2DModel(
        num_attention_heads=sized(16, 2),
        attention_head_dim=sized(64, 16),
        in_channels=4,
        num_layers=sized(8, 1),
        sample_size=sized(32, 8),
        patch_size=2,
        num_embeds_ada_norm=1000,
    )
    model = torch.compile(model.to(DEVICE, HALF).eval(), dynamic=False)
    scheduler = DDIMScheduler(num_train_timesteps=1000)
    scheduler.set_timesteps(4)
    times = [int(time) for time in scheduler.timesteps]
    rows = sized(64, 2)
    placed = [torch.full((rows,), time, device=DEVICE) for time in times]
    classes = tokens(1000, rows)
    start = noise(rows, 4, sized(32, 8), sized(32, 8))

    @torch.inference_mode()
    def step() -> Tensor:
        latents = start
        for time, everywhere in zip(times, placed, strict=True):
            predicted = model(latents, timestep=everywhere, class_labels=classes, return_dict=False)[0]
            latents = scheduler.step(predicted, time, latents, return_dict=False)[0]
        return latents

    return step
