"""Trains a small language model: a compiled one, with a line that breaks its graph and shapes that change.

What records it is chosen by the caller: `stepscope run`, `ncu`, or one of its own ways (see `record.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

WORDS, LENGTH, WIDTH, LAYERS, HEADS = 8192, 256, 512, 4, 8
ROWS = 16
LARGEST = 1e4


class Sentences(Dataset[Tensor]):
    """Random words; the last batch of them is smaller than the others."""

    def __init__(self, rows: int) -> None:
        self.words = torch.randint(WORDS, (rows, LENGTH + 1), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        """How many there are."""
        return len(self.words)

    def __getitem__(self, at: int) -> Tensor:
        """One of them."""
        return self.words[at]


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_words = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes positions, then each by itself."""
        rows, length, _ = x.shape
        parts = self.qkv(self.before_attention(x)).view(rows, length, 3, HEADS, -1)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.before_words(x))))


class Words(nn.Module):
    """A language model that looks at its activations half-way."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """The loss."""
        x = self.embedding(words[:, :-1])
        for at, block in enumerate(self.blocks):
            x = block(x)
            if at == LAYERS // 2 - 1:
                largest = x.detach().abs().max().item()  # breaks the graph
                if largest > LARGEST:
                    raise FloatingPointError(largest)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


class Training:
    """The model, what updates it, and where its words come from."""

    def __init__(self, rows: int) -> None:
        torch.manual_seed(1)
        self.model = Words().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.compiled = torch.compile(self.model)
        self.loader = DataLoader(Sentences(rows), batch_size=ROWS, num_workers=2, persistent_workers=True)

    def batches(self) -> Iterator[Tensor]:
        """One epoch after the other."""
        while True:
            yield from self.loader

    def step(self, words: Tensor) -> Tensor:
        """One update."""
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss: Tensor = self.compiled(words.cuda())
        loss.backward()
        self.optimizer.step()
        return loss


def main() -> None:
    """Trains for some steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--own", type=Path, help="a folder: profile two steps, as programs do by themselves")
    parser.add_argument("--proton", type=Path, help="a folder: have Proton profile the last steps")
    parser.add_argument("--snapshot", type=Path, help="a file: the allocator's history of the last steps")
    parser.add_argument("--memory-gib", type=float, help="fail where more than this would be allocated")
    given = parser.parse_args()
    training = Training(rows=10 * ROWS + ROWS // 2)
    batches = training.batches()
    warm = given.steps - 3
    for _ in range(warm):
        training.step(next(batches))
    with contextlib.ExitStack() as recording:
        profiler = recording.enter_context(profiled(given.own)) if given.own else None
        if given.proton:
            recording.enter_context(proton(given.proton))
        if given.snapshot:
            recording.enter_context(history(given.snapshot, given.memory_gib))
        kept = []
        for _ in range(given.steps - warm):
            words = next(batches)
            loss = training.step(words)
            if given.memory_gib:
                kept.append(grown(training, words))  # more and more of the graph, until there is no room
            if profiler is not None:
                profiler.step()
    sys.stdout.write(f"loss {loss.item():.3f}\n")


def grown(training: Training, words: Tensor) -> Tensor:
    """A loss with its whole graph, of as many rows as there are."""
    return sum((training.model(words.cuda()) for _ in range(50)), torch.zeros((), device="cuda"))


@contextlib.contextmanager
def profiled(folder: Path) -> Iterator[Any]:
    """The profiler with everything it can write: trace, execution trace, memory timeline and snapshot."""
    from torch.profiler import ExecutionTraceObserver, profile, schedule

    folder.mkdir(parents=True, exist_ok=True)
    observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
    options = {"record_shapes": True, "profile_memory": True, "with_stack": True}
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    with profile(schedule=plan, execution_trace_observer=observer, **options) as profiler:
        yield profiler
        torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(str(folder / "snapshot.pickle"))
    profiler.export_chrome_trace(str(folder / "trace.json.gz"))
    profiler.export_memory_timeline(str(folder / "memory.raw.json.gz"), device="cuda:0")
    profiler.export_memory_timeline(str(folder / "memory.json"), device="cuda:0")


@contextlib.contextmanager
def proton(folder: Path) -> Iterator[None]:
    """Proton, the profiler of Triton, with a scope."""
    import triton.profiler

    folder.mkdir(parents=True, exist_ok=True)
    triton.profiler.start(str(folder / "proton"), hook="triton")
    with triton.profiler.scope("steps"):
        yield
        torch.cuda.synchronize()
    triton.profiler.finalize()


@contextlib.contextmanager
def history(path: Path, memory_gib: float | None) -> Iterator[None]:
    """The allocator's history, also where it runs out of memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    if memory_gib:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(memory_gib * 2**30 / total)
    try:
        yield
    except torch.OutOfMemoryError as error:
        sys.stdout.write(f"{error}\n")
    finally:
        torch.cuda.memory._dump_snapshot(str(path))


if __name__ == "__main__":
    main()
