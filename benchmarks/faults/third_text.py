"""Programs that evaluate and serve language models as they come from the libraries, each with one mistake."""

from __future__ import annotations

import random
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, tokens
from benchmarks.faults.models import DEVICE, HALF, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor


def word_tokenizer(count: int) -> tuple[Any, list[str]]:
    """A tokenizer of whole words made on the spot, and its words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [f"word{number}" for number in range(count)]
    table = {"[PAD]": 0, "[UNK]": 1} | {word: number + 2 for number, word in enumerate(words)}
    raw = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]"), words


def sentences(words: list[str], rows: int, shortest: int, longest: int) -> list[str]:
    """Random sentences of different lengths."""
    chance = random.Random(1)
    return [" ".join(chance.choices(words, k=chance.randint(shortest, longest))) for _ in range(rows)]


def llama_config(layers: int, width: int, inner: int, words: int, **options: Any) -> Any:
    """The sizes of a model in the style of Llama."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=sized(words, 128),
        hidden_size=sized(width, 64),
        intermediate_size=sized(inner, 128),
        num_hidden_layers=sized(layers, 1),
        num_attention_heads=sized(width // 128, 2),
        num_key_value_heads=sized(width // 512, 1),
        use_cache=False,
        **options,
    )


# ---------------------------------------------------------------- embeddings


def padded(texts: list[Tensor], length: int) -> Tensor:
    """The ids of all sentences in one tensor of this length, with zeros behind them."""
    batch = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in zip(batch, texts, strict=True):
        row[: len(text)] = text
    return batch


@pair(
    "padded-to-the-maximum-length",
    "Embeds sentences of up to 160 tokens with BERT and pads every batch to the model's 256 tokens.",
    "Pad to the longest sentence of the batch.",
)
def third_sentence_padding(faulty: bool) -> Step:
    """Embeddings of sentences, tokenized before, for a search index: pad, encode, average, fetch."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=sized(30522, 200),
        hidden_size=sized(1024, 32),
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(16, 2),
        intermediate_size=sized(4096, 64),
    )
    model = BertModel(config, add_pooling_layer=False).to(DEVICE, HALF).eval()
    chance = random.Random(1)
    lengths = [chance.randint(sized(20, 3), sized(160, 9)) for _ in range(sized(192, 4))]
    texts = [torch.randint(1, config.vocab_size, (length,)) for length in lengths]
    most = sized(256, 24)

    @torch.inference_mode()
    def step() -> Tensor:
        ids = padded(texts, most if faulty else max(len(text) for text in texts)).to(DEVICE)
        mask = (ids != 0).long()
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        kept = mask.unsqueeze(-1).to(hidden.dtype)
        average = (hidden * kept).sum(1) / kept.sum(1)
        return torch.nn.functional.normalize(average.float(), dim=-1).cpu()

    return step


# ---------------------------------------------------------------- scores


@pair(
    "weights-cast-in-every-call",
    "Scores passages with a reranker whose weights stayed in float32 and are cast by autocast in every call.",
    "Load the weights in bfloat16 once.",
)
def third_rerank_casts(faulty: bool) -> Step:
    """A reranker as a service: one request is eight passages of a few hundred tokens."""
    from transformers import LlamaForSequenceClassification

    config = llama_config(10, 3072, 8192, 16000, num_labels=1, pad_token_id=0)
    with torch.device(DEVICE):
        model = LlamaForSequenceClassification(config).eval()
    if not faulty:
        model = model.to(HALF)
    ids = pinned(torch.randint(1, config.vocab_size, (sized(8, 2), sized(320, 16))))
    mask = torch.ones_like(ids)

    @torch.inference_mode()
    def step() -> list[list[float]]:
        with autocast():
            scores = model(input_ids=ids.to(DEVICE), attention_mask=mask.to(DEVICE)).logits
        return scores.float().tolist()

    return step


@pair(
    "adapter-not-merged-for-serving",
    "Serves a model with LoRA adapters on all linear layers as they were trained, unmerged.",
    "Merge the adapters into the weights before serving.",
)
def third_unmerged_adapter(faulty: bool) -> Step:
    """A classifier of short messages that was fine-tuned with peft."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    config = llama_config(12, 1536, 4096, 16000)
    with torch.device(DEVICE):
        base = LlamaForCausalLM(config).to(HALF)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(base, LoraConfig(r=32, lora_alpha=64, lora_dropout=0.05, target_modules=targets))
    model = (adapted if faulty else adapted.merge_and_unload()).to(HALF).eval()
    ids = tokens(config.vocab_size, sized(16, 2), sized(192, 8))
    options = torch.tensor([5, 17, 42, 99], device=DEVICE)

    @torch.inference_mode()
    def step() -> list[int]:
        scores = model(input_ids=ids, logits_to_keep=1).logits[:, -1]
        return scores[:, options].argmax(-1).tolist()

    return step


# ---------------------------------------------------------------- evaluation


@pair(
    "all-logits-kept-by-concatenation",
    "Evaluates a language model and appends the logits of every batch to one growing tensor.",
    "Reduce the logits of each batch to predicted tokens and keep only these.",
)
def third_kept_logits(faulty: bool) -> Step:
    """One step is an evaluation of twelve batches, as a training runs it now and then."""
    from transformers import LlamaForCausalLM

    config = llama_config(4, 1536, 4096, 32000)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).to(HALF).eval()
    batches = [tokens(config.vocab_size, sized(8, 2), sized(512, 12)) for _ in range(sized(12, 3))]

    @torch.inference_mode()
    def step() -> float:
        gathered: Tensor | None = None
        for batch in batches:
            logits = model(input_ids=batch).logits
            found = logits if faulty else logits.argmax(-1)
            gathered = found if gathered is None else torch.cat((gathered, found), dim=0)
        assert gathered is not None
        predicted = gathered.argmax(-1) if faulty else gathered
        wanted = torch.cat(batches)
        return (predicted[:, :-1] == wanted[:, 1:]).float().mean().item()

    return step
