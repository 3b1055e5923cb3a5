"""Programs on timm and torchvision: pictures and clips."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import autocast, halved, noise, tokens, training
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def made(name: str, tiny: str, **options: Any) -> Any:
    """A model of timm with random weights; a tiny one where there is no device."""
    import timm

    return timm.create_model(name if DEVICE == "cuda" else tiny, pretrained=False, **options).to(DEVICE)


def classifying(model: nn.Module, pictures: Tensor, labels: Tensor) -> Any:
    """The loss of a classifier under autocast."""

    def loss() -> Tensor:
        with autocast():
            return functional.cross_entropy(model(pictures), labels)

    return loss


@pair(
    "optimizer-tensor-by-tensor",
    'timm\'s create_optimizer_v2(opt="adan", foreach=False) updates a small ViT tensor by tensor.',
    "foreach=True.",
)
def library_adan_in_a_loop(faulty: bool) -> Step:
    """A dozen short kernels for each of a hundred tensors."""
    from timm.optim import create_optimizer_v2

    model = made("vit_tiny_patch16_224", "vit_tiny_patch16_224", num_classes=10, depth=sized(8, 1))
    optimizer = create_optimizer_v2(model, opt="adan", lr=1e-4, weight_decay=0.02, foreach=not faulty)
    rows = sized(64, 1)
    pictures, labels = noise(rows, 3, 224, 224, dtype=torch.float32), tokens(10, rows)
    return training(model, classifying(model, pictures, labels), optimizer)


@pair(
    "python-loop-over-classes",
    "A detector suppresses overlapping boxes class by class: a mask, then nms, for each of 40 classes.",
    "torchvision.ops.batched_nms.",
)
def library_nms_by_class(faulty: bool) -> Step:
    """A mask that waits for the device, and a few short kernels, for every class."""
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.ops import batched_nms, nms

    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    model, classes = halved(backbone).eval(), sized(40, 3)
    head = halved(nn.Conv2d(256, classes + 4, 1))
    pictures = noise(2, 3, sized(512, 64), sized(512, 64))

    def kept(boxes: Tensor, scores: Tensor, kinds: Tensor) -> Tensor:
        if not faulty:
            return boxes[batched_nms(boxes, scores, kinds, 0.5)]
        found = []
        for kind in range(classes):
            own = boxes[kinds == kind]
            found.append(own[nms(own, scores[kinds == kind], 0.5)])
        return torch.cat(found)

    def step() -> None:
        with torch.no_grad():
            maps = head(model(pictures)["0"]).flatten(2).transpose(1, 2).float()
            for one in maps:
                scores, kinds = one[:, 4:].max(1)
                scores, best = scores.topk(min(1000, len(scores)))
                corner, size = one[best, :2] * 100, one[best, 2:4].exp() * 20
                kept(torch.cat([corner, corner + size], 1), scores, kinds[best])

    return step


@pair(
    "metric-on-the-cpu",
    "A segmentation network takes its map of every batch to the CPU for torchmetrics' JaccardIndex.",
    "The metric lives on the device and does not check its arguments.",
)
def library_jaccard_on_cpu(faulty: bool) -> Step:
    """Millions of pixels are copied and counted on the CPU before the backward pass."""
    from torchmetrics.classification import MulticlassJaccardIndex
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    classes, rows, side = 21, sized(16, 1), sized(384, 64)
    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=classes).to(DEVICE)
    model.train()
    metric = MulticlassJaccardIndex(classes, validate_args=faulty).to("cpu" if faulty else DEVICE)
    pictures = noise(max(rows, 2), 3, side, side, dtype=torch.float32)
    labels = tokens(classes, len(pictures), side, side)

    def loss() -> Tensor:
        with autocast():
            scores = model(pictures)["out"]
        guesses = scores.detach().argmax(1)
        metric.update(*((guesses.cpu(), labels.cpu()) if faulty else (guesses, labels)))
        return functional.cross_entropy(scores.float(), labels)

    return training(model, loss)


@pair(
    "python-loop-over-frames",
    "Clips of 16 frames go through a ResNet of timm frame by frame, then through an LSTM.",
    "All frames of all clips are one batch.",
    light_steps=2,
)
def library_frames_one_by_one(faulty: bool) -> Step:
    """Sixteen small calls in place of one."""
    frames, rows, side = sized(16, 3), 4, sized(112, 64)
    net = made("resnet18", "resnet10t", num_classes=0).to(memory_format=torch.channels_last)
    memory = nn.LSTM(512, sized(512, 16), batch_first=True).to(DEVICE)
    head = nn.Linear(sized(512, 16), 10).to(DEVICE)
    clips, labels = noise(rows, frames, 3, side, side, dtype=torch.float32), tokens(10, rows)

    def loss() -> Tensor:
        with autocast():
            if faulty:
                seen = torch.stack([net(clips[:, frame]) for frame in range(frames)], 1)
            else:
                seen = net(clips.flatten(0, 1)).unflatten(0, (rows, frames))
            return functional.cross_entropy(head(memory(seen)[0][:, -1]), labels)

    return training(nn.ModuleList([net, memory, head]), loss)


class Graphs:
    """CUDA graphs of a model, one for each size of batch; the four used last are kept."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.kept: dict[int, tuple[Any, Tensor, Tensor]] = {}

    def __call__(self, pictures: Tensor) -> Tensor:
        """What the model says, by the graph for so many pictures."""
        if DEVICE == "cpu":
            return self.model(pictures)
        size = len(pictures)
        if size not in self.kept:
            while len(self.kept) >= 4:
                self.kept.pop(next(iter(self.kept)))
            self.kept[size] = self.recorded(pictures.clone())
        graph, given, found = self.kept[size]
        given.copy_(pictures)
        graph.replay()
        return found

    def recorded(self, given: Tensor) -> tuple[Any, Tensor, Tensor]:
        """A graph, where it reads and where it writes."""
        self.model(given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self.model(given)
        return graph, given, found


@pair(
    "cuda-graphs-recorded-again",
    "A served ViT keeps CUDA graphs for four sizes of batch, but batches come in sixty sizes.",
    "Batches are padded to one size.",
)
def library_graph_for_every_batch(faulty: bool) -> Step:
    """Nearly every request is recorded before it can be replayed."""
    model = halved(made("vit_tiny_patch16_224", "vit_tiny_patch16_224", num_classes=10, depth=sized(6, 1)))
    most = sized(64, 8)
    pictures, run, count = noise(most, 3, 224, 224), Graphs(model.eval()), 0

    def step() -> None:
        nonlocal count
        count += 1
        size = 1 + (37 * count) % (most - 1)
        with torch.no_grad():
            if faulty:
                run(pictures[:size])
            else:
                run(pictures)[:size].clone()

    return step


@pair(
    "frozen-teacher-with-gradients",
    "Distillation: the teacher runs without torch.no_grad(), and the loss goes back through it.",
    "The teacher runs in torch.no_grad().",
)
def library_teacher_with_gradients(faulty: bool) -> Step:
    """The teacher keeps its activations, and gets gradients that nobody asked for."""
    student = made("convnext_atto", "test_convnext", num_classes=100)
    teacher = made("convnext_small", "test_convnext", num_classes=100).eval()
    rows, side = sized(64, 2), sized(192, 64)
    pictures = noise(rows, 3, side, side, dtype=torch.float32)

    def loss() -> Tensor:
        with autocast():
            with torch.set_grad_enabled(faulty):
                told = teacher(pictures)
            said = student(pictures)
        return functional.kl_div(
            said.float().log_softmax(-1), told.float().softmax(-1), reduction="batchmean"
        )

    return training(student, loss)
