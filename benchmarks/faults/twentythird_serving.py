"""Programs that serve, store or judge: text, pictures and maps."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import bert, halved, llama, tokens
from benchmarks.faults.models import DEVICE, HALF, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional


@pair(
    "candidates-generated-one-after-another",
    "Three candidates for the same prompts are sampled by three calls of generate, and the best is kept.",
    "One call with num_return_sequences=3.",
)
def limerick_writer(faulty: bool) -> Step:
    """Several limericks are drafted and the best by a judge is shown."""
    model = llama(4, 768).eval()
    judge = bert(6, 512).to(HALF).eval()
    rows, asked, written, drafts = sized(8, 2), sized(192, 8), sized(8, 3), 3
    prompts = tokens(sized(8192, 128) - 1, rows, asked) + 1
    mask = torch.ones_like(prompts)
    settings = {"do_sample": True, "temperature": 0.9, "top_k": 50, "pad_token_id": 0}

    @torch.inference_mode()
    def step() -> Tensor:
        if faulty:
            drawn = [
                model.generate(prompts, attention_mask=mask, max_new_tokens=written, **settings)
                for _ in range(drafts)
            ]
            texts = torch.stack(drawn, 1).flatten(0, 1)
        else:
            texts = model.generate(
                prompts, attention_mask=mask, max_new_tokens=written, num_return_sequences=drafts, **settings
            )
        liked = judge(input_ids=texts, attention_mask=torch.ones_like(texts)).logits[:, 0]
        best = liked.view(rows, drafts).argmax(1)
        return texts.view(rows, drafts, -1)[torch.arange(rows, device=DEVICE), best].cpu()

    return step


@pair(
    "sliced-encoding-with-memory-to-spare",
    "An AutoencoderKL of diffusers turns pictures into latents after enable_slicing(): one by one.",
    "Without slicing: the whole batch is encoded at once.",
)
def quilt_keeper(faulty: bool) -> Step:
    """Pictures of quilts are stored as latents and as vectors to search by."""
    from diffusers import AutoencoderKL
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    side, rows, width = sized(192, 32), sized(8, 2), sized(768, 32)
    coder = AutoencoderKL(
        block_out_channels=(64, 128, 256, 256),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=4,
        sample_size=side,
    )
    coder = halved(coder).eval()
    if faulty:
        coder.enable_slicing()
    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        image_size=sized(224, 32),
        patch_size=16,
        projection_dim=sized(512, 16),
        attn_implementation="sdpa",
    )
    searcher = halved(CLIPVisionModelWithProjection(config)).eval()
    photos = pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8))
    small = side // 8
    latents_kept = pinned(torch.zeros(rows, 4, small, small, dtype=HALF))

    @torch.inference_mode()
    def step() -> Tensor:
        pictures = photos.to(DEVICE, non_blocking=True).to(HALF) / 127.5 - 1
        latents = coder.encode(pictures).latent_dist.mode() * coder.config.scaling_factor
        seen = functional.interpolate(pictures, size=(sized(224, 32),) * 2, mode="bilinear")
        vectors = functional.normalize(searcher(pixel_values=seen).image_embeds, dim=-1)
        latents_kept.copy_(latents, non_blocking=True)
        return vectors.float().cpu()

    return step


@pair(
    "metrics-checked-and-counted-apart",
    "Five metrics of torchmetrics judge the maps of a SegFormer, each updated by itself with its checks of "
    "the arguments on, which sort all the pixels for the values that occur.",
    "A MetricCollection that counts once for those that share their counts, with validate_args=False.",
)
def marsh_grader(faulty: bool) -> Step:
    """Maps of a marsh are judged against those of surveyors."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassF1Score,
        MulticlassJaccardIndex,
        MulticlassPrecision,
        MulticlassRecall,
    )
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    classes, side, rows = sized(16, 5), sized(512, 64), sized(8, 2)
    model = halved(SegformerForSemanticSegmentation(SegformerConfig(num_labels=classes))).eval()
    kinds = {
        "accuracy": MulticlassAccuracy,
        "precision": MulticlassPrecision,
        "recall": MulticlassRecall,
        "f1": MulticlassF1Score,
        "overlap": MulticlassJaccardIndex,
    }
    metrics = {
        name: kind(num_classes=classes, validate_args=faulty).to(DEVICE) for name, kind in kinds.items()
    }
    together = None if faulty else MetricCollection(metrics)
    photos = pinned(torch.randn(rows, 3, side, side).to(HALF))
    surveyed = pinned(torch.randint(0, classes, (rows, side, side)))

    @torch.inference_mode()
    def step() -> None:
        pictures = photos.to(DEVICE, non_blocking=True)
        truth = surveyed.to(DEVICE, non_blocking=True)
        scores = functional.interpolate(
            model(pixel_values=pictures).logits, size=(side, side), mode="bilinear"
        )
        guessed = scores.argmax(1)
        if together is not None:
            together.update(guessed, truth)
            return
        for metric in metrics.values():
            metric.update(guessed, truth)

    return step
