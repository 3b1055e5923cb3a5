"""Services that answer requests with a model."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import halved, llama, noise, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional


@pair(
    "model-moved-to-the-device-for-every-request",
    "A service that scores texts moves its Llama to the device for every request and back to the CPU after,"
    " to save memory, although the device is nearly empty.",
    "The model is moved to the device once.",
)
def eighth_scoring_service(faulty: bool) -> Step:
    """Says how likely texts are."""
    model = llama(4, 1024).eval()
    if faulty:
        model.to("cpu")
    ids = tokens(128, sized(16, 2), sized(256, 16))

    @torch.no_grad()
    def step() -> list[float]:
        if faulty:
            model.to(DEVICE)
        scores = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1).float()
        losses = functional.cross_entropy(scores, ids[:, 1:].flatten(), reduction="none")
        answer: list[float] = losses.view(len(ids), -1).mean(1).tolist()
        if faulty:
            model.to("cpu")
        return answer

    return step


@pair(
    "one-crop-at-a-time",
    "The boxes that a detector found in a picture are cut out and given to a timm classifier one at a time.",
    "The crops, all of one size, are given to the classifier as one batch.",
)
def eighth_crops(faulty: bool) -> Step:
    """Says what is in each box of a picture."""
    import timm

    model = halved(timm.create_model("vit_small_patch16_224", num_classes=sized(200, 10))).eval()
    picture = noise(1, 3, sized(1080, 240), sized(1920, 320))
    boxes = [
        (20 * turn, 30 * turn, 20 * turn + 90 + 8 * turn, 30 * turn + 120 + 6 * turn)
        for turn in range(sized(12, 3))
    ]

    def cut(box: tuple[int, int, int, int]) -> Tensor:
        top, left, bottom, right = box
        part = picture[:, :, top:bottom, left:right]
        return functional.interpolate(part, size=(224, 224), mode="bilinear", align_corners=False)

    @torch.inference_mode()
    def step() -> list[list[float]]:
        if faulty:
            found = torch.cat([model(cut(box)).float().softmax(-1) for box in boxes])
        else:
            found = model(torch.cat([cut(box) for box in boxes])).float().softmax(-1)
        chance, kind = found.max(-1)
        answer: list[list[float]] = torch.stack([chance, kind.float()], -1).tolist()
        return answer

    return step


@pair(
    "encoder-run-for-every-word",
    "A T5 writes by a loop of one's own that calls model(input_ids=..., decoder_input_ids=...) for every"
    " word: the encoder reads the same text again each time.",
    "The encoder is run once, and model(encoder_outputs=...) is called for every word.",
    light_steps=2,
)
def eighth_summaries(faulty: bool) -> Step:
    """Short summaries of long texts, the most likely word each time."""
    from transformers import T5Config, T5ForConditionalGeneration

    width = sized(768, 64)
    config = T5Config(
        vocab_size=sized(8192, 128),
        d_model=width,
        d_kv=64,
        d_ff=sized(2048, 128),
        num_layers=sized(4, 1),
        num_decoder_layers=sized(2, 1),
        num_heads=max(1, width // 64),
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    model = halved(T5ForConditionalGeneration(config)).eval()
    rows, length, count = sized(32, 2), sized(512, 16), sized(8, 3)
    texts = tokens(128, rows, length)
    mask = torch.ones_like(texts)

    @torch.inference_mode()
    def step() -> list[list[int]]:
        last = torch.zeros(rows, 1, dtype=torch.long, device=DEVICE)
        source: dict[str, Any] = {"input_ids": texts}
        if not faulty:
            source = {"encoder_outputs": model.get_encoder()(input_ids=texts, attention_mask=mask)}
        past, written = None, []
        for _ in range(count):
            output = model(
                **source, attention_mask=mask, decoder_input_ids=last, past_key_values=past, use_cache=True
            )
            past = output.past_key_values
            last = output.logits[:, -1:].argmax(-1)
            written.append(last)
        answer: list[list[int]] = torch.cat(written, 1).tolist()
        return answer

    return step
