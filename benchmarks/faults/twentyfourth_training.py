"""Training scripts of several families: speech, language, control and pictures."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import autocast, halved, llama, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, Block, UNet, adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "trained-in-full-precision",
    'Whisper is fine-tuned under Fabric with its default precision, "32-true".',
    'precision="bf16-mixed".',
)
def parish_scribe(faulty: bool) -> Step:
    """Whisper is fine-tuned on recordings of parish councils."""
    from lightning.fabric import Fabric
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    width, frames, vocabulary, rows = sized(768, 32), sized(1500, 50), sized(16_384, 128), sized(8, 2)
    precision: Any = "32-true" if faulty or DEVICE == "cpu" else "bf16-mixed"
    fabric = Fabric(accelerator=DEVICE, devices=1, precision=precision)
    config = WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=sized(6, 1),
        decoder_layers=sized(6, 1),
        encoder_attention_heads=sized(12, 2),
        decoder_attention_heads=sized(12, 2),
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=frames,
        max_target_positions=sized(448, 32),
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        attn_implementation="sdpa",
    )
    plain = WhisperForConditionalGeneration(config)
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True))
    features = noise(rows, config.num_mel_bins, 2 * frames, dtype=torch.float32)
    labels = tokens(vocabulary, rows, sized(128, 8))

    def step() -> None:
        loss = model(input_features=features, labels=labels, use_cache=False).loss
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "micro-batches-of-one-row",
    "LoRA with a batch of one row and eight steps of gradient accumulation, where memory is plenty.",
    "A batch of eight rows and no accumulation.",
)
def contract_clerk(faulty: bool) -> Step:
    """A language model learns by LoRA to answer questions about contracts."""
    from accelerate import Accelerator
    from peft import LoraConfig, get_peft_model

    per_device, turns = (1, 8) if faulty else (8, 1)
    vocabulary, length = sized(8192, 128), sized(256, 16)
    accelerator = Accelerator(gradient_accumulation_steps=turns, cpu=DEVICE == "cpu")
    adapters = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    plain = get_peft_model(llama(6, 1024), adapters)
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(trained, lr=2e-4, fused=True))
    rows = tokens(vocabulary, 8, length)

    def step() -> None:
        for batch in rows.split(per_device):
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch, use_cache=False).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                optimizer.zero_grad()

    return step


@pair(
    "gradient-checkpointing-without-need",
    "A small Llama is fine-tuned with gradient_checkpointing_enable() on a card that is mostly empty.",
    "Without gradient checkpointing.",
)
def novel_tutor(faulty: bool) -> Step:
    """A language model is fine-tuned on novels."""
    vocabulary = sized(8192, 128)
    model = llama(8, 1024)
    if faulty:
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    ids = tokens(vocabulary, sized(16, 2), sized(1024, 16))

    def step() -> None:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


class Fighter(nn.Module):
    """A policy and a value over the last moments of a game."""

    def __init__(self, seen: int, width: int, layers: int, actions: int) -> None:
        super().__init__()
        self.see = nn.Linear(seen, width)
        self.layers = nn.ModuleList(Block(width, max(1, width // 64), 4 * width) for _ in range(layers))
        self.act = nn.Linear(width, actions)
        self.value = nn.Linear(width, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the actions and values of all moments."""
        x = self.see(seen)
        for layer in self.layers:
            x = layer(x)
        return self.act(x), self.value(x)[..., 0]


@pair(
    "scalar-read-back-for-every-parameter",
    "PPO logs the norm of every weight and of every gradient with .item() in each update.",
    "All norms by one foreach call each, stacked and read back at once.",
)
def arena_fighter(faulty: bool) -> Step:
    """An agent learns a game by PPO."""
    torch.set_float32_matmul_precision("high")
    width, rows, moments, actions = sized(256, 32), sized(64, 4), sized(32, 8), 18
    model = Fighter(96, width, sized(8, 2), actions).to(DEVICE)
    optimizer = adamw(model)
    seen = noise(rows, moments, 96, dtype=torch.float32)
    taken, before = tokens(actions, rows, moments), -noise(rows, moments, dtype=torch.float32).abs()
    advantage, returns = (noise(rows, moments, dtype=torch.float32) for _ in range(2))
    names = [name for name, _ in model.named_parameters()]
    weights = list(model.parameters())
    history: dict[str, float] = {}

    def record() -> None:
        if faulty:
            for name, parameter in model.named_parameters():
                history[f"weights/{name}"] = parameter.detach().norm().item()
                history[f"gradients/{name}"] = parameter.grad.norm().item()
            return
        with torch.no_grad():
            sizes = torch._foreach_norm(weights)  # noqa: SLF001
            slopes = torch._foreach_norm([weight.grad for weight in weights])  # noqa: SLF001
            values = torch.stack([*sizes, *slopes]).tolist()
        history.update(zip([f"weights/{name}" for name in names], values, strict=False))
        history.update(zip([f"gradients/{name}" for name in names], values[len(names) :], strict=True))

    def step() -> None:
        scores, value = model(seen)
        chances = scores.log_softmax(-1)
        now = chances.gather(-1, taken[..., None])[..., 0]
        ratio = (now - before).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(chances.exp() * chances).sum(-1).mean()
        loss = 0.5 * functional.mse_loss(value, returns) - gain - 0.01 * entropy
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.5)
        record()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "frozen-encoder-run-again-every-step",
    "The frozen VAE encodes the same pictures anew in every step of training a latent diffusion model.",
    "The latents of all pictures are computed once, before training.",
)
def sticker_painter(faulty: bool) -> Step:
    """A latent diffusion model learns to draw stickers from captions."""
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel

    count, rows, side, text = sized(128, 8), sized(16, 2), sized(256, 32), sized(512, 32)
    widths = (128, 256, 512, 512) if DEVICE == "cuda" else (32, 32, 32, 32)
    vae = halved(
        AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=widths,
            layers_per_block=sized(2, 1),
            latent_channels=4,
            sample_size=side,
        )
    )
    vae.requires_grad_(False).eval()
    unet = UNet2DConditionModel(
        sample_size=side // 8,
        block_out_channels=(sized(192, 32), sized(384, 32), sized(576, 32)),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=text,
        attention_head_dim=8,
    ).to(DEVICE)
    scheduler = DDPMScheduler()
    optimizer = adamw(unet)
    pictures = noise(count, 3, side, side)
    captions = noise(count, sized(77, 8), text, dtype=torch.float32)

    @torch.no_grad()
    def encoded(batch: Tensor) -> Tensor:
        return vae.encode(batch).latent_dist.mode().float() * vae.config.scaling_factor

    cached = None if faulty else torch.cat([encoded(batch) for batch in pictures.split(rows)])

    def step() -> None:
        chosen = torch.randint(0, count, (rows,), device=DEVICE)
        latents = encoded(pictures[chosen]) if cached is None else cached[chosen]
        added = torch.randn_like(latents)
        times = torch.randint(0, 1000, (rows,), device=DEVICE)
        noisy = scheduler.add_noise(latents, added, times)
        with autocast():
            guessed = unet(noisy, times, encoder_hidden_states=captions[chosen]).sample
        loss = functional.mse_loss(guessed.float(), added)
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "loss-read-back-every-step",
    "The loss is read with .item() in every step of a large network for images.",
    "The loss is summed on the device; the steps are long, so the device never waits for the host.",
    kind="fair",
)
def photo_cleaner(faulty: bool) -> Step:
    """A U-shaped network learns to take the noise out of photos."""
    rows = sized(24, 2)
    model = on_images(UNet(sized(64, 8)))
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    clean = images(24, 256)
    running: Any = 0.0 if faulty else torch.zeros((), device=DEVICE)

    def step() -> None:
        nonlocal running
        added = torch.randn_like(clean)
        strength = torch.rand(rows, 1, 1, 1, device=DEVICE, dtype=HALF)
        time = strength.flatten(1).expand(rows, 64)
        guessed = model(clean + strength * added, time)
        loss = functional.mse_loss(guessed.float(), added.float())
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running += loss.item() if faulty else loss.detach()

    return step
