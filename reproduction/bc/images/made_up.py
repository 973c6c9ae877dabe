"""Vectors of made-up images by two made-up encoders, of which the newer is the less noisy."""

from __future__ import annotations

import torch
from torch import Tensor

from reproduction.bc.images.pictures import LOOKS
from reproduction.bc.images.vectors import ImageVectors

CLASSES, EACH, TESTED = 6, 40, 20
DIMS = (24, 32)
# Deviations of the encoders' noise, where what they see of an image has a deviation of 1.
NOISE = (0.4, 0.1)
# How far images of a class are from its mean.
SPREAD = 0.3


def made_up_vectors(seed: int = 0) -> ImageVectors:
    """Return images that are a class and a few looks, seen through two random linear maps."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    label = torch.arange(CLASSES).repeat_interleave(EACH)
    test = (torch.arange(EACH) >= EACH - TESTED).repeat(CLASSES)
    looks = normal(len(label), len(LOOKS))
    kind = normal(CLASSES, CLASSES)[label] + SPREAD * normal(len(label), CLASSES)
    seen = torch.cat([kind, looks], dim=1)
    old, new = (
        seen @ normal(seen.shape[1], dim) + noise * normal(len(label), dim)
        for dim, noise in zip(DIMS, NOISE, strict=True)
    )
    classes = tuple(f"class {i}" for i in range(CLASSES))
    return ImageVectors(old, new, label, test, looks, classes)
