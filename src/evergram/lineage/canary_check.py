"""Canaries: a few objects whose vectors every version keeps, by which reading it is measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.chain import Chain
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError
from evergram.lineage.artefact import Block
from evergram.lineage.publication import CanarySample

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
    """

    objects: int
    error: float
    relative: float
    cosine: float


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
    )


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
