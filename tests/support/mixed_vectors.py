"""Vectors of made-up text encoders, and of two of them in one file."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS, DIM, MEANING = 3000, 64, 40


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def meanings(seed: int = 0, count: int = ROWS) -> Tensor:
    """Texts around twenty topics, whose traits are of unequal weight."""
    draw = drawn(seed)
    topics = torch.randn(20, MEANING, generator=draw)
    rows = topics[torch.randint(20, (count,), generator=draw)]
    traits = torch.linspace(2, 0.2, MEANING)
    return rows + torch.randn(count, MEANING, generator=draw) * traits


def encoded(texts: Tensor, seed: int, dim: int = DIM) -> Tensor:
    """Return texts by the model of a seed: a map and a mean of its own, some noise, and length 1,
    [n, dim]."""
    draw = drawn(1000 + seed)
    eye = torch.randn(MEANING, dim, generator=draw)
    vectors = texts @ eye + 8 * torch.randn(dim, generator=draw)
    noise = torch.randn(len(texts), dim, generator=drawn(2000 + seed))
    return torch.nn.functional.normalize(vectors + 3 * noise, dim=1)


def mixed(share: float, seed: int = 0, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Return vectors, and which are of the second of two models."""
    texts = meanings(seed, rows)
    return merged(encoded(texts, 2 * seed), encoded(texts, 2 * seed + 1), share, seed)


def merged(one: Tensor, other: Tensor, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the vectors of one model, a share of them replaced by another's, and which."""
    foreign = torch.rand(len(one), generator=drawn(seed)) < share
    return torch.where(foreign[:, None], other, one), foreign


def turn(dim: int = DIM, seed: int = 0) -> Tensor:
    """Return a random rotation: the space of another seed of one factorization."""
    turned: Tensor = torch.linalg.qr(torch.randn(dim, dim, generator=drawn(3000 + seed)))[0]
    return turned
