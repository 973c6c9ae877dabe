"""The objects that the alignment of a version never saw, chosen by a hash of their ids."""

from __future__ import annotations

import zlib

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Vocabulary
from evergram.lineage.read_only_lineage import ReadOnlyLineage


def id_hash(vocabulary: Vocabulary) -> Tensor:
    """Return a number in [0, 2³²) for each id, the same on every machine, int64 [N]."""
    texts = vocabulary.keys.cast(pa.string()).to_pylist()
    return torch.tensor([zlib.crc32(text.encode()) for text in texts], dtype=torch.int64)


def unseen_share(lineage: ReadOnlyLineage, version: int) -> float | None:
    """Return the share of the objects that the alignment of a version never saw: those whose
    `id_hash` is below this share of 2³². It is 1 if nothing was fitted, and None if neither the
    version's metrics nor its recipe record it."""
    if version in lineage.withdrawn:
        return 1.0  # an identity
    share = lineage.metrics(version).get("overlap", {}).get("held_out_share")
    if share is None:
        recipe = lineage.manifest(version).recipe
        settings = recipe.get("align") or recipe.get("upgrade") or {}
        share = 1.0 if settings.get("fit") == "none" else settings.get("held_out")
    return float(share) if isinstance(share, int | float) else None
