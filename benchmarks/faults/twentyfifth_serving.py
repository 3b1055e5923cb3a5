"""Services that write, rank and paint."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import halved, llama, noise, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor


@pair(
    "lora-adapters-not-merged",
    "A fine-tuned Llama is served as a PeftModel: every linear layer also runs its two small adapter layers.",
    "merge_and_unload() once after loading.",
)
def tone_rewriter(faulty: bool) -> Step:
    """Mails are rewritten in a friendlier tone."""
    from peft import LoraConfig, get_peft_model

    base = llama(12, 1024, words=32_000)
    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
    model: Any = get_peft_model(base, config)
    if not faulty:
        model = model.merge_and_unload()
    model.eval()
    mails = tokens(sized(32_000, 128), sized(4, 2), sized(96, 8))
    seen = torch.ones_like(mails)

    @torch.inference_mode()
    def step() -> Tensor:
        written = model.generate(
            input_ids=mails, attention_mask=seen, max_new_tokens=sized(6, 3), do_sample=False, pad_token_id=0
        )
        return written[:, mails.shape[1] :].cpu()

    return step


@pair(
    "guidance-in-two-passes",
    "The sampler calls the U-Net twice at every time, with the prompt and without it.",
    "One call with both in a batch of two.",
)
def mural_sampler(faulty: bool) -> Step:
    """Sketches of murals are drawn from a prompt, in a few steps."""
    from diffusers import DDIMScheduler, UNet2DConditionModel

    width, side, told = sized(128, 32), sized(64, 8), sized(512, 32)
    unet: Any = halved(
        UNet2DConditionModel(
            sample_size=side,
            block_out_channels=(width, 2 * width, 4 * width),
            layers_per_block=sized(2, 1),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=told,
            attention_head_dim=8,
        )
    ).eval()
    scheduler: Any = DDIMScheduler(num_train_timesteps=1000)
    scheduler.set_timesteps(sized(4, 2), device=DEVICE)
    prompt, nothing = noise(1, 77, told), noise(1, 77, told)
    both = torch.cat([nothing, prompt])
    strength = 7.5

    @torch.inference_mode()
    def step() -> Tensor:
        latents = noise(1, 4, side, side)
        for time in scheduler.timesteps:
            if faulty:
                without = unet(latents, time, encoder_hidden_states=nothing).sample
                guided = unet(latents, time, encoder_hidden_states=prompt).sample
            else:
                twice = torch.cat([latents, latents])
                without, guided = unet(twice, time, encoder_hidden_states=both).sample.chunk(2)
            predicted = without + strength * (guided - without)
            latents = scheduler.step(predicted, time, latents).prev_sample
        return latents

    return step


def penalised_each(scores: Tensor, said: Tensor, penalty: float) -> Tensor:
    """Scores with those of the words already said made smaller."""
    for row in range(scores.shape[0]):
        for word in set(said[row].tolist()):
            if scores[row, word] < 0:
                scores[row, word] *= penalty
            else:
                scores[row, word] /= penalty
    return scores


def penalised(scores: Tensor, said: Tensor, penalty: float) -> Tensor:
    """Scores with those of the words already said made smaller."""
    chosen = scores.gather(1, said)
    chosen = torch.where(chosen < 0, chosen * penalty, chosen / penalty)
    return scores.scatter(1, said, chosen)


@pair(
    "repetition-penalty-word-by-word",
    "Sampling asks and changes the score of every word said so far, one at a time, in two Python loops.",
    "gather, where and scatter over the whole batch.",
)
def recipe_narrator(faulty: bool) -> Step:
    """Recipes are told by a small language model."""
    words = sized(32_000, 128)
    model = llama(12, 1024, words=words).eval()
    prompts = tokens(words, sized(4, 2), sized(56, 8))
    penalise = penalised_each if faulty else penalised

    @torch.inference_mode()
    def step() -> Tensor:
        said, given, cache = prompts, prompts, None
        for _ in range(sized(4, 2)):
            answer = model(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = answer.past_key_values
            scores = penalise(answer.logits[:, -1].float(), said, 1.2)
            best, places = torch.topk(scores / 0.8, min(50, words))
            drawn = torch.multinomial(torch.softmax(best, -1), 1)
            given = places.gather(1, drawn)
            said = torch.cat([said, given], 1)
        return said[:, prompts.shape[1] :].cpu()

    return step


@pair(
    "scores-of-all-positions-for-the-last",
    "A Qwen3 reranker reads logits[:, -1] of yes and no; its head is run at all positions over 152k words.",
    "logits_to_keep=1: the head is run at the last position alone.",
)
def claim_reranker(faulty: bool) -> Step:
    """Passages are ranked by whether they support a claim."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    width, words = sized(1024, 64), sized(151_936, 256)
    config = Qwen3Config(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(16, 2),
        num_key_value_heads=sized(8, 1),
        head_dim=sized(128, 32),
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    model = halved(Qwen3ForCausalLM(config)).eval()
    pairs = tokens(words, sized(20, 2), sized(512, 16))
    yes, no = sized(9693, 7), sized(2152, 9)
    options: dict[str, Any] = {} if faulty else {"logits_to_keep": 1}

    @torch.inference_mode()
    def step() -> list[float]:
        scores = model(input_ids=pairs, use_cache=False, **options).logits[:, -1, :]
        chosen = torch.stack([scores[:, no], scores[:, yes]], 1).float()
        return torch.log_softmax(chosen, 1)[:, 1].exp().tolist()

    return step
