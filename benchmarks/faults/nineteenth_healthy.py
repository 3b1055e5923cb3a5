"""Programs that are well as they are, or whose blemish is too small to matter."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, halved
from benchmarks.faults.models import DEVICE, HALF, Gpt, adamw, gpt, pinned, sized
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional


class IceCore(nn.Module):
    """Fills the gaps in a record of layers of ice."""

    def __init__(self, measures: int, width: int, layers: int, depth: int) -> None:
        super().__init__()
        self.inlet = nn.Linear(measures + 1, width)
        self.places = nn.Parameter(torch.randn(depth, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.outlet = nn.Linear(width, measures)

    def forward(self, record: Tensor, hidden: Tensor) -> Tensor:
        """The whole record, from what is not hidden of it."""
        seen = torch.cat([record.masked_fill(hidden, 0.0), hidden.float()], -1)
        return self.outlet(self.encoder(self.inlet(seen) + self.places))


class SlowWeights:
    """The moving average of a model's weights."""

    def __init__(self, model: nn.Module, keep: float, *, joined: bool) -> None:
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]
        self.keep = keep
        self.joined = joined

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """A small step towards the weights of now."""
        if self.joined:
            torch._foreach_lerp_(self.weights, list(model.parameters()), 1 - self.keep)
            return
        for slow, now in zip(self.weights, model.parameters(), strict=True):
            slow.mul_(self.keep).add_(now, alpha=1 - self.keep)


@pair(
    "averaged-weights-parameter-by-parameter",
    "A wide transformer keeps an average of its weights by a loop over its hundred tensors.",
    "torch._foreach_lerp_ over all of them, which saves half a millisecond of a long step.",
    kind="fair",
)
def nineteenth_glacier_historian(faulty: bool) -> Step:
    """Gaps in the records of ice cores are filled."""
    measures, depth, rows = 12, sized(512, 16), sized(20, 2)
    model = IceCore(measures, sized(1536, 64), sized(8, 1), depth).to(DEVICE)
    optimizer = adamw(model, weight_decay=0.05)
    slow = SlowWeights(model, 0.999, joined=not faulty)
    made = torch.Generator().manual_seed(41)
    cores = itertools.cycle([pinned(torch.randn(rows, depth, measures, generator=made)) for _ in range(3)])
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        record = next(cores).to(DEVICE, non_blocking=True)
        hidden = torch.rand(rows, depth, 1, device=DEVICE) < 0.4
        with autocast():
            filled = model(record, hidden)
        error = (filled.float() - record).square() * hidden
        loss = error.sum() / (hidden.sum() * measures)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        slow.follow(model)
        running.lerp_(loss.detach(), 0.02)
        return loss.detach()

    return step


class PairLoss(nn.Module):
    """Photographs and descriptions of the same thing shall point the same way."""

    def __init__(self, *, in_fp32: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.6))
        self.in_fp32 = in_fp32

    def forward(self, photos: Tensor, texts: Tensor) -> Tensor:
        """Cross entropy of either side."""
        photos, texts = functional.normalize(photos, dim=-1), functional.normalize(texts, dim=-1)
        with autocast(enabled=not self.in_fp32):
            left, right = (photos.float(), texts.float()) if self.in_fp32 else (photos, texts)
            likeness = left @ right.T * self.scale.exp()
        own = torch.arange(len(likeness), device=likeness.device)
        likeness = likeness.float()
        return (functional.cross_entropy(likeness, own) + functional.cross_entropy(likeness.T, own)) / 2


@pair(
    "similarities-in-fp32",
    "CLIP is trained in bf16, but the table of similarities is computed outside autocast, in full fp32.",
    "The table in bf16 as well; it is a few hundred rows, and nothing is gained.",
    kind="fair",
)
def nineteenth_antique_matcher(faulty: bool) -> Step:
    """Photographs of antiques find their descriptions."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPVisionConfig, CLIPVisionModel

    rows, side, words, length = sized(192, 4), sized(224, 32), sized(30_000, 64), sized(64, 8)
    wide, narrow, shared = sized(768, 32), sized(512, 32), sized(512, 16)
    eyes = CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=wide,
            intermediate_size=4 * wide,
            num_hidden_layers=sized(8, 1),
            num_attention_heads=sized(12, 2),
            image_size=side,
            patch_size=16,
            hidden_act="gelu",
        )
    ).to(DEVICE)
    reader = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=words,
            hidden_size=narrow,
            intermediate_size=4 * narrow,
            num_hidden_layers=sized(6, 1),
            num_attention_heads=sized(8, 2),
            max_position_embeddings=length,
            hidden_act="gelu",
            bos_token_id=1,
            eos_token_id=2,
        )
    ).to(DEVICE)
    ends = nn.ModuleList([nn.Linear(wide, shared, bias=False), nn.Linear(narrow, shared, bias=False)]).to(
        DEVICE
    )
    criterion = PairLoss(in_fp32=faulty).to(DEVICE)
    learnt = nn.ModuleList([eyes, reader, ends, criterion])
    optimizer = adamw(learnt, weight_decay=0.1)
    made = torch.Generator().manual_seed(43)
    lots = [
        (
            pinned(torch.randint(0, 256, (rows, 3, side, side), generator=made).byte()),
            pinned(torch.randint(3, words, (rows, length), generator=made)),
        )
        for _ in range(2)
    ]
    queue = itertools.cycle(lots)

    def step() -> Tensor:
        photos, texts = (part.to(DEVICE, non_blocking=True) for part in next(queue))
        with autocast():
            seen = ends[0](eyes(pixel_values=photos.float().div_(127.5).sub_(1.0)).pooler_output)
            read = ends[1](reader(input_ids=texts).last_hidden_state[:, -1])
        loss = criterion(seen, read)
        loss.backward()
        nn.utils.clip_grad_norm_(learnt.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Ahead:
    """Copies the next batch to the device while the model works on this one."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.batches = itertools.cycle(batches)
        self.stream = torch.cuda.Stream() if DEVICE == "cuda" else None
        self.ready = self.fetched()

    def fetched(self) -> Tensor:
        """The copy of the next batch, begun on the other stream."""
        if self.stream is None:
            return next(self.batches).clone()
        with torch.cuda.stream(self.stream):
            return next(self.batches).to(DEVICE, non_blocking=True)

    def take(self) -> Tensor:
        """The batch that was fetched, and the beginning of the next copy."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.ready.record_stream(torch.cuda.current_stream())
        batch, self.ready = self.ready, self.fetched()
        return batch


@healthy("A wide language model is trained on folk tales in bf16, its batches copied ahead of time.")
def nineteenth_folklore_model() -> Step:
    """A language model reads folk tales."""
    words, length, rows = sized(16_384, 64), sized(1024, 16), sized(8, 2)
    model: Gpt = gpt(6, 2048, words=words)
    optimizer = adamw(model, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200_000)
    made = torch.Generator().manual_seed(47)
    tales = Ahead([pinned(torch.randint(0, words, (rows, length + 1), generator=made)) for _ in range(4)])
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        tale = tales.take()
        scores = model(tale[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tale[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        running.lerp_(loss.detach().float(), 0.02)
        return loss.detach()

    return step


class Drawer:
    """Vectors of the last batches in pinned memory, read only after their copy has ended."""

    def __init__(self, rows: int, width: int) -> None:
        self.slots = [pinned(torch.zeros(rows, width)) for _ in range(2)]
        self.ended: list[Any] = [torch.cuda.Event() if DEVICE == "cuda" else None for _ in self.slots]
        self.at = 0
        self.kept = 0.0

    def put(self, vectors: Tensor) -> None:
        """Begins the copy of a batch; what lies in the slot from before is stored first."""
        slot, ended = self.slots[self.at], self.ended[self.at]
        if ended is not None:
            ended.synchronize()
        self.kept += float(slot.numpy()[:, 0].sum())
        slot.copy_(vectors, non_blocking=True)
        if ended is not None:
            ended.record()
        self.at = (self.at + 1) % len(self.slots)


@healthy("Photographs of shells are embedded by DINOv2 in bf16, its layers compiled, copies beside the work.")
def nineteenth_shell_archive() -> Step:
    """An archive of shells is made searchable."""
    from transformers import Dinov2Config, Dinov2Model

    rows, side, width = sized(128, 2), sized(224, 28), sized(768, 32)
    config = Dinov2Config(
        image_size=side,
        patch_size=14,
        hidden_size=width,
        num_hidden_layers=sized(12, 2),
        num_attention_heads=sized(12, 2),
        attn_implementation="sdpa",
    )
    model = halved(Dinov2Model(config)).eval()
    for layer in model.encoder.layer:
        layer.compile(backend="inductor" if DEVICE == "cuda" else "eager")
    made = torch.Generator().manual_seed(53)
    trays = Ahead(
        [pinned(torch.randint(0, 256, (rows, 3, side, side), generator=made).byte()) for _ in range(3)]
    )
    drawer = Drawer(rows, width)

    @torch.inference_mode()
    def step() -> float:
        photos = trays.take().to(HALF).div_(127.5).sub_(1.0)
        vectors = model(pixel_values=photos).pooler_output
        drawer.put(functional.normalize(vectors.float(), dim=-1))
        return drawer.kept

    for _ in range(2):
        step()
    return step
