"""A detector of things in a yard, from pictures to boxes."""

from __future__ import annotations

import torch
from benchmarks.faults.models import HALF, ResNet, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn

THINGS = 80
OVERLAP = 0.6


class Detector(nn.Module):
    """Scores and boxes at every place of a coarse grid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = ResNet(width, 2).body
        self.things = nn.Sequential(nn.Conv2d(4 * width, THINGS, 3, padding=1), nn.InstanceNorm2d(THINGS))
        self.boxes = nn.Sequential(nn.Conv2d(4 * width, 4, 3, padding=1), nn.InstanceNorm2d(4))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of things and corners of boxes."""
        x = self.body(pictures)
        scores = self.things(x).flatten(2).transpose(1, 2).float().sigmoid()
        shifts = self.boxes(x).flatten(2).transpose(1, 2).float()
        rows = torch.arange(x.shape[2], device=x.device)
        columns = torch.arange(x.shape[3], device=x.device)
        middle = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).view(-1, 2) * 8.0
        size = 16 * shifts[..., 2:].clamp(-2, 2).exp()
        middle = middle + 4 * shifts[..., :2]
        return scores, torch.cat([middle - size, middle + size], -1)


def kept_by_thing(boxes: Tensor, scores: Tensor, things: Tensor) -> Tensor:
    """The boxes that remain, one kind of thing after another."""
    from torchvision.ops import nms

    kept = []
    for thing in range(THINGS):
        places = torch.nonzero(things == thing).squeeze(1)
        if places.numel() == 0:
            continue
        kept.append(places[nms(boxes[places], scores[places], OVERLAP)])
    joined = torch.cat(kept)
    return joined[scores[joined].argsort(descending=True)]


def kept_together(boxes: Tensor, scores: Tensor, things: Tensor) -> Tensor:
    """The boxes that remain."""
    from torchvision.ops import batched_nms

    found: Tensor = batched_nms(boxes, scores, things, OVERLAP)
    return found


@pair(
    "python-loop-over-classes",
    "Boxes that overlap are removed class by class, in a Python loop that waits for the device each time.",
    "torchvision.ops.batched_nms().",
    light_steps=2,
)
def eleventh_yard_camera(faulty: bool) -> Step:
    """The things on a batch of pictures are listed."""
    candidates = sized(1000, 20)
    model = on_images(Detector(sized(96, 8)), dtype=HALF).eval()
    pictures = images(8, 640)
    kept_of = kept_by_thing if faulty else kept_together

    @torch.inference_mode()
    def step() -> list[tuple[Tensor, Tensor, Tensor]]:
        scores, boxes = model(pictures)
        found = []
        for score, box in zip(scores, boxes, strict=True):
            best, index = score.flatten().topk(candidates)
            place, thing = index // THINGS, index % THINGS
            kept = kept_of(box[place], best, thing)[:100]
            found.append((box[place][kept], best[kept], thing[kept]))
        return found

    return step
