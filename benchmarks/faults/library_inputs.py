"""Programs on real libraries: what is made ready for the model, and where."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import WORDS, autocast, halved, noise, tokenizer, tokens, training
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "features-made-on-the-cpu",
    "WhisperFeatureExtractor makes the spectrograms of eight sounds on the CPU inside the step.",
    'It is called with device="cuda".',
)
def library_whisper_features(faulty: bool) -> Step:
    """The Fourier transforms run on the CPU while the device waits."""
    from transformers import WhisperConfig, WhisperFeatureExtractor
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    width, rows = sized(768, 64), sized(8, 1)
    config = WhisperConfig(
        d_model=width,
        encoder_layers=sized(4, 1),
        encoder_attention_heads=width // 64,
        encoder_ffn_dim=4 * width,
        attn_implementation="sdpa",
    )
    extract, model = WhisperFeatureExtractor(), halved(WhisperEncoder(config)).eval()
    sounds = [row.astype(np.float32) for row in np.random.default_rng(1).normal(size=(rows, 16_000 * 10))]
    device = "cpu" if faulty else DEVICE

    def step() -> None:
        found = extract(sounds, sampling_rate=16_000, return_tensors="pt", device=device)
        with torch.no_grad():
            model(found["input_features"].to(DEVICE, HALF))

    return step


@pair(
    "pictures-resized-by-pil",
    "ViTImageProcessorPil resizes and normalizes 32 pictures one by one before each call of a ViT.",
    "ViTImageProcessor, on the device.",
)
def library_pil_processor(faulty: bool) -> Step:
    """PIL and numpy work while the device waits."""
    from transformers import ViTConfig, ViTImageProcessor, ViTImageProcessorPil, ViTModel

    width = sized(768, 64)
    config = ViTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(6, 1),
        num_attention_heads=width // 64,
        attn_implementation="sdpa",
    )
    model = halved(ViTModel(config)).eval()
    pictures = torch.randint(0, 256, (sized(32, 2), 3, 320, 320), dtype=torch.uint8)
    if faulty:
        given: Any = [picture.permute(1, 2, 0).numpy() for picture in pictures]
        process: Any = ViTImageProcessorPil()
    else:
        given, process = list(pictures.to(DEVICE)), ViTImageProcessor()

    def step() -> None:
        pixels = process(given, return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            model(pixels.to(DEVICE, HALF))

    return step


class Photographs(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Pictures that are augmented when they are asked for, as in most training of classifiers."""

    def __init__(self, size: int) -> None:
        from PIL import Image
        from torchvision.transforms import v2

        pixels = np.random.default_rng(1).integers(0, 256, (8, 300, 400, 3), dtype=np.uint8)
        self.pictures = [Image.fromarray(one) for one in pixels]
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(size),
                v2.RandomHorizontalFlip(),
                v2.TrivialAugmentWide(),
                v2.PILToTensor(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.pictures[index % 8]), index % 10


@pair(
    "loader-without-workers",
    "A ResNet of timm is trained on pictures that DataLoader(num_workers=0) augments with torchvision.",
    "num_workers=7, pin_memory=True.",
)
def library_loader_without_workers(faulty: bool) -> Step:
    """The training process itself crops, turns and colours."""
    import timm

    model = timm.create_model("resnet50" if DEVICE == "cuda" else "resnet10t", num_classes=10).to(DEVICE)
    model = model.to(memory_format=torch.channels_last)
    ahead: dict[str, Any] = {"num_workers": 7, "persistent_workers": True, "prefetch_factor": 4}
    loader = torch.utils.data.DataLoader(
        Photographs(sized(192, 64)),
        batch_size=sized(48, 4),
        pin_memory=DEVICE == "cuda" and not faulty,
        **({} if faulty else ahead),
    )
    batches = iter(loader)

    def loss() -> Tensor:
        pictures, labels = next(batches)
        pictures = pictures.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        with autocast():
            return functional.cross_entropy(model(pictures), labels.to(DEVICE, non_blocking=True))

    return training(model, loss)


@pair(
    "float64-sounds",
    "Sounds come as float64, as soundfile reads them, and torchaudio resamples and transforms them so.",
    "They are float32.",
)
def library_float64_sounds(faulty: bool) -> Step:
    """Twice the bytes, and products in double precision."""
    import timm
    from torchaudio import transforms

    kind = torch.float64 if faulty else torch.float32
    sounds = noise(sized(32, 1), 44_100 * sized(10, 1), dtype=kind)
    prepare = nn.Sequential(
        transforms.Resample(44_100, 16_000, dtype=kind),
        transforms.MelSpectrogram(16_000, n_fft=1024, hop_length=160, n_mels=128),
        transforms.AmplitudeToDB(),
    ).to(DEVICE, kind)
    model = timm.create_model("resnet18", in_chans=1, num_classes=sized(50, 5)).to(DEVICE)
    labels = tokens(5, len(sounds))

    def loss() -> Tensor:
        with torch.no_grad():
            pictures = prepare(sounds)[:, None].float()
        with autocast():
            return functional.cross_entropy(model(pictures), labels)

    return training(model, loss)


@pair(
    "collate-in-the-step",
    "256 molecules are joined by Batch.from_data_list in the training process, then copied.",
    "The DataLoader of torch-geometric joins them in worker processes.",
)
def library_molecules_collated(faulty: bool) -> Step:
    """Python walks through hundreds of small graphs while the device waits."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn.models import GIN

    graphs = []
    for number in range(256 * 8):
        nodes = 12 + number % 17
        edges = torch.randint(0, nodes, (2, 3 * nodes))
        graphs.append(Data(x=torch.randn(nodes, 64), edge_index=edges, y=torch.randn(1)))
    model = GIN(64, sized(256, 16), 4, 1).to(DEVICE)
    endless = torch.utils.data.RandomSampler(graphs, replacement=True, num_samples=10_000_000)
    rows = sized(256, 16)
    if faulty:
        order = iter(endless)
        batches = (Batch.from_data_list([graphs[next(order)] for _ in range(rows)]) for _ in iter(int, 1))
    else:
        batches = iter(DataLoader(graphs, batch_size=rows, sampler=endless, num_workers=7, pin_memory=True))

    def loss() -> Tensor:
        batch = next(batches).to(DEVICE, non_blocking=True)
        return (model(batch.x, batch.edge_index, batch=batch.batch)).square().mean()

    return training(model, loss)


@pair(
    "positions-made-by-numpy-in-every-step",
    "A DiT-like encoder makes its table of positions anew with numpy in each step and copies it.",
    "The table is made once.",
)
def library_sincos_every_step(faulty: bool) -> Step:
    """The same sines and cosines are computed in float64."""
    import timm
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    width, side = sized(768, 64), sized(32, 4)
    blocks = nn.Sequential(
        *[timm.models.vision_transformer.Block(width, width // 64) for _ in range(sized(6, 1))]
    )
    model = halved(blocks)
    x = noise(sized(8, 1), side * side, width)

    def positions() -> Tensor:
        table = get_2d_sincos_pos_embed(width, side, output_type="np")
        return torch.as_tensor(table).float().to(DEVICE, HALF)

    kept = positions()
    return training(model, lambda: model(x + (positions() if faulty else kept)).float().square().mean())


@pair(
    "sentences-encoded-one-by-one",
    "SentenceTransformer.encode is called for each of 16 sentences.",
    "One call encodes the list.",
    light_steps=2,
)
def library_sentences_one_by_one(faulty: bool) -> Step:
    """Each sentence is tokenized, copied, encoded and copied back by itself."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    folder, width = tempfile.mkdtemp(), sized(384, 64)
    config = BertConfig(
        vocab_size=WORDS + 2,
        hidden_size=width,
        num_hidden_layers=sized(3, 1),
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    BertModel(config).save_pretrained(Path(folder))
    tokenizer().save_pretrained(folder)
    base = Transformer(folder)
    model = SentenceTransformer(modules=[base, Pooling(width)], device=DEVICE)
    texts = [" ".join(f"word{(row * 31 + place * 7) % WORDS}" for place in range(24)) for row in range(16)]

    def step() -> None:
        if faulty:
            np.stack([model.encode(text, show_progress_bar=False) for text in texts])
        else:
            model.encode(texts, show_progress_bar=False)

    return step
