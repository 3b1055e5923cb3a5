"""Programs on accelerate, Lightning and others: what happens around the model in a loop of training."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks.faults.library_models import bert, llama, noise, tokens, training
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

PRECISION = "bf16" if DEVICE == "cuda" else "no"


@pair(
    "tiny-micro-batches",
    "Accelerate gathers the gradients of a Whisper over eight batches of two sounds.",
    "One batch has all sixteen.",
    light_steps=2,
    full=False,
)
def library_tiny_micro_batches(faulty: bool) -> Step:
    """Eight times the launches, each kernel too small to fill the device."""
    from accelerate import Accelerator
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    width, parts = sized(384, 64), 8 if faulty else 1
    config = WhisperConfig(
        vocab_size=sized(4096, 64),
        d_model=width,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=width // 64,
        decoder_attention_heads=width // 64,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=sized(500, 50),
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    accelerator = Accelerator(
        gradient_accumulation_steps=parts, mixed_precision=PRECISION, cpu=DEVICE == "cpu"
    )
    model = WhisperForConditionalGeneration(config)
    model, optimizer = accelerator.prepare(model, adamw(model, fused=DEVICE == "cuda"))
    sounds = noise(16, 80, 2 * config.max_source_positions, dtype=torch.float32)
    labels = tokens(60, 16, sized(48, 8))

    def step() -> None:
        for some, said in zip(sounds.chunk(parts), labels.chunk(parts), strict=True):
            with accelerator.accumulate(model):
                accelerator.backward(model(input_features=some, labels=said).loss)
                optimizer.step()
                optimizer.zero_grad()

    return step


@pair(
    "gradients-through-gloo",
    "DistributedDataParallel averages the gradients of an encoder by way of gloo, that is, of the CPU.",
    "nccl.",
)
def library_gloo_in_place_of_nccl(faulty: bool) -> Step:
    """Gradients are copied to the CPU and back."""
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    backend = "gloo" if faulty or DEVICE == "cpu" else "nccl"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    model = bert(3, 1024, attn_implementation="sdpa")
    run = DistributedDataParallel(model, device_ids=[0] if DEVICE == "cuda" else None)
    rows = sized(32, 2)
    ids, labels = tokens(200, rows, sized(128, 16)), tokens(10, rows)

    def loss() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            found: Tensor = run(input_ids=ids, labels=labels).loss
        return found

    return training(run, loss)


def fabric_of(model: nn.Module) -> tuple[Any, Any, Any]:
    """Lightning's Fabric with a model and its optimizer."""
    from lightning_fabric import Fabric

    precision: Any = "bf16-mixed" if DEVICE == "cuda" else "32-true"
    fabric = Fabric(accelerator=DEVICE, devices=1, precision=precision)
    module, optimizer = fabric.setup(model, adamw(model))
    return fabric, module, optimizer


@pair(
    "histograms-of-all-weights",
    "Every second step the weights of an encoder are taken to numpy, and their histograms are logged.",
    "Histograms are not made in the loop.",
)
def library_histograms(faulty: bool) -> Step:
    """Millions of numbers are counted by numpy while the device waits."""
    import numpy as np

    fabric, model, optimizer = fabric_of(bert(2, 512, attn_implementation="sdpa"))
    rows, count = sized(32, 2), 0
    ids, labels = tokens(200, rows, sized(128, 16)), tokens(10, rows)
    log = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it is open as long as the program

    def histograms() -> None:
        for name, weights in model.named_parameters():
            if weights.ndim == 2 and weights.shape[0] <= 2048:
                counts, edges = np.histogram(weights.detach().cpu().numpy(), bins=64)
                log.write(json.dumps({"name": name, "counts": counts.tolist(), "edges": edges.tolist()}))

    def step() -> None:
        nonlocal count
        fabric.backward(model(input_ids=ids, labels=labels).loss)
        optimizer.step()
        optimizer.zero_grad()
        count += 1
        if faulty and count % 2 == 0:
            histograms()

    return step


@pair(
    "checkpoint-every-other-step",
    "accelerator.save_state() is called every second step: save_steps was set for a test.",
    "Checkpoints are left to the end.",
)
def library_saved_too_often(faulty: bool) -> Step:
    """Weights and moments are copied and written while the device waits."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision=PRECISION, cpu=DEVICE == "cpu")
    model = bert(2, 256, attn_implementation="sdpa")
    model, optimizer = accelerator.prepare(model, adamw(model))
    folder, rows, count = tempfile.mkdtemp(), sized(32, 2), 0
    ids, labels = tokens(200, rows, sized(128, 16)), tokens(10, rows)

    def step() -> None:
        nonlocal count
        accelerator.backward(model(input_ids=ids, labels=labels).loss)
        optimizer.step()
        optimizer.zero_grad()
        count += 1
        if faulty and count % 2 == 0:
            accelerator.save_state(folder)

    return step


@pair(
    "garbage-collected-in-every-step",
    "gc.collect() at the end of each step, left from a search for a leak.",
    "It is not called.",
)
def library_collecting_garbage(faulty: bool) -> Step:
    """Python walks through all its objects; the device has long finished."""
    model = llama(3, 768)
    ids = tokens(128, 4, sized(256, 16))
    inner = training(model, lambda: model(input_ids=ids, labels=ids).loss)

    def step() -> None:
        inner()
        if faulty:
            gc.collect()

    return step


@pair(
    "python-loop-over-environments",
    "A policy is asked for the move of each of 24 environments by itself, and each move is read.",
    "It is asked for all of them at once.",
    light_steps=2,
)
def library_policy_by_environment(faulty: bool) -> Step:
    """A small network is called for one row at a time, and waited for."""
    from lightning_fabric import Fabric

    count, width = sized(24, 3), sized(512, 16)
    fabric = Fabric(accelerator=DEVICE, devices=1)
    layers = [nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 6)]
    policy = fabric.setup(nn.Sequential(*layers))
    turn = torch.randn(64, 64).numpy() / 8
    state = torch.randn(count, 64).numpy()

    def moves(seen: Any) -> Any:
        if not faulty:
            scores = policy(torch.from_numpy(seen).to(DEVICE))
            return torch.distributions.Categorical(logits=scores, validate_args=False).sample().cpu().numpy()
        found = []
        for row in seen:
            scores = policy(torch.from_numpy(row).to(DEVICE))
            found.append(torch.distributions.Categorical(logits=scores, validate_args=False).sample().item())
        return found

    def step() -> None:
        nonlocal state
        with torch.no_grad():
            for _ in range(2):
                chosen = moves(state)
                state = state @ turn
                for row, move in enumerate(chosen):
                    state[row, move] += 1

    return step


@pair(
    "python-loop-over-tables",
    "A recommender looks 48 features up in 48 small tables, one after another.",
    "All rows lie in one table, looked up at once with an offset for each feature.",
)
def library_many_tables(faulty: bool) -> Step:
    """A few short kernels forward and backward for every table, and a gradient of each."""
    features, size, width, batch = sized(48, 4), sized(2000, 10), 16, sized(4096, 4)
    fabric, model, optimizer = fabric_of(Recommender(features, size, width, faulty=faulty))
    ids, clicks = tokens(size, batch, features), torch.rand(batch, device=DEVICE)

    def step() -> None:
        fabric.backward(functional.binary_cross_entropy_with_logits(model(ids)[:, 0].float(), clicks))
        optimizer.step()
        optimizer.zero_grad()

    return step


class Recommender(nn.Module):
    """Features are looked up, then go through three linear layers."""

    def __init__(self, features: int, size: int, width: int, *, faulty: bool) -> None:
        super().__init__()
        self.split = faulty
        if faulty:
            self.tables = nn.ModuleList(nn.Embedding(size, width) for _ in range(features))
        else:
            self.table = nn.Embedding(features * size, width)
        self.register_buffer("starts", torch.arange(features) * size)
        inner = [nn.Linear(features * width, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
        self.top = nn.Sequential(*inner, nn.Linear(512, 1))

    def forward(self, ids: Tensor) -> Tensor:
        """The score of each row."""
        if self.split:
            found = torch.cat([table(ids[:, place]) for place, table in enumerate(self.tables)], 1)
        else:
            found = self.table(ids + self.starts).flatten(1)
        scores: Tensor = self.top(found)
        return scores


@pair(
    "norm-of-each-gradient-logged",
    "Lightning's grad_norm() of every parameter is logged as a number in every step.",
    "The norm that clip_gradients computes anyway stays on the device.",
)
def library_grad_norms(faulty: bool) -> Step:
    """A norm and a wait for each of some hundred tensors."""
    from pytorch_lightning.utilities import grad_norm

    fabric, model, optimizer = fabric_of(bert(4, 512, attn_implementation="sdpa"))
    rows = sized(32, 2)
    ids, labels = tokens(200, rows, sized(128, 16)), tokens(10, rows)
    log: dict[str, Any] = {}

    def step() -> None:
        fabric.backward(model(input_ids=ids, labels=labels).loss)
        if faulty:
            log.update({name: float(norm) for name, norm in grad_norm(model, norm_type=2).items()})
        log["total"] = fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "weights-kept-on-the-cpu",
    "accelerate.cpu_offload(): the weights of a Llama that would fit come from the CPU for every call.",
    "The model lives on the device.",
)
def library_weights_offloaded(faulty: bool) -> Step:
    """Each layer's weights are copied right before it runs."""
    from accelerate import cpu_offload

    model = llama(4, 1024).eval()
    if faulty:
        model = cpu_offload(model.cpu(), execution_device=torch.device(DEVICE))
    ids = tokens(128, 8, sized(256, 16))

    def step() -> None:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)

    return step
