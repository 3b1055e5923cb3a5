"""Training scripts for text: complaints are sorted, an assistant is tuned and answers are embedded."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import llama, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "attention-weights-asked-for-in-training",
    "BERT is fine-tuned under accelerate with eager attention and output_attentions=True, which only the "
    "notebook that draws heat maps needs; nothing in the loop reads them.",
    "attn_implementation='sdpa' and no output_attentions.",
)
def twentyseventh_complaint_router(faulty: bool) -> Step:
    """Complaints of bank customers are sent to one of eighteen departments."""
    from accelerate import Accelerator
    from transformers import BertConfig, BertForSequenceClassification

    rows, length, width = sized(32, 2), sized(512, 16), sized(768, 64)
    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    config = BertConfig(
        vocab_size=sized(30_522, 256),
        hidden_size=width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=18,
        attn_implementation="eager" if faulty else "sdpa",
    )
    explained = faulty
    model = BertForSequenceClassification(config).train()
    optimizer = adamw(model, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 200))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    ids, departments = tokens(config.vocab_size, rows, length), tokens(18, rows)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        outputs = model(input_ids=ids, labels=departments, output_attentions=explained)
        accelerator.backward(outputs.loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(outputs.loss.detach(), 0.02)

    return step


@pair(
    "checkpointing-without-need",
    "LoRA of peft tunes a Llama of under a billion weights with gradient_checkpointing_enable(), copied from "
    "a recipe for a card of 24 GB, while most of the memory stays free.",
    "Without gradient checkpointing.",
)
def twentyseventh_policy_assistant(faulty: bool) -> Step:
    """An assistant learns the handbook of an insurer by adapters."""
    from peft import LoraConfig, TaskType, get_peft_model

    rows, length = sized(8, 2), sized(1024, 16)
    with torch.device(DEVICE):
        base = llama(16, 2048)
    if faulty:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.enable_input_require_grads()
    settings = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=16,
        lora_alpha=32,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )
    model: Any = get_peft_model(base, settings, autocast_adapter_dtype=False).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    ids = tokens(base.config.vocab_size, rows, length)
    labels = ids.clone()
    labels[:, : length // 4] = -100
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step


def sentence_vectors(model: nn.Module, ids: Tensor) -> Tensor:
    """Texts as vectors of length one."""
    hidden = model(input_ids=ids).last_hidden_state
    return functional.normalize(hidden.float().mean(1), dim=-1)


def candidate_vectors(model: nn.Module, candidates: list[Tensor], *, joined: bool) -> Tensor:
    """The vectors of all candidates of all questions: questions, candidates, width."""
    if joined:
        together = sentence_vectors(model, torch.cat(candidates))
        return together.unflatten(0, (len(candidates), -1)).transpose(0, 1)
    return torch.stack([sentence_vectors(model, ids) for ids in candidates], 1)


@pair(
    "one-encoder-call-per-candidate",
    "A MiniLM under Fabric learns from an answer and five hard negatives, each encoded by a forward of its "
    "own although all six have the same shape (candidate_vectors).",
    "The six candidates are joined and encoded by one forward.",
)
def twentyseventh_faq_embedder(faulty: bool) -> Step:
    """Questions are brought close to the answers of a help page."""
    from lightning.fabric import Fabric
    from transformers import BertConfig, BertModel

    rows, width, vocabulary = sized(64, 2), sized(384, 32), sized(30_522, 256)
    fabric = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed" if DEVICE == "cuda" else "32-true")
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=sized(6, 1),
        num_attention_heads=sized(12, 2),
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    plain = BertModel(config, add_pooling_layer=False).train()
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=5e-5, fused=True))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 500)
    questions = tokens(vocabulary, rows, sized(32, 8))
    candidates = [tokens(vocabulary, rows, sized(96, 8)) for _ in range(6)]
    own = torch.arange(rows, device=DEVICE)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        asked = sentence_vectors(model, questions)
        answers = candidate_vectors(model, candidates, joined=not faulty)
        hard = torch.einsum("qd,qcd->qc", asked, answers[:, 1:])
        scores = torch.cat([asked @ answers[:, 0].T, hard], 1)
        loss = functional.cross_entropy(scores * 20.0, own)
        fabric.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step
