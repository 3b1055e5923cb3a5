"""Models that serve: one answers at a help desk, one embeds papers and one paints posters."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from benchmarks.faults.library_models import halved, noise
from benchmarks.faults.models import DEVICE, HALF, graphed, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class Cached(nn.Module):
    """A layer of a language model with room for the keys and values of all words to come."""

    def __init__(self, width: int, rows: int, room: int) -> None:
        super().__init__()
        self.heads = max(1, width // 128)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        shape = (rows, self.heads, room, width // self.heads)
        self.keys, self.values = nn.Buffer(torch.zeros(shape)), nn.Buffer(torch.zeros(shape))

    def forward(self, x: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        """Attention to all words seen so far, then two linear layers, each added to what came in."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, places, key)
        self.values.index_copy_(2, places, value)
        mixed = functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.silu(self.up(self.norms[1](x))))


class Talker(nn.Module):
    """A language model with a cache of a fixed size."""

    def __init__(self, layers: int, width: int, known: int, rows: int, room: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(known, width)
        self.layers = nn.ModuleList(Cached(width, rows, room) for _ in range(layers))
        self.head = nn.Linear(width, known, bias=False)
        self.slots = nn.Buffer(torch.arange(room))

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        """The likeliest next word of every row."""
        seen = self.slots <= places[:, None]
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, places, seen)
        return self.head(x[:, -1:]).argmax(-1)


@pair(
    "cache-far-longer-than-the-text",
    "The cache of keys and values has room for the 8192 words the model allows, though question and answer"
    " never have more than 512, and attention reads all of it for every word.",
    "Give the cache the length that a request can have: prompt and max_new_tokens together.",
)
def sixteenth_help_desk(faulty: bool) -> Step:
    """A chat model answers eight questions at once, word by word, by replaying a CUDA graph."""
    rows, asked, most = sized(8, 2), sized(384, 8), sized(128, 8)
    room = sized(8192, 64) if faulty else asked + most
    with torch.device(DEVICE):
        model = Talker(sized(8, 1), sized(2048, 128), sized(32_000, 128), rows, room).to(HALF).eval()
    question = torch.randint(0, sized(32_000, 128), (rows, asked), device=DEVICE)
    place = torch.full((1,), asked, device=DEVICE)
    with torch.no_grad():
        word = model(question, torch.arange(asked, device=DEVICE))

    @torch.no_grad()
    def step() -> Tensor:
        said = []
        for _ in range(sized(8, 2)):
            said.append(word.clone())
            word.copy_(model(word, place))
            place.copy_(asked + (place - asked + 1) % most)
        return torch.cat(said, 1)

    return graphed(step)


def mean_of_words(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean of the vectors of the words that are there, of length one."""
    there = mask.unsqueeze(-1).to(hidden.dtype)
    return functional.normalize((hidden * there).sum(1) / there.sum(1), dim=-1)


@pair(
    "words-pooled-on-the-host",
    "The vectors of all words of all papers are copied to the host in float32 and averaged there, though one"
    " vector for each paper is all that is wanted.",
    "Average on the device and copy the result alone: mean_of_words(hidden.float(), mask).cpu().",
)
def sixteenth_paper_embedder(faulty: bool) -> Step:
    """A BERT makes a vector of each abstract of a batch of papers for a search engine."""
    from transformers import BertConfig, BertModel

    rows, length = sized(64, 2), sized(256, 16)
    config = BertConfig(
        vocab_size=sized(30_528, 256),
        hidden_size=sized(1024, 64),
        intermediate_size=sized(4096, 256),
        num_hidden_layers=sized(10, 1),
        num_attention_heads=sized(16, 1),
    )
    model: Any = halved(BertModel(config, add_pooling_layer=False)).eval()
    batches = []
    for _ in range(4):
        ids = torch.randint(2, sized(30_528, 256), (rows, length))
        lengths = torch.randint(length * 3 // 4, length + 1, (rows, 1))
        batches.append((pinned(ids), pinned((torch.arange(length) < lengths).long())))
    ahead = itertools.cycle(batches)

    @torch.inference_mode()
    def step() -> Tensor:
        ids, mask = next(ahead)
        there = mask.to(DEVICE, non_blocking=True)
        hidden = model(input_ids=ids.to(DEVICE, non_blocking=True), attention_mask=there).last_hidden_state
        if faulty:
            return mean_of_words(hidden.float().cpu(), mask)
        return mean_of_words(hidden.float(), there).cpu()

    return step


def painter() -> Any:
    """A small painter that listens to words, in the style of Stable Diffusion."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=sized(64, 8),
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(sized(256, 32), sized(512, 32), sized(1024, 32)),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=sized(768, 32),
        attention_head_dim=8,
    )
    return halved(model).to(memory_format=torch.channels_last).eval()


@pair(
    "guidance-of-one",
    "The model is distilled and runs with a guidance of 1.0, at which the prediction for the empty prompt"
    " cancels out, but it is still computed: every batch is doubled for nothing.",
    "Run the prompt alone where the guidance is 1.0, as diffusers' pipelines do.",
)
def sixteenth_poster_painter(faulty: bool) -> Step:
    """A distilled diffusion model paints posters in two rounds."""
    from diffusers import DDIMScheduler

    model, guidance = painter(), 1.0
    rows, side, width = sized(16, 1), sized(64, 8), sized(768, 32)
    prompts, empty = noise(rows, 77, width), noise(1, 77, width).repeat(rows, 1, 1)
    scheduler = DDIMScheduler(num_train_timesteps=1000)
    scheduler.set_timesteps(2)
    moments = [(moment, torch.full((1,), moment, device=DEVICE)) for moment in scheduler.timesteps.tolist()]
    start = noise(rows, 4, side, side)
    both = torch.cat([empty, prompts])

    @torch.inference_mode()
    def step() -> Tensor:
        picture = start
        for moment, there in moments:
            if faulty:
                twice = model(torch.cat([picture] * 2), there, encoder_hidden_states=both).sample
                without, wanted = twice.chunk(2)
                guess = without + guidance * (wanted - without)
            else:
                guess = model(picture, there, encoder_hidden_states=prompts).sample
            picture = scheduler.step(guess, moment, picture).prev_sample
        return picture

    return step
