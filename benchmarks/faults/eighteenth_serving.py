"""Models that serve: one answers customers, one routes tickets and one paints murals."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import halved, llama, noise, tokenizer, tokens
from benchmarks.faults.models import sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor

STOP = ("word7", "word8")


@pair(
    "all-text-decoded-to-find-the-stop",
    "After each word all rows are copied to the host and turned into text, from their first word on, to see"
    " whether the text ends with the words that stop it; the device waits meanwhile.",
    "Compare the last ids of the rows with the ids of the stop on the device.",
)
def eighteenth_chat_clerk(faulty: bool) -> Step:
    """A chat model answers many customers at once, each until it says the words of farewell."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    rows, asked, said = sized(64, 2), sized(96, 8), sized(16, 4)
    model, words = llama(8, 1024, words=2002).eval(), tokenizer()
    farewell = " " + " ".join(STOP)
    ids = torch.tensor(words.convert_tokens_to_ids(list(STOP)), device=model.device)

    class Farewell(StoppingCriteria):
        """Tells which rows have ended with the words of farewell."""

        def __call__(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
            if faulty:
                texts = words.batch_decode(input_ids, skip_special_tokens=True)
                ended = [text.endswith(farewell) for text in texts]
                return torch.tensor(ended, device=input_ids.device)
            return (input_ids[:, -len(ids) :] == ids).all(-1)

    questions = tokens(sized(2000, 120), rows, asked) + 2
    there = torch.ones_like(questions)
    stops = StoppingCriteriaList([Farewell()])

    @torch.inference_mode()
    def step() -> Tensor:
        return model.generate(
            questions,
            attention_mask=there,
            do_sample=False,
            max_new_tokens=said,
            stopping_criteria=stops,
        )

    return step


@pair(
    "adapter-never-merged",
    "The adapter of LoRA is left beside the weights of the model it belongs to, though it is the only one"
    " that is ever served: each of the linear layers runs two further products, a scaling and an addition.",
    "Merge it once after loading: model = model.merge_and_unload().",
)
def eighteenth_ticket_router(faulty: bool) -> Step:
    """A language model, fine-tuned with LoRA, tells which team a ticket belongs to."""
    from peft import LoraConfig, get_peft_model

    rows, length = sized(8, 2), sized(256, 16)
    parts = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(
        r=sized(16, 4),
        lora_alpha=sized(16, 4),
        lora_dropout=0.05,
        target_modules=parts,
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    model: Any = halved(get_peft_model(llama(12, 1024), config)).eval()
    if not faulty:
        model = model.merge_and_unload()
    tickets = [tokens(sized(8192, 128), rows, length) for _ in range(4)]
    teams = torch.arange(20, 28, device=tickets[0].device)
    turn = 0

    @torch.inference_mode()
    def step() -> Tensor:
        nonlocal turn
        turn += 1
        scores = model(input_ids=tickets[turn % 4], use_cache=False, logits_to_keep=1).logits[:, -1]
        return scores[:, teams].float().softmax(-1).cpu()

    return step


@pair(
    "picture-decoded-in-tiles",
    "The VAE decodes in overlapping tiles, a setting for cards with little memory: the overlaps are computed"
    " twice and the seams are blended row by row in Python, while the picture would fit many times over.",
    "Leave out vae.enable_tiling() where the picture fits.",
)
def eighteenth_mural_printer(faulty: bool) -> Step:
    """The last part of a painter of murals: latents become pictures, ready to be saved."""
    from diffusers import AutoencoderKL

    width, side = sized(64, 32), sized(128, 8)
    vae: Any = halved(
        AutoencoderKL(
            sample_size=sized(512, 32),
            block_out_channels=(width, sized(128, 32), sized(256, 32), sized(256, 32)),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=sized(2, 1),
            latent_channels=4,
        )
    )
    vae = vae.to(memory_format=torch.channels_last).eval()
    if faulty:
        vae.enable_tiling()
    latents = [noise(sized(4, 1), 4, side, side) for _ in range(2)]
    turn = 0

    @torch.inference_mode()
    def step() -> Tensor:
        nonlocal turn
        turn += 1
        picture = vae.decode(latents[turn % 2] / vae.config.scaling_factor).sample
        picture = (picture / 2 + 0.5).clamp(0, 1)
        return (picture * 255).round().to(torch.uint8).cpu()

    return step
