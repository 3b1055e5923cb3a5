"""Models that answer: a writer, a search by meaning and an evaluation of a map of streets."""

from __future__ import annotations

import random
from typing import Any

import torch
from benchmarks.faults.library_models import WORDS, autocast, halved, llama, noise, tokenizer, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional


@pair(
    "generation-without-a-cache",
    "generate() runs with use_cache=False, left from training: every token reads the whole prompt again.",
    "use_cache=True.",
)
def recipe_writer(faulty: bool) -> Step:
    """A language model goes on with the beginnings of recipes."""
    from transformers import GenerationConfig

    model = llama(4, 2048).eval()
    vocabulary = sized(8192, 128)
    settings = GenerationConfig(
        max_new_tokens=sized(16, 4), do_sample=False, use_cache=not faulty, pad_token_id=0, eos_token_id=None
    )
    prompts = tokens(vocabulary, sized(8, 2), sized(1024, 12))
    mask = torch.ones_like(prompts)

    def step() -> Tensor:
        with torch.inference_mode():
            written = model.generate(input_ids=prompts, attention_mask=mask, generation_config=settings)
        return written[:, prompts.shape[1] :].cpu()

    return step


@pair(
    "requests-encoded-one-at-a-time",
    "The questions of a request are tokenized, encoded and fetched one after another.",
    "All questions go through the encoder as one padded batch.",
)
def faq_finder(faulty: bool) -> Step:
    """Questions are embedded and looked up among answers."""
    from transformers import BertConfig, BertModel

    width, known = sized(384, 64), sized(WORDS, 200)
    config = BertConfig(
        vocab_size=WORDS + 8,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(6, 2),
        num_attention_heads=max(1, width // 32),
        attn_implementation="sdpa",
    )
    model = halved(BertModel(config, add_pooling_layer=False)).eval()
    encode = tokenizer()
    chosen = random.Random(2)
    questions = [
        " ".join(f"word{chosen.randrange(known)}" for _ in range(chosen.randrange(6, 24))) for _ in range(8)
    ]
    answers = functional.normalize(noise(sized(50_000, 100), width, dtype=torch.float32), dim=-1)

    def embed(texts: list[str]) -> Tensor:
        batch = encode(texts, padding=True, return_tensors="pt")
        ids, mask = batch["input_ids"].to(DEVICE), batch["attention_mask"].to(DEVICE)
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return functional.normalize(pooled, dim=-1)

    @torch.inference_mode()
    def step() -> Tensor:
        if faulty:
            vectors = torch.cat([embed([question]).cpu() for question in questions])
        else:
            vectors = embed(questions).cpu()
        return (vectors.to(DEVICE) @ answers.T).topk(5).indices.cpu()

    return step


@pair(
    "scores-moved-to-the-host-for-metrics",
    "Scores of every pixel are copied to the host, where argmax and the torchmetrics metrics run.",
    "Argmax and the metrics stay on the device.",
)
def street_surveyor(faulty: bool) -> Step:
    """A segmentation of streets is evaluated."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    classes, side, rows = 19, sized(512, 64), sized(4, 2)
    config = SegformerConfig(
        num_labels=classes,
        depths=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 320, 512] if DEVICE == "cuda" else [8, 16, 24, 32],
        decoder_hidden_size=sized(256, 32),
    )
    model: Any = SegformerForSemanticSegmentation(config).to(DEVICE).eval()
    metrics = MetricCollection(
        {
            "iou": MulticlassJaccardIndex(classes, validate_args=False),
            "accuracy": MulticlassAccuracy(classes, average="micro", validate_args=False),
        }
    )
    where = "cpu" if faulty else DEVICE
    metrics = metrics.to(where)
    pictures = noise(rows, 3, side, side, dtype=torch.float32)
    truth = torch.randint(0, classes, (rows, side, side), device=DEVICE)

    @torch.inference_mode()
    def step() -> None:
        with autocast():
            scores = model(pixel_values=pictures).logits
        scores = functional.interpolate(scores.float(), size=(side, side), mode="bilinear")
        found = scores.to(where).argmax(1)
        metrics.update(found, truth.to(where))

    return step
