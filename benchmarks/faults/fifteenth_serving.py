"""Services: one keeps watch over a chat with a tuned language model, one names what is on photos."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import halved, llama
from benchmarks.faults.models import DEVICE, HALF, ResNet, on_images, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter beside it."""

    def __init__(self, base: nn.Linear, rank: int = 16, alpha: int = 32) -> None:
        super().__init__()
        self.base, self.scaling = base, alpha / rank
        self.dropout = nn.Dropout(0.05)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What the layer gives, changed a little."""
        return self.base(x) + self.up(self.down(self.dropout(x))) * self.scaling

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One plain layer that does the same."""
        self.base.weight += (self.up.weight @ self.down.weight) * self.scaling
        return self.base


def adapters(model: nn.Module) -> list[tuple[nn.Module, str, Adapted]]:
    """The adapted layers of a model, and where each is held."""
    return [
        (part, name, layer)
        for part in model.modules()
        for name, layer in part.named_children()
        if isinstance(layer, Adapted)
    ]


@pair(
    "adapters-left-unmerged",
    "The LoRA adapters of a tuned model stay beside all linear layers while it serves: two more products,"
    " a scaling and an addition over the whole output for each layer.",
    "Merge the adapters into the weights once at load (peft: merge_and_unload).",
)
def fifteenth_chat_guard(faulty: bool) -> Step:
    """A language model tuned with LoRA says for each message of a chat whether it may be shown."""
    shown, hidden = 5, 6
    with torch.device(DEVICE):
        model = llama(8, 1024)
        places = [
            (part, name, layer)
            for part in model.modules()
            for name, layer in part.named_children()
            if isinstance(layer, nn.Linear) and name.endswith("_proj")
        ]
        for part, name, layer in places:
            setattr(part, name, Adapted(layer))
    model = halved(model).eval()
    if not faulty:
        for part, name, layer in adapters(model):
            setattr(part, name, layer.merged())
    messages = pinned(torch.randint(2, sized(8192, 128), (sized(64, 2), sized(256, 16))))
    refused = torch.zeros((), device=DEVICE)

    @torch.inference_mode()
    def step() -> list[bool]:
        ids = messages.to(DEVICE, non_blocking=True)
        last = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]
        wrong = last[:, hidden] > last[:, shown]
        refused.add_(wrong.sum())
        return wrong.tolist()

    return step


@pair(
    "images-widened-on-the-host",
    "The photos are made float32 and normalized on the CPU, and cross to the device in four times the bytes"
    " from memory that is not pinned.",
    "Send the uint8 photos from pinned memory and normalize them on the device.",
)
def fifteenth_photo_tagger(faulty: bool) -> Step:
    """A network names what is on the photos of a library, a batch at a time."""
    rows, side = sized(128, 2), sized(224, 32)
    model = on_images(ResNet(64, 2, classes=512)).eval()
    photos = pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8))
    home = "cpu" if faulty else DEVICE
    mean = torch.tensor([0.485, 0.456, 0.406], device=home).view(3, 1, 1)
    spread = torch.tensor([0.229, 0.224, 0.225], device=home).view(3, 1, 1)
    seen = torch.zeros(512, device=DEVICE)

    @torch.inference_mode()
    def step() -> list[list[int]]:
        batch = photos.to(home, non_blocking=True).float().div_(255)
        batch = batch.sub_(mean).div_(spread).to(DEVICE)
        batch = batch.to(HALF, memory_format=torch.channels_last)
        chances = model(batch).float().sigmoid()
        seen.add_(chances.sum(0))
        return chances.topk(5).indices.tolist()

    return step
