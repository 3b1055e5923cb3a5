"""Programs that train and serve models of images, each with one mistake."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import noise, tokens
from benchmarks.faults.models import DEVICE, HALF, Residual, adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- zero-shot classes


def clip() -> Any:
    """A CLIP of the usual size with random weights."""
    from transformers import CLIPConfig, CLIPModel

    width, words = sized(768, 32), sized(512, 32)
    text = {
        "vocab_size": sized(49_408, 200),
        "hidden_size": words,
        "intermediate_size": 4 * words,
        "num_hidden_layers": sized(12, 1),
        "num_attention_heads": sized(8, 2),
        "max_position_embeddings": sized(77, 12),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    vision = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": sized(12, 1),
        "num_attention_heads": sized(12, 2),
        "image_size": sized(224, 32),
        "patch_size": 16,
    }
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=words)
    return CLIPModel(config).to(DEVICE, HALF).eval()


@pair(
    "same-class-prompts-encoded-for-every-batch",
    "CLIP sorts images into 250 classes and encodes the texts of all classes again for every batch.",
    "Encode the texts once, keep their vectors and encode only the images in the step.",
)
def fourth_class_prompts(faulty: bool) -> Step:
    """Classes without training, as the library's example shows it: texts and images in one call."""
    model = clip()
    ids = tokens(model.config.text_config.vocab_size - 3, sized(250, 6), sized(77, 12)) + 3
    ids[:, -1] = model.config.text_config.eos_token_id
    side = sized(224, 32)
    pictures = noise(sized(64, 2), 3, side, side)
    with torch.inference_mode():
        classes = functional.normalize(model.get_text_features(input_ids=ids).pooler_output, dim=-1)

    @torch.inference_mode()
    def step() -> list[int]:
        if faulty:
            scores = model(input_ids=ids, pixel_values=pictures).logits_per_image
        else:
            found = model.get_image_features(pixel_values=pictures).pooler_output
            scores = functional.normalize(found, dim=-1) @ classes.T * model.logit_scale.exp()
        return scores.argmax(-1).tolist()

    return step


# ---------------------------------------------------------------- two networks against each other


class Enlarger(nn.Module):
    """Makes images four times as large: residual blocks, then two shuffles of pixels."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 9, padding=4)
        self.blocks = nn.Sequential(*[Residual(width) for _ in range(blocks)])
        self.grow = nn.ModuleList(nn.Conv2d(width, 4 * width, 3, padding=1) for _ in range(2))
        self.last = nn.Conv2d(width, 3, 9, padding=4)

    def forward(self, small: Tensor) -> Tensor:
        """Images of four times the size."""
        x = self.first(small)
        x = x + self.blocks(x)
        for layer in self.grow:
            x = functional.relu(functional.pixel_shuffle(layer(x), 2))
        return torch.tanh(self.last(x))


def critic(width: int) -> nn.Module:
    """Tells real images from made ones."""
    parts: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
    for turn in range(3):
        now = width << turn
        parts += [nn.Conv2d(now, 2 * now, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * now)]
        parts += [nn.LeakyReLU(0.2)]
    return nn.Sequential(*parts, nn.Conv2d(8 * width, 1, 3, padding=1))


@pair(
    "generator-not-detached-in-the-critics-turn",
    "A network that enlarges images is trained against a critic, whose backward goes through both of them.",
    "Make the images for the critic's turn in torch.no_grad(), or detach them.",
)
def fourth_undetached_images(faulty: bool) -> Step:
    """The generator's gradients of the critic's turn are thrown away by the next zero_grad()."""
    maker, judge = on_images(Enlarger(sized(64, 8), sized(12, 1))), on_images(critic(sized(64, 8)))
    makers, judges = adamw(maker), adamw(judge)
    small, real = images(32, 64), images(32, 256)

    def judged(pictures: Tensor, truth: float) -> Tensor:
        scores = judge(pictures).float()
        return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, truth))

    def step() -> Tensor:
        judges.zero_grad()
        with torch.set_grad_enabled(faulty):
            made = maker(small)
        loss = judged(real, 1.0) + judged(made, 0.0)
        loss.backward()
        judges.step()
        makers.zero_grad()
        judge.requires_grad_(False)
        judged(maker(small), 1.0).backward()
        judge.requires_grad_(True)
        makers.step()
        return loss.detach()

    return step


# ---------------------------------------------------------------- metric learning


def distances_by_difference(points: Tensor) -> Tensor:
    """All differences of two points are written out, then squared and added up."""
    return (points[:, None, :] - points[None, :, :]).pow(2).sum(-1)


def distances_by_product(points: Tensor) -> Tensor:
    """The same by one matrix product."""
    squares = points.pow(2).sum(-1)
    return (squares[:, None] + squares[None, :] - 2 * points @ points.T).clamp_min(0)


@pair(
    "all-pairs-of-vectors-subtracted-by-broadcasting",
    "A triplet loss takes the difference of every two vectors of the batch: a tensor of rows x rows x width.",
    "Get the squared distances from a matrix product (or torch.cdist).",
)
def fourth_batch_triplets(faulty: bool) -> Step:
    """A ViT of timm learns vectors of images by the hardest triplets of each batch."""
    import timm

    side, rows = sized(112, 32), sized(1536, 8)
    model: Any = timm.create_model(
        "vit_small_patch16_224", img_size=side, depth=sized(6, 1), num_classes=sized(512, 16)
    )
    model = model.to(DEVICE, HALF).train()
    optimizer = adamw(model)
    pictures = noise(rows, 3, side, side)
    labels = torch.arange(rows, device=DEVICE) // 4
    same = labels[:, None] == labels[None, :]
    distances = distances_by_difference if faulty else distances_by_product

    def step() -> Tensor:
        points = functional.normalize(model(pictures).float(), dim=-1)
        apart = distances(points)
        farthest = apart.masked_fill(~same, 0).amax(1)
        nearest = apart.masked_fill(same, 4).amin(1)
        loss = functional.relu(farthest - nearest + 0.2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


# ---------------------------------------------------------------- flow matching


def flow_transformer() -> Any:
    """A small diffusion transformer in the style of Stable Diffusion 3."""
    from diffusers import SD3Transformer2DModel

    heads, size = sized(12, 2), sized(64, 16)
    return SD3Transformer2DModel(
        sample_size=sized(32, 8),
        patch_size=2,
        in_channels=16,
        num_layers=sized(6, 2),
        attention_head_dim=size,
        num_attention_heads=heads,
        joint_attention_dim=sized(512, 32),
        caption_projection_dim=heads * size,
        pooled_projection_dim=sized(256, 16),
        out_channels=16,
        pos_embed_max_size=sized(32, 8),
    )


@pair(
    "noise-level-searched-for-each-sample",
    "Trains a flow transformer; the noise level of each sample is found with nonzero().item() in a loop.",
    "Look all levels up at once with the indices from which the times were taken.",
)
def fourth_searched_levels(faulty: bool) -> Step:
    """The search for levels is the one of the well-known training scripts; the batch is 128 latents."""
    from accelerate import Accelerator
    from diffusers import FlowMatchEulerDiscreteScheduler

    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    plain = flow_transformer()
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True))
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000)
    times, levels = scheduler.timesteps.to(DEVICE), scheduler.sigmas.to(DEVICE)
    rows, side = sized(128, 3), sized(32, 8)
    latents = noise(rows, 16, side, side, dtype=torch.float32)
    texts = noise(rows, sized(32, 4), sized(512, 32), dtype=torch.float32)
    pooled = noise(rows, sized(256, 16), dtype=torch.float32)

    def step() -> Tensor:
        indices = torch.randint(0, len(times), (rows,), device=DEVICE)
        chosen = times[indices]
        if faulty:
            found = levels[[(times == time).nonzero().item() for time in chosen]]
        else:
            found = levels[indices]
        level = found.view(-1, 1, 1, 1)
        added = torch.randn_like(latents)
        mixed = (1 - level) * latents + level * added
        predicted = model(
            hidden_states=mixed,
            timestep=chosen,
            encoder_hidden_states=texts,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
        loss = functional.mse_loss(predicted.float(), added - latents)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
