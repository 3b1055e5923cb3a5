"""Training scripts of four families: diffusion, adapters, segmentation and speech."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import autocast, halved, llama, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "noise-drawn-on-the-cpu",
    "A pixel diffusion of diffusers draws its noise by torch.randn(clean.shape).to(device) every step.",
    "torch.randn(clean.shape, device=device): drawn where it is used.",
)
def moss_diffuser(faulty: bool) -> Step:
    """A UNet2DModel learns to paint moss."""
    from diffusers import DDPMScheduler, UNet2DModel

    side, rows = sized(128, 16), sized(32, 2)
    model = UNet2DModel(
        sample_size=side,
        in_channels=3,
        out_channels=3,
        layers_per_block=2,
        block_out_channels=(32, 64, 128),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    ).to(DEVICE)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    clean = noise(rows, 3, side, side, dtype=torch.float32)

    def step() -> None:
        drawn = torch.randn(clean.shape).to(DEVICE) if faulty else torch.randn(clean.shape, device=DEVICE)
        times = torch.randint(0, 1000, (rows,), device=DEVICE)
        noisy = scheduler.add_noise(clean, drawn, times)
        with autocast():
            guessed = model(noisy, times, return_dict=False)[0]
            loss = functional.mse_loss(guessed.float(), drawn)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


@pair(
    "prepared-for-quantised-training-without-quantisation",
    "A bf16 Llama gets LoRA after gradient_checkpointing_enable and prepare_model_for_kbit_training, "
    "as in a recipe for 4 bits: all its weights become fp32 and every layer is checkpointed.",
    "Without these calls: the weights stay in bf16 and nothing is computed twice.",
)
def lyric_tutor(faulty: bool) -> Step:
    """A language model is adapted to song texts."""
    from accelerate import Accelerator
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    base = llama(8, 1024, words=16_384)
    base.config.use_cache = False
    if faulty:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base = prepare_model_for_kbit_training(base)
    parts = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules=parts, task_type="CAUSAL_LM"))
    model.train()
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=2e-4, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 100))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    ids = tokens(sized(16_384, 128), sized(8, 2), sized(512, 16))

    def step() -> None:
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


def dice_by_class(scores: Tensor, labels: Tensor, classes: int) -> Tensor:
    """One less the mean overlap of the classes."""
    total = scores.new_zeros(())
    for chosen in range(classes):
        chance = torch.softmax(scores, 1)[:, chosen]
        truth = (labels == chosen).float()
        overlap = (chance * truth).sum()
        total = total + 1 - (2 * overlap + 1) / (chance.sum() + truth.sum() + 1)
    return total / classes


def dice_at_once(scores: Tensor, labels: Tensor) -> Tensor:
    """One less the mean overlap of the classes."""
    chances = torch.softmax(scores, 1)
    truth = torch.zeros_like(chances).scatter_(1, labels[:, None], 1.0)
    overlaps = (chances * truth).sum((0, 2, 3))
    return (1 - (2 * overlaps + 1) / (chances.sum((0, 2, 3)) + truth.sum((0, 2, 3)) + 1)).mean()


@pair(
    "softmax-inside-a-loop-over-classes",
    "The Dice loss of a SegFormer goes through the 24 classes one by one and takes the softmax of all the "
    "scores anew for each.",
    "One softmax, and the overlaps of all classes from one product with the one-hot labels.",
)
def kelp_outliner(faulty: bool) -> Step:
    """Kinds of seaweed are outlined in pictures from a drone."""
    from lightning.fabric import Fabric
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    classes, side, rows = sized(24, 5), sized(256, 64), sized(16, 2)
    fabric = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed" if DEVICE == "cuda" else "32-true")
    plain = SegformerForSemanticSegmentation(SegformerConfig(num_labels=classes))
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True))
    pictures, labels = noise(rows, 3, side, side, dtype=torch.float32), tokens(classes, rows, side, side)

    def step() -> None:
        small = model(pixel_values=pictures).logits.float()
        scores = functional.interpolate(small, size=(side, side), mode="bilinear", align_corners=False)
        dice = dice_by_class(scores, labels, classes) if faulty else dice_at_once(scores, labels)
        loss = functional.cross_entropy(scores, labels) + dice
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


class SpeechLayer(nn.Module):
    """Attention among the frames that are there, and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Keeps the shape."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            parts[0], parts[1], parts[2], attn_mask=there[:, None, None, :]
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.norms[1](x))


def mask_row_by_row(lengths: Tensor, longest: int) -> Tensor:
    """Which frames are there."""
    mask = torch.zeros(len(lengths), longest, dtype=torch.bool, device=lengths.device)
    for row in range(len(lengths)):
        mask[row, : lengths[row]] = True
    return mask


def mask_compared(lengths: Tensor, longest: int) -> Tensor:
    """Which frames are there."""
    return torch.arange(longest, device=lengths.device)[None, :] < lengths[:, None]


class Stenographer(nn.Module):
    """Frames at a quarter of the rate, and a phoneme for each."""

    def __init__(self, width: int, layers: int, phonemes: int, *, by_row: bool) -> None:
        super().__init__()
        self.mask = mask_row_by_row if by_row else mask_compared
        self.first = nn.Conv1d(80, width, 3, stride=2, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(SpeechLayer(width, max(1, width // 64)) for _ in range(layers))
        self.head = nn.Linear(width, phonemes)

    def forward(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the phonemes, and which frames are there."""
        mel = mel * self.mask(lengths, mel.shape[2])[:, None, :]
        x = functional.gelu(self.second(functional.gelu(self.first(mel)))).transpose(1, 2)
        there = self.mask(lengths // 4, x.shape[1])
        for layer in self.layers:
            x = layer(x, there)
        return self.head(x), there


@pair(
    "padding-mask-filled-row-by-row",
    "The padding masks of a speech model are filled in a loop, whose bounds are read from GPU tensors.",
    "torch.arange(longest) < lengths[:, None].",
)
def ferry_stenographer(faulty: bool) -> Step:
    """Announcements on ferries are written down in phonemes."""
    rows, length, phonemes = sized(64, 3), sized(1024, 64), 64
    plain = Stenographer(sized(384, 64), sized(8, 1), phonemes, by_row=faulty)
    model = halved(plain)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    mel = noise(rows, 80, length)
    lengths = torch.randint(length // 2, length + 1, (rows,), device=DEVICE)
    spoken = tokens(phonemes, rows, length // 4)

    def step() -> None:
        scores, there = model(mel, lengths)
        wanted = spoken.masked_fill(~there, -100)
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=-100)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step
