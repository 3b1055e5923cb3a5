"""Models that are served: a judge of passages, a painter of product shots and a reader of contracts."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import bert, noise
from benchmarks.faults.models import DEVICE, HALF, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor


def ranking_model(words: int) -> Any:
    """A language model in the style of Qwen 3, with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    width = sized(1024, 64)
    config = Qwen3Config(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(16, 2),
        num_key_value_heads=sized(8, 1),
        head_dim=sized(128, 32),
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    with torch.device(DEVICE):
        return Qwen3ForCausalLM(config).to(HALF).eval()


@pair(
    "vocabulary-scores-of-all-positions-for-the-last",
    "A judge needs two words at the last position; the model scores its vocabulary at all 512 of them.",
    "logits_to_keep=1: the head is given the last position alone.",
)
def twentieth_passage_judge(faulty: bool) -> Step:
    """Passages found for a question are ordered by how sure a model is of the answer yes."""
    torch.manual_seed(23)
    words, rows, length = sized(151_936, 256), sized(24, 2), sized(512, 16)
    model = ranking_model(words)
    prompts = pinned(torch.randint(0, words, (rows, length)))
    answers = torch.tensor([words - 7, words - 5], device=DEVICE)  # no and yes
    found: dict[str, Tensor] = {}

    @torch.inference_mode()
    def step() -> Tensor:
        ids = prompts.to(DEVICE, non_blocking=True)
        if faulty:
            logits = model(input_ids=ids, use_cache=False).logits
        else:
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
        last = logits[:, -1].index_select(-1, answers).float()
        sure = last.log_softmax(-1)[:, 1].exp()
        found["order"] = sure.argsort(descending=True)
        found["sure"] = sure.cpu()
        return found["sure"]

    return step


def shot_denoiser() -> Any:
    """The denoiser of a latent diffusion model that is told what to paint."""
    from diffusers import UNet2DConditionModel

    base = sized(256, 32)
    return (
        UNet2DConditionModel(
            sample_size=sized(64, 8),
            in_channels=4,
            out_channels=4,
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            block_out_channels=(base, 2 * base, 3 * base),
            layers_per_block=sized(2, 1),
            cross_attention_dim=sized(768, 32),
            attention_head_dim=8,  # the number of heads, as its authors explain
            norm_num_groups=sized(32, 8),
        )
        .to(DEVICE, HALF, memory_format=torch.channels_last)
        .eval()
    )


class Guided:
    """Takes noise away in a few steps, led by a prompt."""

    def __init__(self, denoiser: Any, steps: int, guidance: float) -> None:
        self.denoiser = denoiser
        self.guidance = guidance
        kept = torch.linspace(0.9999, 0.02, 1000, dtype=torch.float64)
        moments = torch.linspace(990, 10, steps).long().tolist()
        self.moments = [torch.tensor(moment, device=DEVICE) for moment in moments]
        self.kept = [float(kept[moment]) for moment in moments] + [1.0]

    def sample(self, latents: Tensor, prompts: Tensor) -> Tensor:
        """Latents of finished pictures; the prompts hold the empty ones first."""
        for turn, moment in enumerate(self.moments):
            now, after = self.kept[turn], self.kept[turn + 1]
            both = torch.cat([latents, latents])
            without, told = self.denoiser(both, moment, encoder_hidden_states=prompts).sample.chunk(2)
            error = torch.lerp(without, told, self.guidance)
            clean = (latents - (1 - now) ** 0.5 * error) / now**0.5
            latents = after**0.5 * clean + (1 - after) ** 0.5 * error
        return latents


@pair(
    "attention-slicing-left-on",
    "A denoiser of diffusers runs with attention slicing, switched on once for a card of 6 GB.",
    "Without it: one call of scaled_dot_product_attention for a layer.",
)
def twentieth_product_shots(faulty: bool) -> Step:
    """Pictures of goods in front of a made-up room, in two steps of a distilled painter."""
    torch.manual_seed(24)
    rows, side, width = sized(4, 1), sized(64, 8), sized(768, 32)
    denoiser = shot_denoiser()
    if faulty:
        denoiser.set_attention_slice("auto")
    sampler = Guided(denoiser, steps=2, guidance=4.0)
    prompts = noise(2 * rows, 77, width)
    start = noise(rows, 4, side, side)

    @torch.inference_mode()
    def step() -> Tensor:
        latents = sampler.sample(start.clone(), prompts)
        return latents.float().clamp(-4, 4)

    return step


def placed(model: Any, layers: int, *, room: int) -> Any:
    """The encoder spread over the card and the host: so many layers have room on the card."""
    from accelerate import dispatch_model

    places: dict[str, Any] = {"bert.embeddings": DEVICE, "bert.pooler": DEVICE, "classifier": DEVICE}
    for number in range(layers):
        places[f"bert.encoder.layer.{number}"] = DEVICE if number < room else "cpu"
    return dispatch_model(model, device_map=places, main_device=DEVICE)


@pair(
    "layers-left-on-the-host",
    "accelerate keeps two of sixteen layers in the host's memory and copies them over in each forward.",
    "All layers on the card, where there is room for them.",
)
def twentieth_contract_reader(faulty: bool) -> Step:
    """Clauses of contracts are sorted into kinds of risk."""
    torch.manual_seed(25)
    layers, rows, length = sized(16, 1), sized(32, 2), sized(512, 16)
    model = bert(16, 1024, attn_implementation="sdpa").to("cpu", HALF).eval()
    words = model.config.vocab_size
    model = placed(model, layers, room=layers - sized(2, 1) if faulty else layers)
    clauses = pinned(torch.randint(0, words, (rows, length)))
    floor = torch.full((10,), 0.05, device=DEVICE)
    flagged = torch.zeros(10, device=DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        ids = clauses.to(DEVICE, non_blocking=True)
        risks = model(input_ids=ids).logits.float().softmax(-1)
        flagged.add_((risks > floor).sum(0))
        return risks.cpu()

    return step
