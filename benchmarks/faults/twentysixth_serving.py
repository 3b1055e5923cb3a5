"""Services: subtitles of podcasts, a shelf of a market and maps of floods."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import halved, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, Block, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- subtitles


class Subtitler:
    """Writes down what is said, a token at a time."""

    def __init__(self, model: Any, *, first: int, most: int, once: bool) -> None:
        self.model = model
        self.first = first
        self.most = most
        self.once = once

    def heard(self, features: Tensor) -> dict[str, Any]:
        """What the model is given of the sound."""
        if self.once:
            return {"encoder_outputs": self.model.get_encoder()(features)}
        return {"input_features": features}

    @torch.inference_mode()
    def write(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable tokens, and how sure the model was of each text."""
        from transformers import DynamicCache, EncoderDecoderCache

        config = self.model.config
        cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
        given = self.heard(features)
        last = torch.full((len(features), 1), self.first, device=features.device)
        written, sure = [last], torch.zeros(len(features), device=features.device)
        for _ in range(self.most):
            scores = self.model(**given, decoder_input_ids=last, past_key_values=cache, use_cache=True).logits
            best, last = scores[:, -1:].float().log_softmax(-1).max(-1)
            sure += best[:, 0]
            written.append(last)
        return torch.cat(written, 1), sure / self.most


@pair(
    "encoder-run-for-every-token",
    "A loop that decodes with Whisper hands it the sound at every token, so the encoder runs each time.",
    "The encoder is run once and its outputs are handed to the decoder.",
)
def twentysixth_podcast_subtitler(faulty: bool) -> Step:
    """Half minutes of podcasts are given subtitles."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    width, layers, frames, words = sized(768, 32), sized(12, 1), sized(3000, 40), sized(51_865, 128)
    config = WhisperConfig(
        vocab_size=words,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=max(2, width // 64),
        decoder_attention_heads=max(2, width // 64),
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=frames // 2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        attn_implementation="sdpa",
    )
    model = halved(WhisperForConditionalGeneration(config)).eval()
    subtitler = Subtitler(model, first=3, most=sized(20, 4), once=not faulty)
    features = noise(sized(16, 2), 80, frames)

    def step() -> list[list[int]]:
        written, sure = subtitler.write(features)
        return [text for text, chance in zip(written.tolist(), sure.tolist(), strict=True) if chance > -20]

    return step


# ---------------------------------------------------------------- a shelf of a market


class Shopper(nn.Module):
    """A vector of a customer, from what they bought."""

    def __init__(self, layers: int, width: int, items: int, outside: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, outside)
        self.widen = nn.Linear(outside, width)
        self.layers = nn.ModuleList(Block(width, max(1, width // 64), 4 * width) for _ in range(layers))
        self.narrow = nn.Linear(width, outside)

    def forward(self, bought: Tensor) -> Tensor:
        """One vector for every customer."""
        x = self.widen(self.items(bought))
        for layer in self.layers:
            x = layer(x)
        return functional.normalize(self.narrow(x[:, -1]).float(), dim=-1)


class Shelf:
    """Ranks the goods for customers, and says how well that went."""

    def __init__(self, model: Shopper, shown: int, *, in_full: bool) -> None:
        self.model = model
        self.shown = shown
        self.in_full = in_full
        self.goods = functional.normalize(model.items.weight.detach().float(), dim=-1).to(HALF)

    def best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The goods to show, best first, and their scores."""
        if self.in_full:
            order = scores.argsort(dim=-1, descending=True)[:, : self.shown]
            return order, scores.gather(1, order)
        values, order = scores.topk(self.shown, dim=-1)
        return order, values

    @torch.inference_mode()
    def fill(self, bought: Tensor, next_ones: Tensor) -> tuple[Tensor, Tensor]:
        """What to show, and the discounted gain by what was bought next."""
        vectors = self.model(bought)
        scores = (vectors.to(HALF) @ self.goods.T).float()
        scores.scatter_(1, bought, -torch.inf)
        order, values = self.best(scores)
        place = torch.arange(2, self.shown + 2, device=order.device).log2()
        gain = ((order == next_ones[:, None]) / place).sum(1).mean()
        return torch.stack([order.float(), values]), gain


@pair(
    "everything-sorted-for-the-first-few",
    "The scores of half a million goods are sorted for every customer, and the first fifty are kept.",
    "topk of the fifty.",
)
def twentysixth_market_shelf(faulty: bool) -> Step:
    """Goods are ranked for customers of an online market."""
    items = sized(500_000, 300)
    with torch.device(DEVICE):
        model = Shopper(sized(6, 1), sized(768, 64), items, sized(128, 16)).to(HALF).eval()
    shelf = Shelf(model, sized(50, 5), in_full=faulty)
    customers = sized(256, 3)
    bought, next_ones = tokens(items, customers, sized(128, 8)), tokens(items, customers)

    def step() -> tuple[Tensor, Tensor]:
        shown, gain = shelf.fill(bought, next_ones)
        return shown.cpu(), gain.cpu()

    return step


# ---------------------------------------------------------------- maps of floods


class Terrain(nn.Module):
    """A network that sorts every pixel of a satellite picture."""

    def __init__(self, bands: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(bands, width, 4, stride=4)
        self.body = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
                )
                for _ in range(depth)
            )
        )
        self.last = nn.Conv2d(width, kinds, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of the kinds of ground."""
        scores = self.last(self.body(self.patch(pictures)))
        return functional.interpolate(scores, scale_factor=4.0, mode="bilinear")


def ground_of(scores: Tensor) -> Tensor:
    """The kind of every pixel, on the host."""
    chances = scores.float().cpu().softmax(1)
    return chances.argmax(1).to(torch.uint8)


def ground_on_device(scores: Tensor) -> Tensor:
    """The kind of every pixel, on the host."""
    return scores.argmax(1).to(torch.uint8).cpu()


@pair(
    "scores-copied-where-labels-would-do",
    "The service copies fp32 scores of sixteen kinds of ground to the host and takes the argmax there.",
    "argmax on the device, and a byte per pixel is copied.",
)
def twentysixth_flood_mapper(faulty: bool) -> Step:
    """Flooded fields are found in satellite pictures."""
    rows, side, kinds = sized(4, 1), sized(1024, 32), 16
    model = on_images(Terrain(6, sized(256, 16), sized(12, 2), kinds)).eval()
    pictures = noise(rows, 6, side, side).to(memory_format=torch.channels_last)
    to_labels = ground_of if faulty else ground_on_device

    @torch.inference_mode()
    def step() -> list[dict[str, float]]:
        ground = to_labels(model(pictures))
        reports: list[dict[str, float]] = []
        for tile in ground:
            share = torch.bincount(tile.flatten(), minlength=kinds) / tile.numel()
            reports.append({"water": float(share[3]), "mud": float(share[7])})
        return reports

    return step
