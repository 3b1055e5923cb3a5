"""Programs that answer: a reranker, a writer and a painter of pictures."""

from __future__ import annotations

import random
from typing import Any

import torch
from benchmarks.faults.library_models import WORDS, bert, llama, noise, tokenizer, tokens
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor

# ---------------------------------------------------------------- search


@pair(
    "passages-scored-one-by-one",
    "A cross-encoder scores the eight passages of a search one after the other.",
    "They are padded and scored as one batch.",
    light_steps=3,
)
def fifth_reranker(faulty: bool) -> Step:
    """The model is launched, and waited for, once a passage."""
    rng = random.Random(3)
    model = bert(6, 768, attn_implementation="sdpa").to(HALF).eval()
    encode = tokenizer()
    limit = sized(256, 32)

    def text(least: int, most: int) -> str:
        return " ".join(f"word{rng.randrange(min(WORDS, 200))}" for _ in range(rng.randint(least, most)))

    searches = [(text(4, 12), [text(limit // 4, limit) for _ in range(8)]) for _ in range(16)]
    turn = iter(range(1_000_000_000))

    def relevance(questions: list[str], passages: list[str]) -> list[float]:
        batch = encode(
            questions, passages, padding=True, truncation=True, max_length=limit, return_tensors="pt"
        ).to(DEVICE)
        with torch.inference_mode():
            logits: Tensor = model(**batch).logits
        found: list[float] = logits[:, 0].float().sigmoid().cpu().tolist()
        return found

    def rerank(question: str, passages: list[str]) -> list[str]:
        if faulty:
            scores = [relevance([question], [passage])[0] for passage in passages]
        else:
            scores = relevance([question] * len(passages), passages)
        order = sorted(range(len(passages)), key=scores.__getitem__, reverse=True)
        return [passages[place] for place in order[:3]]

    def answer() -> None:
        rerank(*searches[next(turn) % len(searches)])

    return answer


# ---------------------------------------------------------------- writing


def discourage(logits: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """Makes the words that are already there less likely."""
    for row in range(len(ids)):
        for word in set(ids[row].tolist()):
            if logits[row, word] < 0:
                logits[row, word] *= penalty
            else:
                logits[row, word] /= penalty
    return logits


def discourage_all(logits: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """Makes the words that are already there less likely, all at once."""
    found = logits.gather(1, ids)
    return logits.scatter(1, ids, torch.where(found < 0, found * penalty, found / penalty))


def nucleus(logits: Tensor, share: float) -> Tensor:
    """Draws from the likeliest words that together have so much of the probability."""
    ordered, places = logits.sort(-1, descending=True)
    odds = ordered.softmax(-1)
    odds = odds.masked_fill(odds.cumsum(-1) - odds > share, 0.0)
    return places.gather(1, torch.multinomial(odds, 1))


@pair(
    "penalty-word-by-word",
    "A chat model's repetition penalty goes over rows and words in Python, on the device's logits.",
    "gather, where and scatter.",
    light_steps=2,
)
def fifth_chat_writer(faulty: bool) -> Step:
    """Some hundred comparisons a token are read back, and as many numbers are written alone."""
    model = llama(6, 1024, words=32_000).eval()
    penalize = discourage if faulty else discourage_all
    prompt = tokens(sized(32_000, 128), sized(4, 2), sized(40, 6))
    count = sized(6, 3)

    @torch.inference_mode()
    def reply() -> list[list[int]]:
        ids, cache, fed = prompt, None, prompt
        for _ in range(count):
            found = model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = found.past_key_values
            logits = penalize(found.logits[:, -1].float(), ids, 1.2) / 0.8
            fed = nucleus(logits, 0.9)
            ids = torch.cat([ids, fed], 1)
        answer: list[list[int]] = ids[:, prompt.shape[1] :].tolist()
        return answer

    return reply


# ---------------------------------------------------------------- pictures


def painter() -> Any:
    """A small latent diffusion pipeline of diffusers with random weights."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    width = sized(192, 32)
    unet = UNet2DConditionModel(
        sample_size=sized(64, 8),
        block_out_channels=(width, 2 * width, 4 * width),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=sized(2, 1),
        cross_attention_dim=sized(768, 32),
        attention_head_dim=8,
    )
    narrow = sized(64, 32)
    decoder = AutoencoderKL(
        block_out_channels=(narrow, narrow, 2 * narrow, 2 * narrow),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        sample_size=sized(512, 64),
    )
    pipeline = StableDiffusionPipeline(
        vae=decoder.to(HALF),
        text_encoder=None,
        tokenizer=None,
        unet=unet.to(HALF),
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pair(
    "models-offloaded-on-a-large-device",
    "A diffusers pipeline serves pictures with enable_model_cpu_offload() on a device with room for all.",
    "pipeline.to(device).",
    light_steps=2,
)
def fifth_picture_service(faulty: bool) -> Step:
    """All weights travel to the device and back for every request."""
    pipeline = painter()
    if faulty and DEVICE == "cuda":
        pipeline.enable_model_cpu_offload()
    else:
        pipeline.to(DEVICE)
    words = noise(1, 77, sized(768, 32))
    nothing = torch.zeros_like(words)
    served: list[float] = []

    def paint() -> None:
        found = pipeline(
            prompt_embeds=words,
            negative_prompt_embeds=nothing,
            num_inference_steps=4,
            guidance_scale=5.0,
            output_type="pt",
        )
        served.append(float(found.images.float().mean()))

    return paint
