"""Programs with nothing to mend, and one whose mending gains nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from benchmarks.faults.library_models import noise, tokens, training
from benchmarks.faults.models import DEVICE, HALF, Block, on_images, pinned, sized
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "evaluation-with-gradients-recorded",
    "A model is evaluated without torch.no_grad(); the device has the memory, and the kernels are the same.",
    "torch.inference_mode().",
    kind="fair",
)
def fourteenth_leaf_grader(faulty: bool) -> Step:
    """The accuracy of a model that tells plants by their leaves."""
    import timm
    from torchmetrics.classification import MulticlassAccuracy

    rows, side = sized(256, 2), sized(224, 32)
    name = "vit_base_patch16_224" if DEVICE == "cuda" else "vit_tiny_patch16_224"
    model = timm.create_model(name, img_size=side, num_classes=100).to(DEVICE, HALF).eval()
    accuracy = MulticlassAccuracy(100, average="micro", validate_args=False).to(DEVICE)
    leaves = pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8))
    labels = tokens(100, rows)

    def mode() -> AbstractContextManager[object]:
        return nullcontext() if faulty else torch.inference_mode()

    def step() -> Tensor:
        with mode():
            shown = leaves.to(DEVICE, non_blocking=True).to(HALF).div_(127.5).sub_(1.0)
            guess = model(shown).argmax(-1)
            accuracy.update(guess, labels)
            return guess

    return step


class ShelfModel(nn.Module):
    """Finds products on shelves: at each place a box and the scores of some classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from torchvision.models import resnet50

        whole = resnet50()
        self.body = nn.Sequential(*list(whole.children())[:-3])  # until one place for sixteen points
        self.neck = nn.Sequential(nn.Conv2d(1024, 256, 3, padding=1), nn.ReLU(inplace=True))
        self.scores = nn.Conv2d(256, classes, 3, padding=1)
        self.boxes = nn.Conv2d(256, 4, 3, padding=1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (rows, places, classes) and distances to the edges of the boxes (rows, places, 4)."""
        x = self.neck(self.body(images))
        return tuple(part(x).flatten(2).transpose(1, 2) for part in (self.scores, self.boxes))


@healthy("A detector counts products: bf16, channels last, boxes of the whole batch sorted out at once.")
def fourteenth_shelf_counter() -> Step:
    """How many products are on each of sixteen shelves."""
    from torchvision.ops import batched_nms

    rows, side, classes, best = sized(16, 2), sized(640, 64), sized(20, 3), sized(300, 6)
    model = on_images(ShelfModel(classes)).eval()
    shelves = pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8))
    place = torch.arange(side // 16, device=DEVICE) * 16.0 + 8
    centre = torch.stack(torch.meshgrid(place, place, indexing="xy"), -1).view(1, -1, 2)
    shelf = torch.arange(rows, device=DEVICE)[:, None].expand(rows, best).flatten()

    @torch.inference_mode()
    def step() -> list[int]:
        shown = shelves.to(DEVICE, non_blocking=True)
        shown = shown.to(HALF, memory_format=torch.channels_last).div_(255)
        scores, edges = (part.float() for part in model(shown))
        edges = 32 * functional.softplus(edges)
        boxes = torch.cat([centre - edges[..., :2], centre + edges[..., 2:]], -1)
        top = scores.sigmoid().flatten(1).topk(best)
        where = (top.indices // classes)[..., None].expand(-1, -1, 4)
        chosen = boxes.gather(1, where).flatten(0, 1)
        group = shelf * classes + (top.indices % classes).flatten()
        kept = batched_nms(chosen, top.values.flatten(), group, 0.5)
        count = torch.zeros(rows, device=DEVICE)
        return count.index_add_(0, shelf[kept], count.new_ones(len(kept))).tolist()

    return step


class MovesModel(nn.Module):
    """A decision transformer: what was hoped for, seen and done, as a text."""

    def __init__(self, layers: int, width: int, seen: int, acts: int) -> None:
        super().__init__()
        self.hoped = nn.Linear(1, width)
        self.seen = nn.Linear(seen, width)
        self.done = nn.Linear(acts, width)
        self.layers = nn.ModuleList(Block(width, max(1, width // 64), 4 * width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.act = nn.Linear(width, acts)

    def forward(self, hoped: Tensor, seen: Tensor, done: Tensor) -> Tensor:
        """What to do at each moment."""
        parts = torch.stack([self.hoped(hoped), self.seen(seen), self.done(done)], 2)
        x = parts.flatten(1, 2)
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(self.act(self.norm(x[:, 1::3])))


@healthy("A decision transformer learns from recorded moves: bf16, fused attention and optimizer, no waits.")
def fourteenth_kitchen_arm() -> Step:
    """An arm learns to act from what others did."""
    rows, moments, seen, acts = sized(32, 2), sized(256, 8), sized(60, 6), sized(9, 2)
    model = MovesModel(sized(6, 1), sized(1024, 64), seen, acts).to(DEVICE, HALF)
    hoped, states, done = (noise(rows, moments, size) for size in (1, seen, acts))
    running = torch.zeros((), device=DEVICE)

    def loss() -> Tensor:
        found = functional.mse_loss(model(hoped, states, done).float(), done.float().tanh())
        running.lerp_(found.detach(), 0.02)
        return found

    return training(model, loss)
