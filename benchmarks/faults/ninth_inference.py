"""Programs that search, write, tag and detect."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import torch
from benchmarks.faults.library_models import WORDS, halved, tokenizer, tokens
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def sentences(count: int, shortest: int, longest: int) -> list[str]:
    """Texts of made-up words."""
    rng = random.Random(13)
    lengths = [rng.randint(shortest, longest) for _ in range(count)]
    return [" ".join(f"word{rng.randrange(WORDS)}" for _ in range(length)) for length in lengths]


def encoder_folder() -> str:
    """A folder with an encoder of the size of MiniLM and its tokenizer."""
    from transformers import BertConfig, BertModel

    folder = tempfile.mkdtemp()
    config = BertConfig(
        vocab_size=WORDS + 2,
        hidden_size=sized(384, 64),
        intermediate_size=sized(1536, 128),
        num_hidden_layers=sized(6, 1),
        num_attention_heads=sized(12, 2),
    )
    BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pair(
    "one-text-at-a-time",
    "model.encode(question) is called for each of 24 questions in a list comprehension.",
    "model.encode(questions, batch_size=24).",
    light_steps=2,
)
def ninth_support_search(faulty: bool) -> Step:
    """Questions of customers are answered by the articles that lie nearest."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(encoder_folder(), device=DEVICE).to(HALF).eval()
    questions = sentences(sized(24, 3), 6, 20)
    articles = torch.randn(sized(200_000, 100), sized(384, 64), device=DEVICE, dtype=HALF)
    articles = functional.normalize(articles, dim=-1)

    def embedded() -> Tensor:
        if faulty:
            found = [
                model.encode(question, convert_to_tensor=True, show_progress_bar=False)
                for question in questions
            ]
            return torch.stack(found)
        everything: Tensor = model.encode(
            questions, batch_size=24, convert_to_tensor=True, show_progress_bar=False
        )
        return everything

    def step() -> list[list[int]]:
        places = functional.normalize(embedded().to(HALF), dim=-1)
        nearest = (places @ articles.T).topk(5, dim=-1).indices
        answers: list[list[int]] = nearest.tolist()
        return answers

    return step


def drawn(scores: Tensor) -> Tensor:
    """The next word of each text, one of the fifty likeliest."""
    best, places = (scores.float() / 0.8).topk(50, dim=-1)
    return places.gather(-1, torch.multinomial(best.softmax(-1), 1))


@pair(
    "keys-and-values-not-kept",
    "A loop gives the whole text to GPT-2 again for every word that it writes.",
    "past_key_values of the last call are given to the next one, with the newest word only.",
    light_steps=2,
)
def ninth_story_writer(faulty: bool) -> Step:
    """Stories are carried on by a language model in a loop of our own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=sized(50_257, 128),
        n_positions=2048,
        n_embd=sized(768, 64),
        n_layer=sized(8, 1),
        n_head=sized(12, 2),
        bos_token_id=0,
        eos_token_id=0,
    )
    model = halved(GPT2LMHeadModel(config)).eval()
    stories = tokens(100, sized(24, 2), sized(1000, 12))
    count = sized(12, 3)

    @torch.inference_mode()
    def step() -> Tensor:
        text = given = stories
        past: Any = None
        for _ in range(count):
            if faulty:
                found = model(text)
            else:
                found = model(given, past_key_values=past, use_cache=True)
                past = found.past_key_values
            given = drawn(found.logits[:, -1])
            text = torch.cat([text, given], -1)
        return text

    return step


@pair(
    "mostly-padding",
    'Texts of 15 to 70 words are padded to 512 by tokenizer(padding="max_length").',
    "padding=True: to the longest text of the batch.",
)
def ninth_name_finder(faulty: bool) -> Step:
    """Names of people and places are found in short messages."""
    from transformers import DistilBertConfig, DistilBertForTokenClassification

    longest, rows = sized(512, 64), sized(96, 3)
    config = DistilBertConfig(
        vocab_size=WORDS + 2,
        dim=sized(768, 64),
        hidden_dim=sized(3072, 128),
        n_layers=sized(6, 1),
        n_heads=sized(12, 2),
        max_position_embeddings=512,
        num_labels=9,
    )
    model = halved(DistilBertForTokenClassification(config)).eval()
    texts = sentences(rows, 15, sized(70, 30))
    words = tokenizer()
    way: Any = "max_length" if faulty else True

    @torch.inference_mode()
    def step() -> list[list[int]]:
        batch = words(
            texts,
            padding=way,
            max_length=longest,
            truncation=True,
            return_token_type_ids=False,
            return_tensors="pt",
        )
        lengths = batch["attention_mask"].sum(-1).tolist()
        batch = {name: value.to(DEVICE) for name, value in batch.items()}
        tags = model(**batch).logits.argmax(-1)[:, : max(lengths)].tolist()
        return [row[:length] for row, length in zip(tags, lengths, strict=True)]

    return step


class Detector(nn.Module):
    """A residual network with a pyramid, and for every cell a box and scores."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

        name = "resnet50" if DEVICE == "cuda" else "resnet18"
        self.backbone = resnet_fpn_backbone(backbone_name=name, weights=None, norm_layer=nn.BatchNorm2d)
        self.tower = nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())
        self.boxes, self.scores = nn.Conv2d(256, 4, 1), nn.Conv2d(256, classes, 1)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Distances to the sides of a box, and a score for each class, of every eighth pixel."""
        seen = self.tower(self.backbone(pictures)["1"])
        sides = self.boxes(seen).flatten(2).transpose(1, 2)
        return sides, self.scores(seen).flatten(2).transpose(1, 2)


def kept_by_class(boxes: Tensor, chances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, chances and classes of what is seen in a picture."""
    from torchvision.ops import nms

    found = []
    for kind in range(chances.shape[1]):
        likely = chances[:, kind] > 0.3
        if not likely.any():
            continue
        some, their = boxes[likely], chances[likely, kind]
        kept = nms(some, their, 0.5)
        found.append((some[kept], their[kept], torch.full_like(kept, kind)))
    if not found:
        return boxes[:0], chances[:0, 0], torch.zeros(0, dtype=torch.long, device=boxes.device)
    where, chance, kinds = (torch.cat(parts) for parts in zip(*found, strict=True))
    order = chance.argsort(descending=True)[:100]
    return where[order], chance[order], kinds[order]


def kept_together(boxes: Tensor, chances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same boxes, chances and classes."""
    from torchvision.ops import batched_nms

    cells, kinds = torch.nonzero(chances > 0.3, as_tuple=True)
    where, chance = boxes[cells], chances[cells, kinds]
    order = batched_nms(where, chance, kinds, 0.5)[:100]
    return where[order], chance[order], kinds[order]


@pair(
    "python-loop-over-classes",
    "Overlapping boxes are removed class by class, with a mask and a question to the device for each.",
    "torchvision.ops.batched_nms, once for each picture.",
)
def ninth_street_watch(faulty: bool) -> Step:
    """Cars, people and signs are found in pictures of a street."""
    rows, side, classes = sized(8, 1), sized(640, 64), 20
    model = Detector(classes).to(DEVICE, HALF, memory_format=torch.channels_last).eval()
    pictures = torch.randn(rows, 3, side, side, device=DEVICE, dtype=HALF)
    pictures = pictures.to(memory_format=torch.channels_last)
    cells = side // 8
    down, right = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
    middles = (8.0 * torch.stack([right, down], -1).reshape(-1, 2) + 4).to(DEVICE)
    # random weights see nothing, so what a trained network is sure of is added to what they say
    sure = torch.full((rows, cells * cells, classes), -6.0, device=DEVICE)
    sure[torch.rand_like(sure) < 0.004] = 2.0
    keep = kept_by_class if faulty else kept_together

    @torch.inference_mode()
    def step() -> list[list[list[float]]]:
        sides, scores = model(pictures)
        reach = 24 * (1.5 + torch.tanh(sides.float()))
        boxes = torch.cat([middles - reach[..., :2], middles + reach[..., 2:]], -1).clamp(0, side)
        chances = torch.sigmoid(torch.tanh(scores.float()) + sure)
        seen = [keep(*picture) for picture in zip(boxes, chances, strict=True)]
        return [where.tolist() for where, _, _ in seen]

    return step
