"""Objects that alignment never saw and objects whose vectors are kept, by a hash of their ids."""

from __future__ import annotations

import zlib

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Vocabulary
from evergram.lineage.catalog import Catalog

# Canaries of each side: enough for a mean, and few enough to keep for ever.
CANARIES = 1000


def id_hash(vocabulary: Vocabulary) -> Tensor:
    """Return a number in [0, 2³²) for each id, the same on every machine, int64 [N]."""
    texts = vocabulary.keys.cast(pa.string()).to_pylist()
    return torch.tensor([zlib.crc32(text.encode()) for text in texts], dtype=torch.int64)


def canary_rows(ids: pa.Array, hashes: Tensor, past: pa.Array | None = None) -> Tensor:
    """Return the rows of the objects whose vectors are kept, at most `CANARIES`: those that the
    version before kept, then those with the lowest and the highest hashes.

    Alignment holds out low hashes and is fitted to high ones, so that canaries are of both kinds.

    Args:
        hashes: `id_hash` of the ids, int64 [N].
        past: ids that the version before kept, as strings.
    """
    order = torch.argsort((hashes - 2**31).abs(), descending=True, stable=True)
    if past is not None:
        rows = Vocabulary(ids.cast(pa.string())).rows(past)
        rows = rows[rows >= 0]
        order = torch.cat([rows, order[~torch.isin(order, rows)]])
    return order[:CANARIES]


def unseen_share(lineage: Catalog, version: int) -> float | None:
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
