"""The programs that `record_on_gpu.py` records."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from tests.data.record_on_gpu import Recorder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ACTIVITIES = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
EVERYTHING = {"with_stack": True, "record_shapes": True, "profile_memory": True, "with_modules": True}

# ---------------------------------------------------------------- models


class Squares(Dataset[Any]):  # type: ignore[misc]
    """Items that take a moment to make."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        row = torch.randn(512, generator=generator)
        return row, (row * row).sum()


class Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 512, hidden: int = 2048, out: int = 1) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.down = nn.Linear(hidden, out)

    def forward(self, batch: Any) -> Any:
        return self.down(self.norm(functional.gelu(self.up(batch))))


class Block(nn.Module):  # type: ignore[misc]
    """One layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = Mlp(width, 4 * width, width)

    def forward(self, x: Any) -> Any:
        rows, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(x)


class Transformer(nn.Module):  # type: ignore[misc]
    def __init__(self, layers: int = 2, width: int = 512, heads: int = 8, words: int = 1000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words)
        self.checkpointed = False

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.head(x)


class ConvNet(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.second = nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.head = nn.Linear(128, 10)

    def forward(self, images: Any) -> Any:
        x = torch.relu(self.norm(self.first(images)))
        return self.head(torch.relu(self.second(x)).mean((2, 3)))


def next_word_loss(model: Any, tokens: Any) -> Any:
    logits = model(tokens)
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


# ---------------------------------------------------------------- programs


def mlp_loader(record: Recorder) -> None:
    """Training fed by worker processes through pinned memory."""
    model = Mlp().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loader = DataLoader(Squares(), batch_size=64, num_workers=2, pin_memory=DEVICE == "cuda")
    batches = iter(loader)

    def step(number: int) -> None:
        rows, target = next(batches)
        rows, target = rows.to(DEVICE, non_blocking=True), target.to(DEVICE, non_blocking=True)
        loss = functional.mse_loss(model(rows).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    record(step, steps=3, options=EVERYTHING, samples_per_step=64)


def transformer_accumulation(record: Recorder) -> None:
    """Two micro-steps a step in bf16, fused AdamW, gradients clipped."""
    model = Transformer().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(0, 1000, (8, 256), device=DEVICE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        for _ in range(2):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = next_word_loss(model, tokens) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    parameters = sum(parameter.numel() for parameter in model.parameters())
    record(step, steps=2, options=EVERYTHING, tokens_per_step=2 * 8 * 256, parameters=parameters)


def checkpointed(record: Recorder) -> None:
    """Activations are computed again in the backward pass."""
    model = Transformer().to(DEVICE)
    model.checkpointed = True
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 1000, (8, 256), device=DEVICE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        next_word_loss(model, tokens).backward()
        optimizer.step()

    record(step, steps=2, options=EVERYTHING, tokens_per_step=8 * 256)


def cuda_graph(record: Recorder) -> None:
    """Two eager steps, the capture of the same step, then replays, all inside the profile."""
    model = Mlp().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    batch, target = torch.randn(256, 512, device=DEVICE), torch.randn(256, 1, device=DEVICE)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.mse_loss(model(batch), target).backward()
        optimizer.step()

    def step(number: int) -> None:
        if number < 4:
            with torch.cuda.stream(side):
                train()
            torch.cuda.current_stream().wait_stream(side)
        elif number == 4:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=side):
                train()
        else:
            graph.replay()

    for number in range(3):
        step(number)
    torch.cuda.synchronize()
    plan = schedule(wait=0, warmup=2, active=6, repeat=1)
    with profile(activities=ACTIVITIES, schedule=plan, record_shapes=True, with_stack=True) as profiler:
        for number in range(8):
            step(number)
            profiler.step()
    record.keep(profiler, {"steps": 6, "eager_steps": 2, "captures": 1, "replays": 3})


def compiled(record: Recorder) -> None:
    """A compiled step with a graph break; a new batch size inside the profile compiles it again."""
    first, second = nn.Linear(256, 256).to(DEVICE), nn.Linear(256, 256).to(DEVICE)

    def forward(batch: Any) -> Any:
        hidden = functional.gelu(first(batch)) * 2
        torch._dynamo.graph_break()
        return torch.softmax(second(hidden), -1).square().sum()

    run = torch.compile(forward, dynamic=False)
    small, large = torch.randn(64, 256, device=DEVICE), torch.randn(96, 256, device=DEVICE)

    def step(number: int) -> None:
        run(large if number == 4 else small).backward()

    step.countable = False  # type: ignore[attr-defined]
    record(step, steps=4, recompiled_in_step=4)


def two_streams(record: Recorder) -> None:
    """Compute on one stream, copies from pinned memory on another, tied by events."""
    weights = torch.randn(2048, 2048, device=DEVICE)
    host = [torch.randn(2048, 2048).pin_memory() for _ in range(2)]
    device = [torch.empty(2048, 2048, device=DEVICE) for _ in range(2)]
    back = torch.empty(2048, 2048).pin_memory()
    copies, compute = torch.cuda.Stream(), torch.cuda.Stream()
    arrived = [torch.cuda.Event() for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]

    def step(number: int) -> None:
        for turn in range(2):
            with torch.cuda.stream(copies):
                copies.wait_event(used[turn])
                device[turn].copy_(host[turn], non_blocking=True)
                arrived[turn].record(copies)
        product = weights
        for turn in range(2):
            with torch.cuda.stream(compute):
                compute.wait_event(arrived[turn])
                product = device[turn] @ weights @ weights
                used[turn].record(compute)
        with torch.cuda.stream(copies):
            copies.wait_stream(compute)
            back.copy_(product, non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)

    record(step, steps=3, copied_bytes_per_step=3 * 2048 * 2048 * 4)


def decoding(*, ranges: bool) -> Callable[[], None]:
    """A loop that makes one word after another."""
    model = Transformer().to(DEVICE, torch.float16 if DEVICE == "cuda" else torch.float32).eval()
    words = 6

    def decode() -> None:
        tokens = torch.randint(0, 1000, (4, 32), device=DEVICE)
        for number in range(words):
            if ranges:
                with record_function(f"decode {number}"):
                    tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
            else:
                tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
        tokens.cpu()

    def without_gradients() -> None:
        with torch.inference_mode():
            decode()

    return without_gradients


def decode_ranges(record: Recorder) -> None:
    """Inference without marks, every word in a range of its own."""
    record.plain(decoding(ranges=True), iterations=6)


def decode_bare(record: Recorder) -> None:
    """The same without any range."""
    record.plain(decoding(ranges=False), iterations=6)


def launch_blocking(record: Recorder) -> None:
    """Every launch waits for its kernel (CUDA_LAUNCH_BLOCKING=1)."""
    model = Mlp().to(DEVICE)
    batch = torch.randn(256, 512, device=DEVICE)

    def step(number: int) -> None:
        model(batch).sum().backward()

    record(step, steps=2)


def matmuls(record: Recorder) -> None:
    """Matrix products of every data type, of even and of odd sizes."""
    work: list[tuple[str, Callable[[], Any]]] = []
    sizes = {"even": (1024, 2048, 512), "odd": (1000, 1001, 999)}
    for kind, (m, k, n) in sizes.items():
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            a, b = (torch.randn(*size, device=DEVICE).to(dtype) for size in ((m, k), (k, n)))
            work.append((f"{dtype} {kind}", partial(torch.matmul, a, b)))
            if dtype == torch.float32:
                work.append((f"tf32 {kind}", partial(with_tf32, a, b)))
    work.append(("fp8", fp8_product(1024, 2048, 512)))
    work.append(("int8", int8_product(1024, 2048, 512)))
    batched = torch.randn(16, 256, 128, device=DEVICE, dtype=torch.bfloat16)
    work.append(("batched", lambda: torch.bmm(batched, batched.transpose(1, 2))))

    def step(number: int) -> None:
        for name, product in work:
            with record_function(name):
                product()

    record(step, steps=2, products=[name for name, _ in work], sizes=sizes)


def with_tf32(a: Any, b: Any) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def fp8_product(m: int, k: int, n: int) -> Callable[[], Any]:
    a = torch.randn(m, k, device=DEVICE).to(torch.float8_e4m3fn)
    b = torch.randn(n, k, device=DEVICE).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=DEVICE)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def int8_product(m: int, k: int, n: int) -> Callable[[], Any]:
    a = torch.randint(-9, 9, (m, k), device=DEVICE, dtype=torch.int8)
    b = torch.randint(-9, 9, (n, k), device=DEVICE, dtype=torch.int8).t()
    return lambda: torch._int_mm(a, b)


def attention(record: Recorder) -> None:
    """Attention by each of torch's ways, and written by hand; forward and backward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    size = (4, 8, 512, 64)
    query, key, value = (
        torch.randn(*size, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    ways = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }

    def step(number: int) -> None:
        for name, way in ways.items():
            with record_function(name), sdpa_kernel(way):
                functional.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()
        with record_function("by hand"):
            scores = query @ key.transpose(-2, -1) / size[-1] ** 0.5
            (torch.softmax(scores, -1) @ value).sum().backward()

    record(step, steps=2, ways=[*ways, "by hand"], size=size)


def leak(record: Recorder) -> None:
    """Every step keeps one more tensor."""
    model = Mlp().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    kept: list[Any] = []

    def step(number: int) -> None:
        loss = model(torch.randn(128, 512, device=DEVICE)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(torch.ones(1 << 20, device=DEVICE))

    parameters = sum(parameter.numel() for parameter in model.parameters())
    record(step, steps=4, options=EVERYTHING, leaked_bytes_per_step=4 << 20, parameters=parameters)


def nccl(record: Recorder) -> None:
    """One rank alone: DistributedDataParallel and collectives of their own."""
    from torch import distributed

    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        distributed.init_process_group("nccl", init_method=meeting, rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(Mlp().to(DEVICE), device_ids=[0])
        batch = torch.randn(128, 512, device=DEVICE)
        whole, part = torch.randn(1 << 20, device=DEVICE), torch.empty(1 << 20, device=DEVICE)

        def step(number: int) -> None:
            model(batch).sum().backward()
            distributed.all_reduce(whole)
            distributed.all_reduce(whole, op=distributed.ReduceOp.AVG)
            distributed.all_gather_into_tensor(part, whole)
            distributed.reduce_scatter_tensor(part, whole, op=distributed.ReduceOp.AVG)

        step.countable = False  # type: ignore[attr-defined]
        record(step, steps=2)
        distributed.destroy_process_group()


def convolution(record: Recorder) -> None:
    """A small convolutional net in fp16 with scaled gradients, channels last."""
    model = ConvNet().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    scaler = torch.amp.GradScaler(DEVICE)
    images = torch.randn(32, 3, 64, 64, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (32,), device=DEVICE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16 if DEVICE == "cuda" else torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    record(step, steps=2, samples_per_step=32)


def waits(record: Recorder) -> None:
    """What a training loop should not do: scalar reads, pageable copies, memory given back every step."""
    model = Mlp().to(DEVICE)
    rows = torch.randn(256, 512)

    def step(number: int) -> None:
        batch = rows.to(DEVICE)
        loss = model(batch).square().mean()
        loss.backward()
        if loss.item() < 0:
            raise ArithmeticError("a square is negative")
        batch[batch > 0].sum().tolist()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            del batch, loss
            torch.cuda.empty_cache()
        model.zero_grad()

    record(step, steps=2, options={"with_stack": True, "record_shapes": True}, samples_per_step=256)


PROGRAMS: dict[str, Callable[[Recorder], None]] = {
    program.__name__: program
    for program in (
        mlp_loader, transformer_accumulation, checkpointed, cuda_graph, compiled, two_streams, decode_ranges,
        decode_bare, launch_blocking, matmuls, attention, leak, nccl, convolution, waits,
    )
}  # fmt: skip
