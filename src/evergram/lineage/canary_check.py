"""Canaries: a few objects whose vectors every version keeps, by which reading it is measured."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.compatibility.chain import Chain
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError
from evergram.lineage.artefact import Block, checked_blocks

# An error contradicts a certificate if it is more than this multiple of its bound plus rounding.
BELIED = 2.0
ROUNDING = 1e-5
# Canaries of each side: enough for a mean, and few enough to keep for ever.
CANARIES = 1000
# ‖canary − vector‖ over ‖vector‖, at most: encoding a few objects alone rounds otherwise.
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


class CanaryCheck:
    """The canaries of one side, as `Artefact` takes them; `through` passes its blocks on, and
    refuses canaries that differ.

    Raises: DataError, ShapeError: they are no vectors by id, each id once.
    """

    def __init__(self, ids: Any, vectors: Any, side: str, dim: int) -> None:
        self.side = side
        [(keys, rows)] = checked_blocks([(ids, vectors)], f"canary {side}", dim)
        self.ids: Any = keys
        self.vectors: Tensor = rows.float().cpu()

    @property
    def block(self) -> Block:
        """The ids, as strings, and the vectors."""
        return self.ids.cast(pa.string()), self.vectors

    def through(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the same blocks. Raises: DataError: a canary's vector is another; at the end, its
        id was in none of them."""
        missing = set(self.ids.to_pylist())
        for ids, vectors in blocks:
            mine = self._as_type(ids.type)
            at = pc.fill_null(pc.index_in(ids, value_set=mine), -1).to_numpy(zero_copy_only=False)
            rows = torch.from_numpy((at >= 0).nonzero()[0])
            for row, place in zip(rows.tolist(), at[at >= 0].tolist(), strict=True):
                own, kept = vectors[row].detach().float().cpu(), self.vectors[place]
                # A NaN is at no distance.
                if not float((own - kept).norm()) <= CANARY_ROUNDING * float(own.norm()):
                    raise DataError(
                        f"The canary {self.ids[place].as_py()!r} of the side {self.side} is not "
                        "the vector that the version has for it; give that vector."
                    )
                missing.discard(self.ids[place].as_py())
            yield ids, vectors
        if missing:
            raise DataError(
                f"The canary {min(missing, key=str)!r} of the side {self.side} is not among the "
                "ids of the version; keep objects that it has."
            )

    def _as_type(self, kind: pa.DataType) -> pa.Array:
        """Return the ids as the version has them; those that cannot be so stay apart."""
        if kind == self.ids.type:
            return self.ids
        if pa.types.is_string(kind):
            return self.ids.cast(pa.string())
        numeric = pc.match_substring_regex(self.ids, r"^-?[0-9]{1,18}$")
        return pc.if_else(numeric, self.ids, None).cast(pa.int64())
