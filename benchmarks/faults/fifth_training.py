"""Programs that train: forecasts, sounds, language, scenes, photos and an agent."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, llama, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- time series


class Forecaster(nn.Module):
    """Patches of each series go through a transformer, which tells the values to come."""

    def __init__(self, patch: int, patches: int, width: int, layers: int, ahead: int) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, width)
        self.position = nn.Parameter(torch.zeros(patches, width))
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(patches * width, ahead)

    def forward(self, series: Tensor) -> Tensor:
        """The next values of every channel."""
        rows, channels, _ = series.shape
        level = series.mean(-1, keepdim=True)
        parts = (series - level).unfold(-1, self.patch, self.patch).flatten(0, 1)
        found = self.head(self.encoder(self.embed(parts) + self.position).flatten(1))
        return found.view(rows, channels, -1) + level


@pair(
    "fp32-training",
    "A transformer over patches of time series is trained in fp32, as torch does it by default.",
    "autocast to bf16.",
)
def fifth_forecaster(faulty: bool) -> Step:
    """The matrix products are done in full fp32."""
    patch, patches, ahead, channels = 16, sized(64, 4), 96, sized(7, 2)
    model = Forecaster(patch, patches, sized(512, 32), sized(6, 1), ahead).to(DEVICE)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=1_000_000)
    past = torch.randn(sized(32, 2), channels, patch * patches, device=DEVICE)
    future = torch.randn(sized(32, 2), channels, ahead, device=DEVICE)
    error = torch.zeros((), device=DEVICE)

    def train_step() -> None:
        optimizer.zero_grad()
        with autocast(enabled=not faulty):
            forecast = model(past)
            loss = functional.mse_loss(forecast.float(), future)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        error.lerp_((forecast.detach() - future).abs().mean().float(), 0.05)

    return train_step


# ---------------------------------------------------------------- sounds


class SoundBlock(nn.Module):
    """One layer of the tagger: attention over all frames and two linear layers."""

    def __init__(self, width: int, heads: int, **how: Any) -> None:
        super().__init__()
        self.how = how
        self.first = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.second = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        y = self.first(x)
        mixed, _ = self.attention(y, y, y, **self.how)
        x = x + mixed
        return x + self.feed(self.second(x))


class SoundTagger(nn.Module):
    """Tells for every frame of a spectrogram which sounds are heard."""

    def __init__(self, bands: int, width: int, layers: int, sounds: int, **how: Any) -> None:
        super().__init__()
        self.front = nn.Conv1d(bands, width, 3, padding=1)
        self.blocks = nn.Sequential(*(SoundBlock(width, max(1, width // 64), **how) for _ in range(layers)))
        self.head = nn.Linear(width, sounds)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """Logits of the sounds by frame."""
        return self.head(self.blocks(functional.gelu(self.front(spectrogram)).transpose(1, 2)))


@pair(
    "attention-weights-that-nobody-reads",
    "Blocks call nn.MultiheadAttention as it is and throw the weights away; Fabric trains them in bf16.",
    "need_weights=False.",
)
def fifth_sound_events(faulty: bool) -> Step:
    """Asked for weights, the module multiplies, takes softmax and averages over the heads by hand."""
    from lightning.fabric import Fabric

    how = {} if faulty else {"need_weights": False}
    kind: Any = "bf16-mixed" if DEVICE == "cuda" else "32-true"
    fabric = Fabric(accelerator="cuda" if DEVICE == "cuda" else "cpu", devices=1, precision=kind)
    tagger = SoundTagger(80, sized(512, 32), sized(6, 1), 50, **how)
    model, optimizer = fabric.setup(tagger, adamw(tagger.to(DEVICE)))
    frames = sized(1500, 16)
    sounds = torch.randn(sized(12, 2), 80, frames, device=DEVICE)
    heard = (torch.rand(sized(12, 2), frames, 50, device=DEVICE) < 0.1).float()
    losses: list[Tensor] = []

    def train_step() -> None:
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(sounds).float(), heard)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()
        losses.append(loss.detach())
        if len(losses) == 200:
            fabric.print(f"loss {torch.stack(losses).mean().item():.4f}")
            losses.clear()

    return train_step


# ---------------------------------------------------------------- language


def log_likelihood(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """How likely the model finds each answer."""
    logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
    missed = functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
    return -(missed.view(len(ids), -1).float() * mask[:, 1:]).sum(1)


@pair(
    "memory-given-back-every-step",
    "Preference tuning (DPO) with accelerate calls torch.cuda.empty_cache() every step.",
    "It is not called.",
    light_steps=3,
)
def fifth_preference_tuning(faulty: bool) -> Step:
    """All cached blocks of memory are freed and allocated again."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=DEVICE == "cpu")
    policy, reference = llama(10, 1024), llama(10, 1024).eval().requires_grad_(False)
    policy, optimizer = accelerator.prepare(policy, adamw(policy))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 100))
    pairs, length = sized(12, 1), sized(512, 16)
    ids = tokens(128, 2 * pairs, length)
    mask = (torch.arange(length, device=DEVICE) >= length // 4).float().expand(2 * pairs, -1)
    margin = torch.zeros((), device=DEVICE)

    def train_step() -> None:
        with torch.no_grad():
            before = log_likelihood(reference, ids, mask)
        now = log_likelihood(policy, ids, mask)
        good, bad = (now - before).chunk(2)
        loss = -functional.logsigmoid(0.1 * (good - bad)).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        margin.lerp_((good - bad).detach().mean(), 0.1)
        if faulty:
            torch.cuda.empty_cache()

    return train_step


@pair(
    "micro-batches-of-one",
    "The Trainer tunes adapters of peft with per_device_train_batch_size=1 and eight steps of accumulation.",
    "per_device_train_batch_size=8 without accumulation.",
    light_steps=2,
)
def fifth_adapter_tuning(faulty: bool) -> Step:
    """Each text goes through the model alone, with kernels too short for the device."""
    from peft import LoraConfig, get_peft_model
    from transformers import Trainer, TrainingArguments

    texts = sized(8, 4)
    rows = 1 if faulty else texts
    parts = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(llama(5, 1024), LoraConfig(r=16, lora_alpha=32, target_modules=parts))
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=texts // rows,
        optim="adamw_torch_fused",
        report_to=[],
        disable_tqdm=True,
        use_cpu=DEVICE == "cpu",
    )
    trainer: Any = Trainer(model, arguments)
    trainer.create_optimizer_and_scheduler(1_000_000)
    trainer.current_gradient_accumulation_steps = texts // rows
    run, optimizer = trainer.accelerator.prepare(model, trainer.optimizer)
    corpus = torch.randint(0, 128, (texts, sized(256, 16)))
    batches = [{"input_ids": ids, "labels": ids} for ids in corpus.split(rows)]
    total = torch.zeros((), device=DEVICE)

    def train_step() -> None:
        for batch in batches:
            total.add_(trainer.training_step(run, dict(batch)))
        trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        trainer.lr_scheduler.step()
        run.zero_grad()

    return train_step


class EncoderBlock(nn.Module):
    """A layer of an encoder, with a look at its numbers where asked for."""

    def __init__(self, width: int, heads: int, *, watch: bool) -> None:
        super().__init__()
        self.heads = heads
        self.watch = watch
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        x = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        if self.watch and not torch.isfinite(x).all():
            raise FloatingPointError("activations are not finite")
        return x


class MaskedEncoder(nn.Module):
    """Guesses the words that were taken out."""

    def __init__(self, words: int, width: int, layers: int, *, watch: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            EncoderBlock(width, max(1, width // 64), watch=watch) for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the words."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pair(
    "compiled-graph-broken-by-checks",
    "A compiled encoder looks in every block whether its numbers are finite, and branches on it.",
    "The loss is looked at, every hundred steps.",
)
def fifth_masked_encoder(faulty: bool) -> Step:
    """Each branch breaks the graph and waits for the device."""
    vocabulary = sized(8192, 128)
    model: Any = MaskedEncoder(vocabulary, sized(512, 32), sized(16, 2), watch=faulty).to(DEVICE, HALF)
    model = torch.compile(model)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10_000)
    words = tokens(vocabulary, sized(8, 2), sized(256, 16))
    hidden = torch.rand(words.shape, device=DEVICE) < 0.15
    seen, targets = words.masked_fill(hidden, 0), words.masked_fill(~hidden, -100)
    history: list[Tensor] = []

    def train_step() -> None:
        loss = functional.cross_entropy(model(seen).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        history.append(loss.detach())
        if len(history) == 100:
            if not torch.stack(history).isfinite().all():
                raise FloatingPointError("loss is not finite")
            history.clear()

    return train_step


# ---------------------------------------------------------------- scenes and photos


def class_overlap(guess: Tensor, truth: Tensor, classes: int) -> list[float]:
    """Intersection over union of every class."""
    overlap = []
    for number in range(classes):
        guessed, true = guess == number, truth == number
        both = (guessed & true).sum().item()
        either = (guessed | true).sum().item()
        overlap.append(both / either if either else float("nan"))
    return overlap


def confusion(guess: Tensor, truth: Tensor, classes: int) -> Tensor:
    """How often each class was taken for each, counted in one go."""
    table = torch.zeros(classes * classes, device=guess.device)
    places = (truth * classes + guess).flatten()
    return table.scatter_add_(0, places, torch.ones_like(places, dtype=table.dtype)).view(classes, classes)


@pair(
    "overlap-of-one-class-after-another",
    "A SegFormer's mean IoU is kept during training with a loop over 150 classes and two .item() each.",
    "One table of confusion on the device, read at the end of the epoch.",
    light_steps=3,
)
def fifth_scene_parsing(faulty: bool) -> Step:
    """The device waits for the host and the host for the device three hundred times a step."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    classes = sized(150, 5)
    config = SegformerConfig(num_labels=classes, semantic_loss_ignore_index=255)
    model = SegformerForSemanticSegmentation(config).to(DEVICE)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, 160_000)
    side = sized(256, 64)
    photos = torch.randn(sized(8, 2), 3, side, side, device=DEVICE)
    labels = tokens(classes, sized(8, 2), side, side)
    history: list[list[float]] = []
    table = torch.zeros(classes, classes, device=DEVICE)

    def train_step() -> None:
        with autocast():
            found = model(pixel_values=photos, labels=labels)
        found.loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        guess = functional.interpolate(found.logits.detach().float(), (side, side)).argmax(1)
        if faulty:
            history.append(class_overlap(guess, labels, classes))
        else:
            table.add_(confusion(guess, labels, classes))

    return train_step


@pair(
    "gradients-of-a-backbone-that-is-not-trained",
    "Only the head is given to the optimizer, but the ViT of timm below it still wants gradients.",
    "backbone.requires_grad_(False).",
)
def fifth_defect_classifier(faulty: bool) -> Step:
    """The backward pass goes through all of the backbone for gradients that nobody uses."""
    import timm

    name = "vit_base_patch16_224" if DEVICE == "cuda" else "vit_tiny_patch16_224"
    backbone = timm.create_model(name, num_classes=0).to(DEVICE)
    if not faulty:
        backbone.requires_grad_(False)
    head = nn.Sequential(nn.LayerNorm(backbone.num_features), nn.Linear(backbone.num_features, 12)).to(DEVICE)
    optimizer = adamw(head)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    photos = torch.randn(sized(64, 2), 3, 224, 224, device=DEVICE)
    labels = tokens(12, sized(64, 2))
    correct = torch.zeros((), device=DEVICE)

    def train_step() -> None:
        optimizer.zero_grad()
        with autocast():
            scores = head(backbone(photos))
            loss = functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        correct.add_((scores.argmax(1) == labels).float().mean())

    return train_step


# ---------------------------------------------------------------- an agent


def advantages_of(rewards: Any, values: Any, done: Any, best: Any, decay: float = 0.95) -> Any:
    """Generalised advantages, from the last moment back to the first."""
    last = 0.0
    for moment in reversed(range(len(rewards))):
        going = 1.0 - done[moment]
        change = rewards[moment] + 0.99 * values[moment + 1] * going - values[moment]
        last = change + 0.99 * decay * going * last
        best[moment] = last
    return best


@pair(
    "recurrence-over-moments-on-the-device",
    "An agent learns by PPO; its advantages are reckoned on the device, moment by moment.",
    "The few numbers go to numpy, are reckoned there and come back.",
    light_steps=3,
)
def fifth_gridworld_agent(faulty: bool) -> Step:
    """Thousands of kernels over 64 numbers each."""
    moments, agents, seen = sized(256, 8), sized(64, 4), 48
    body = nn.Sequential(nn.Linear(seen, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()).to(DEVICE)
    heads = nn.ModuleDict({"act": nn.Linear(256, 6), "value": nn.Linear(256, 1)}).to(DEVICE)
    optimizer = adamw(nn.ModuleList([body, heads]), eps=1e-5)
    views = torch.randn(moments, agents, seen, device=DEVICE)
    actions = tokens(6, moments, agents)
    rewards, done = torch.rand(2, moments, agents, device=DEVICE).unbind()
    done = (done < 0.02).float()
    before = torch.full((moments, agents), -1.79, device=DEVICE)

    def collect() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            values = heads["value"](body(views)).squeeze(-1)
        values = torch.cat([values, values[-1:]])
        if faulty:
            gains = advantages_of(rewards, values, done, torch.zeros_like(rewards))
        else:
            parts: Any = [part.cpu().numpy() for part in (rewards, values, done, torch.zeros_like(rewards))]
            gains = torch.from_numpy(advantages_of(*parts)).to(DEVICE)
        return gains.flatten(), (gains + values[:-1]).flatten()

    def learn(chosen: Tensor, gains: Tensor, returns: Tensor) -> None:
        inner = body(views.flatten(0, 1)[chosen])
        odds = torch.log_softmax(heads["act"](inner), -1).gather(1, actions.flatten()[chosen, None])[:, 0]
        ratio = (odds - before.flatten()[chosen]).exp()
        gain = gains[chosen]
        clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        miss = functional.mse_loss(heads["value"](inner)[:, 0], returns[chosen])
        optimizer.zero_grad()
        (0.5 * miss - clipped.mean()).backward()
        optimizer.step()

    def train_step() -> None:
        gains, returns = collect()
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        for _ in range(2):
            for chosen in torch.randperm(len(gains), device=DEVICE).chunk(4):
                learn(chosen, gains, returns)

    return train_step
