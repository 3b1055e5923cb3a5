"""Programs that answer: text, adapters, pictures drawn from words, and calls that are sorted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import halved, llama, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn

PENALTY = 1.2


@pair(
    "repetition-penalty-row-by-row",
    "A home-made penalty for words said before goes over the rows in Python, with torch.unique() for each.",
    "generate(repetition_penalty=...), which gathers and scatters for all rows at once.",
    light_steps=2,
)
def twelfth_tale_teller(faulty: bool) -> Step:
    """A Llama goes on with a batch of tales."""
    from transformers import LogitsProcessor, LogitsProcessorList

    class SaidBefore(LogitsProcessor):
        """Makes the words of each text less likely."""

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            scores = scores.clone()
            for row, ids in enumerate(input_ids):
                said = ids.unique()
                before = scores[row, said]
                scores[row, said] = torch.where(before < 0, before * PENALTY, before / PENALTY)
            return scores

    rows, length, count = sized(32, 2), sized(512, 8), sized(12, 3)
    model = llama(6, 1024, words=32_000).eval()
    prompt = tokens(sized(30_000, 100), rows, length) + 2
    options: dict[str, Any] = (
        {"logits_processor": LogitsProcessorList([SaidBefore()])}
        if faulty
        else {"repetition_penalty": PENALTY}
    )

    def step() -> Tensor:
        written: Tensor = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            **options,
        )
        return written

    return step


@pair(
    "requests-served-one-by-one",
    "Each request is run by itself after set_adapter() has chosen its customer's LoRA weights.",
    "All requests go in one batch with adapter_names=[...].",
)
def twelfth_help_desk(faulty: bool) -> Step:
    """Requests of several customers are answered, each by the customer's own adapter."""
    from peft import LoraConfig, get_peft_model

    requests, length = sized(8, 4), sized(768, 8)
    config = LoraConfig(
        r=16,
        lora_alpha=32,
        target_modules=["q_proj", "v_proj", "o_proj"],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    customers = [f"customer{number}" for number in range(4)]
    with torch.device(DEVICE):
        base = llama(6, 2048)
    model: Any = get_peft_model(base, config, adapter_name=customers[0])
    for customer in customers[1:]:
        model.add_adapter(customer, config)
    model = halved(model).eval()
    asked = tokens(128, requests, length)
    whose = [customers[number % len(customers)] for number in range(requests)]

    def one_by_one() -> Tensor:
        found = []
        for customer, request in zip(whose, asked, strict=True):
            model.set_adapter(customer)
            answer = model(input_ids=request[None], use_cache=False, logits_to_keep=1)
            found.append(answer.logits[:, -1])
        return torch.cat(found)

    def together() -> Tensor:
        answers = model(input_ids=asked, use_cache=False, logits_to_keep=1, adapter_names=whose)
        last: Tensor = answers.logits[:, -1]
        return last

    def step() -> Tensor:
        with torch.no_grad():
            scores = one_by_one() if faulty else together()
        return scores.argmax(-1)

    return step


class Painter(nn.Module):
    """A transformer that takes noise away from patches beside which it sees the words."""

    def __init__(self, width: int, layers: int, heads: int, told: int, channels: int) -> None:
        super().__init__()
        from timm.models.vision_transformer import Block

        self.enter = nn.Linear(channels, width)
        self.told = nn.Linear(told, width)
        self.time = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width, heads, qkv_bias=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, channels)

    def forward(self, patches: Tensor, phase: Tensor, told: Tensor) -> Tensor:
        """The noise that is guessed in every patch."""
        x = torch.cat([self.told(told), self.enter(patches) + self.time(phase)], 1)
        for block in self.blocks:
            x = block(x)
        return self.leave(self.norm(x[:, told.shape[1] :]))


@pair(
    "words-encoded-in-every-round",
    "The text encoder is run again in every round of the sampling, although the words stay the same.",
    "It is run once, before the rounds.",
    light_steps=2,
)
def twelfth_poster_maker(faulty: bool) -> Step:
    """Posters are drawn from words by guided sampling."""
    from transformers import CLIPTextConfig, CLIPTextModel

    rows, length, patches, channels = sized(4, 1), 77, sized(400, 16), 64
    width, rounds = sized(1024, 64), sized(10, 2)
    told = sized(768, 64)
    config = CLIPTextConfig(
        hidden_size=told,
        intermediate_size=4 * told,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=max(1, told // 64),
    )
    encoder = halved(CLIPTextModel(config)).eval()
    painter = halved(Painter(width, sized(12, 1), max(1, width // 64), told, channels)).eval()
    prompts = tokens(40_000, 2 * rows, length)  # what is asked for, and nothing, for the guidance
    levels = torch.linspace(1.0, 0.0, rounds + 1).tolist()
    angles = torch.exp(-torch.arange(32, device=DEVICE) / 4)

    def words() -> Tensor:
        found: Tensor = encoder(input_ids=prompts).last_hidden_state
        return found

    def drawn(start: Tensor) -> Tensor:
        x = start
        known = None if faulty else words()
        for now, after in pairwise(levels):
            phase = torch.cat([torch.sin(1000 * now * angles), torch.cos(1000 * now * angles)])
            seen = words() if known is None else known
            both = painter(torch.cat([x, x]), phase.to(HALF), seen)
            asked, plain = both.chunk(2)
            x = x + (after - now) * (plain + 5.0 * (asked - plain))
        return x

    def step() -> Tensor:
        with torch.no_grad():
            return drawn(noise(rows, patches, channels))

    return step


@pair(
    "log-mel-on-the-cpu",
    "WhisperFeatureExtractor computes the log-mel pictures of 30 s of sound on the CPU, as by default.",
    "It is called with device='cuda'.",
)
def twelfth_call_center(faulty: bool) -> Step:
    """Calls are sorted by the encoder of a Whisper."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForAudioClassification

    rows, seconds = sized(16, 1), sized(30, 1)
    width = sized(512, 64)
    config = WhisperConfig(
        d_model=width,
        encoder_layers=sized(6, 1),
        decoder_layers=1,
        encoder_attention_heads=max(1, width // 64),
        decoder_attention_heads=max(1, width // 64),
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=width,
        num_labels=12,
    )
    model = halved(WhisperForAudioClassification(config)).eval()
    extractor = WhisperFeatureExtractor()
    rng = np.random.default_rng(3)
    calls = [rng.standard_normal(16_000 * seconds, dtype=np.float32) for _ in range(rows)]
    where = "cpu" if faulty else DEVICE

    def step() -> Tensor:
        heard = extractor(calls, sampling_rate=16_000, return_tensors="pt", device=where)
        with torch.no_grad():
            scores: Tensor = model(input_features=heard["input_features"].to(DEVICE, HALF)).logits
        return scores.argmax(-1).cpu()

    return step
