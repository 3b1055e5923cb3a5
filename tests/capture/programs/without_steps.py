"""Calls no optimizer and no module."""

from __future__ import annotations

import torch

for _ in range(100):
    torch.randn(8, 8) @ torch.randn(8, 8)
