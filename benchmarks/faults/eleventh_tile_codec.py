"""An autoencoder of tiles whose latents are looked up in a book of codes."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class CodeBook(nn.Module):
    """The nearest code of each vector."""

    def __init__(self, codes: int, width: int, *, by_product: bool) -> None:
        super().__init__()
        self.codes = nn.Embedding(codes, width)
        self.by_product = by_product

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The codes, how far they are, and how many are in use."""
        flat = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
        book = self.codes.weight
        far = flat.square().sum(1, keepdim=True) + book.square().sum(1) - 2 * flat @ book.t()
        nearest = far.detach().argmin(1)
        if self.by_product:
            chosen = torch.zeros(nearest.numel(), book.shape[0], device=x.device)
            chosen.scatter_(1, nearest.unsqueeze(1), 1)
            found = chosen @ book
            share = chosen.mean(0)
        else:
            found = self.codes(nearest)
            share = torch.bincount(nearest, minlength=book.shape[0]) / nearest.numel()
        loss = functional.mse_loss(found, flat.detach()) + 0.25 * functional.mse_loss(flat, found.detach())
        passed = flat + (found - flat).detach()
        in_use = torch.exp(-(share * (share + 1e-10).log()).sum())
        return passed.view(x.shape[0], *x.shape[2:], -1).permute(0, 3, 1, 2), loss, in_use


def coder(width: int, code: int) -> nn.Module:
    """From tiles to latents of a quarter of their size."""
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(width, width, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(width, code, 3, padding=1),
    )


def decoder(width: int, code: int) -> nn.Module:
    """From latents back to tiles."""
    return nn.Sequential(
        nn.Conv2d(code, width, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, width, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
    )


@pair(
    "lookup-by-a-product-with-one-hot-rows",
    "Codes are looked up as a product of one-hot rows (65536 x 8192, fp32) with the book.",
    "nn.Embedding looks them up by index; bincount() tells how often each is used.",
)
def eleventh_tile_codec(faulty: bool) -> Step:
    """The autoencoder and its book of codes are trained."""
    width, code = sized(128, 16), 64
    encode = on_images(coder(width, code), dtype=torch.float32)
    decode = on_images(decoder(width, code), dtype=torch.float32)
    book = CodeBook(sized(8192, 32), code, by_product=faulty).to(next(encode.parameters()).device)
    optimizer = adamw(nn.ModuleList([encode, decode, book]))
    tiles = images(64, 128, dtype=torch.float32)
    in_use = torch.zeros((), device=tiles.device)

    def step() -> None:
        with autocast():
            latents = encode(tiles)
        found, loss, used = book(latents.float())
        with autocast():
            made = decode(found)
        loss = loss + functional.mse_loss(made.float(), tiles)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        in_use.lerp_(used.detach(), 0.01)

    return step
