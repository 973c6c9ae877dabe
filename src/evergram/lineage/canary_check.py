"""Canaries: a few objects whose vectors every version keeps, by which reading it is measured."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.compatibility.chain import Chain
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError
from evergram.lineage.artefact import Block

# An error contradicts a certificate if it is more than this multiple of its bound plus rounding.
BELIED = 2.0
ROUNDING = 1e-5
# Canaries of each side: enough for a mean, and few enough to keep for ever.
CANARIES = 1000
# ‖canary − vector‖ over ‖vector‖, at most.
CANARY_ROUNDING = 1e-3
# Of each version and side, ids (as strings) and vectors at publication.
Canaries = Mapping[int, Mapping[str, Block]]


@dataclass(frozen=True)
class Measured:
    """The true error on the canaries of both versions: of z_k read as j, to z_j as published.

    Args:
        objects: how many.
        error: root of the mean of ‖z̃_j − z_j‖².
        relative: that over the root of the mean of ‖z_j‖².
        cosine: mean cosine of z̃_j and z_j.
        terms: for each step i, root of the mean of ‖W_{i-1}^j δ_i‖² on the canaries that all the
            versions between kept; empty if a transform is not affine. Source: [BC] Eq. (9).
    """

    objects: int
    error: float
    relative: float
    cosine: float
    terms: dict[int, float]


def measure_canaries(chain: Chain, canaries: Canaries, source: int, target: int) -> Measured | None:
    """Return the error of reading version `source` as `target`, on canaries of both; None if there
    are none."""
    rows = common_canaries(canaries, [source, target])
    past, now = rows[target], rows[source]
    if not len(past):
        return None
    back = chain.apply(now, source, target)
    power = float(past.square().sum(1).mean())
    error = float((back - past).square().sum(1).mean())
    return Measured(
        len(past),
        math.sqrt(error),
        math.sqrt(error / power) if power else math.nan,
        float(torch.nn.functional.cosine_similarity(back, past).mean()),
        _terms(chain, canaries, source, target),
    )


def _terms(chain: Chain, canaries: Canaries, source: int, target: int) -> dict[int, float]:
    if source == target or not chain.is_affine(source, target):
        return {}
    way = [n for n in range(target, source + 1) if n in canaries]
    rows = common_canaries(canaries, way)
    if not len(rows[target]):
        return {}
    terms = {}
    for before, i in pairwise(way):
        delta = chain.apply(rows[i], i, before) - rows[before]
        through = delta @ chain.matrix(before, target).T
        terms[i] = math.sqrt(float(through.square().sum(1).mean()))
    return terms


def common_canaries(canaries: Canaries, versions: list[int]) -> dict[int, Tensor]:
    """Return the vectors, float64, that each version has of the canaries of all `versions`, in one
    order."""
    vectors: dict[int, list[Tensor]] = {n: [] for n in versions}
    for side in sorted(set.intersection(*(set(canaries[n]) for n in versions))):
        ids = canaries[versions[0]][side][0]
        rows = {n: Vocabulary(canaries[n][side][0]).rows(ids) for n in versions}
        kept = torch.stack(list(rows.values())).min(0).values >= 0
        for n in versions:
            vectors[n].append(canaries[n][side][1][rows[n][kept]].double())
    return {n: torch.cat(parts) if parts else torch.zeros(0, 1) for n, parts in vectors.items()}


def is_belied(bound: float, witness: Measured | None) -> bool:
    """Whether the error is far above the bound; errors of other objects differ by some tenths."""
    return witness is not None and witness.relative > BELIED * bound + ROUNDING


def id_hash(vocabulary: Vocabulary) -> Tensor:
    """Return a number in [0, 2³²) for each id, the same on every machine, int64 [N]."""
    return id_hashes(vocabulary.keys)


def id_hashes(ids: pa.Array, size: int = 1 << 20) -> Tensor:
    """Return `id_hash` of many ids, a part at a time: Python's strings are large."""
    hashes = [torch.zeros(0, dtype=torch.int64)]
    for start in range(0, len(ids), size):
        texts = ids.slice(start, size).cast(pa.string()).to_pylist()
        hashes.append(torch.tensor([zlib.crc32(text.encode()) for text in texts]))
    return torch.cat(hashes)


def canary_rows(ids: pa.Array, hashes: Tensor, past: pa.Array | None = None) -> Tensor:
    """Return the rows of the objects whose vectors are kept, at most `CANARIES`: those that the
    version before kept (`past`), then those with the lowest and the highest `id_hash`.

    Alignment holds out low hashes and is fitted to high ones, so that canaries are of both kinds.
    """
    order = torch.argsort((hashes - 2**31).abs(), descending=True, stable=True)
    if past is not None:
        rows = Vocabulary(ids.cast(pa.string())).rows(past)
        rows = rows[rows >= 0]
        order = torch.cat([rows, order[~torch.isin(order, rows)]])
    return order[:CANARIES]


class CanarySample:
    """Takes the canaries of one side as its blocks pass.

    Args:
        side: its name, for errors.
        wanted: the ids to keep, as strings; None picks them, see `canary_rows`.
        past: ids that the version before kept, as strings.
    Attributes:
        ids, vectors: of the canaries so far, as strings and float32 [n, D].
    """

    def __init__(
        self, side: str, wanted: pa.Array | None = None, past: pa.Array | None = None
    ) -> None:
        self.side, self.wanted, self.past = side, wanted, past
        self.ids: Any = pa.array([], pa.string())
        self.vectors: Tensor = torch.zeros(0, 0)
        self._hashes = torch.zeros(0, dtype=torch.int64)

    def through(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the same blocks. Raises: DataError: at the end, if a wanted id was in none."""
        for ids, vectors in blocks:
            self._add(ids.cast(pa.string()), vectors.detach().float().cpu())
            yield ids, vectors
        if self.wanted is not None:
            missing = set(self.wanted.to_pylist()) - set(self.ids.to_pylist())
            if missing:
                raise DataError(
                    f"The canary {min(missing)!r} of the side {self.side} is not among the ids of "
                    "the version; keep objects that it has."
                )

    def _add(self, ids: pa.Array, vectors: Tensor) -> None:
        if self.wanted is not None:
            mask = pc.is_in(ids, value_set=self.wanted)
            ids, vectors = ids.filter(mask), vectors[torch.from_numpy(np.array(mask))]
        if len(self.ids):
            vectors = torch.cat([self.vectors, vectors])
        hashes = torch.cat([self._hashes, id_hashes(ids)])
        ids = pa.concat_arrays([self.ids, ids])
        rows = torch.arange(len(ids))
        if self.wanted is None:
            rows = canary_rows(ids, hashes, self.past)
        self.ids, self._hashes = ids.take(pa.array(rows.numpy())), hashes[rows]
        self.vectors = vectors[rows]


def check_stored(ids: pa.Array, vectors: Tensor, side: str, blocks: Iterable[Block]) -> None:
    """Compare canaries with the stored vectors of their side.

    Raises: DataError: one is another vector, or has an id that is not stored.
    """
    sample = CanarySample(side, ids)
    for _ in sample.through(blocks):
        pass
    stored = sample.vectors[Vocabulary(sample.ids).rows(ids)]
    # A NaN is at no distance.
    near = (stored - vectors).norm(dim=1) <= CANARY_ROUNDING * stored.norm(dim=1)
    if not bool(near.all()):
        raise DataError(
            f"The canary {ids[int((~near).nonzero()[0])].as_py()!r} of the side {side} is not the "
            "vector that is stored; restore the version from a copy."
        )
