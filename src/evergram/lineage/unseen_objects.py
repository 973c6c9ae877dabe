"""Which objects the alignment of a version never saw, by a hash of their ids."""

from __future__ import annotations

import zlib

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Vocabulary
from evergram.lineage.lineage import Lineage


def id_hash(vocabulary: Vocabulary) -> Tensor:
    """A number in [0, 2³²) for each id, the same on every machine, int64 [N]."""
    texts = vocabulary.keys.cast(pa.string()).to_pylist()
    return torch.tensor([zlib.crc32(text.encode()) for text in texts], dtype=torch.int64)


def unseen_share(lineage: Lineage, version: int) -> float | None:
    """Return the share of the objects that the alignment of a version never saw: those whose
    `id_hash` is below this share of 2³². 1 where nothing was fitted; None where neither the
    version's metrics nor its recipe say it."""
    if version in lineage.withdrawn:
        return 1.0  # an identity
    said = lineage.metrics(version).get("overlap", {}).get("held_out_share")
    if said is None:
        recipe = lineage.manifest(version).recipe
        settings = recipe.get("align") or recipe.get("upgrade") or {}
        said = 1.0 if settings.get("fit") == "none" else settings.get("held_out")
    return float(said) if isinstance(said, int | float) else None
