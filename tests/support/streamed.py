"""Corpora, and a sampler with small blocks, to see how data that stay on disk are streamed."""

from __future__ import annotations

import torch

from evergram.data.corpus import Corpus
from evergram.data.prepared.block_sampler import BlockSampler


class SmallBlocks(BlockSampler):
    """Streams small corpora as large ones are."""

    block = 8
    pairs = 512


def generated(size: int, *, seed: int = 0, queries: int = 60, candidates: int = 40) -> Corpus:
    """Interactions with repeats, values, weights and times; queries come into fashion in turn."""
    draw = torch.Generator().manual_seed(seed)
    fashion = torch.arange(size) * queries // (2 * size)
    query = (fashion + (torch.rand(size, generator=draw) ** 2 * queries).long()) % queries
    return Corpus.of(
        {
            "query": query.numpy(),
            "candidate": torch.randint(candidates, (size,), generator=draw).numpy(),
            "value": torch.rand(size, generator=draw).numpy(),
            "weight": torch.rand(size, generator=draw).numpy(),
            "time": (torch.arange(size) // 3).numpy(),
        }
    )
