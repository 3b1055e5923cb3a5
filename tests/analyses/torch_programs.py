"""Small programs for torch on a CPU, recorded where a test needs what torch itself says of a profile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[], None]


def mlp(torch: Any) -> Step:
    """Training fed by a loader in the same process."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.utils.data.TensorDataset(torch.randn(64, 8))
    batches = iter(torch.utils.data.DataLoader(rows, batch_size=4))

    def step() -> None:
        (batch,) = next(batches)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def convolution(torch: Any) -> Step:
    """Convolutions, normalisation and an optimizer that handles all parameters at once."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(2),
    )
    images = torch.randn(2, 3, 8, 8)
    model(images)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), torch.zeros(2, dtype=torch.long)).backward()
        optimizer.step()

    return step


def transformer(torch: Any) -> Step:
    """Attention, gradients clipped and accumulated, layers computed again in the backward pass."""
    layers = [
        torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(2)
    ]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimizer = torch.optim.AdamW(parameters)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(2, 5, 16, requires_grad=True)
            for layer in layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            x.mean().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def ranges(torch: Any) -> Step:
    """Ranges in ranges, ranges of the name of an operator, and ranges inside operators."""

    class Twice(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            with torch.profiler.record_function("twice, forward"):
                return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            with torch.profiler.record_function("twice, backward"), torch.profiler.record_function("inner"):
                return gradient * 2

    def step() -> None:
        x = torch.randn(4, requires_grad=True)
        with torch.profiler.record_function("outer"), torch.profiler.record_function("outer"):
            loss = Twice.apply(Twice.apply(x)).sum()
        with torch.profiler.record_function("aten::add"):
            loss = loss + 1
        loss.backward()

    return step


def threads(torch: Any) -> Step:
    """Forward and backward on several threads at once."""

    def work() -> None:
        for _ in range(3):
            x = torch.randn(16, 16, requires_grad=True)
            torch.softmax(x @ x, -1).sum().backward()

    def step() -> None:
        started = [threading.Thread(target=work) for _ in range(3)]
        for thread in started:
            thread.start()
        work()
        for thread in started:
            thread.join()

    return step


PROGRAMS = {program.__name__: program for program in (mlp, convolution, transformer, ranges, threads)}
OPTIONS = {
    "bare": {},
    "everything": {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_modules": True},
}


def record(torch: Any, name: str, options: dict[str, bool], path: Path) -> Any:
    """Records three steps of a program; the profile goes to a file, the profiler is given back."""
    step = PROGRAMS[name](torch)
    step()
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        experimental_config=everywhere if name == "threads" else None,
        **options,
    ) as profiler:
        for _ in range(3):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return profiler
