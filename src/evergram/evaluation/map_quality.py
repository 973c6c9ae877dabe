"""Measure a map from new vectors to old ones, on objects that it was not fitted to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.compatibility.chance import Chance
from evergram.compatibility.second_moments import SecondMoments
from evergram.evaluation.version_distance import as_dim, overlap

# The number of neighbours that are looked up.
NEIGHBOURS = 10
# W [D_old, D_new] and an offset [D_old].
Affine = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class VectorPairs:
    """Old [n, D_old] and new [n, D_new] vectors of the same objects."""

    old: Tensor
    new: Tensor

    def double(self) -> VectorPairs:
        """Return both in float64."""
        return VectorPairs(self.old.double(), self.new.double())


def mapping_readings(
    maps: dict[str, Affine], held: SecondMoments, queries: VectorPairs, catalogue: VectorPairs
) -> dict[str, dict[str, float]]:
    """Return the quality of each map by name, and of "as_is", which uses new vectors as old ones.

    Args:
        held: moments of all held-out pairs, for the relative error √(E‖δ‖² / E‖z_old‖²).
        queries: held-out objects, of which the mean cosine and the neighbours are taken.
        catalogue: other objects, among which neighbours are looked up by cosine.
    Returns: {"cosine", "relative_error", "overlap@10", "overlap@10_own_queries"}; the last is of a
        consumer that keeps its old query vectors and reads new candidates.
    """
    readers: dict[str, Affine] = {
        "as_is": (torch.eye(held.old_dim, held.new_dim), None),
        **maps,
    }
    # In float64: cosines of vectors with a long common part differ in digits that float32 lacks.
    queries, catalogue = queries.double(), catalogue.double()
    past, among_past = (torch.nn.functional.normalize(p.old, dim=1) for p in (queries, catalogue))
    power = held.power
    readings = {}
    for name, (weight, offset) in readers.items():
        read, among = (
            torch.nn.functional.normalize(
                as_dim(p.new, held.old_dim) if name == "as_is" else _mapped(p.new, weight, offset),
                dim=1,
            )
            for p in (queries, catalogue)
        )
        readings[name] = {
            "cosine": float((read * past).sum(1).mean()),
            "relative_error": math.sqrt(held.error(weight, offset) / power) if power else math.nan,
            "overlap@10": overlap(read, among, past, among_past, NEIGHBOURS),
            "overlap@10_own_queries": overlap(past, among, past, among_past, NEIGHBOURS),
        }
    return readings


def chance_reading(
    one: Affine, chance: Chance, queries: VectorPairs, catalogue: int
) -> dict[str, float]:
    """Return the quality of a map on mixed-up objects, under the names of `mapping_readings`.

    Args:
        chance: of this map.
        queries: the objects that are mixed up.
        catalogue: the number of objects among which neighbours are looked up.
    """
    read = torch.nn.functional.normalize(_mapped(queries.new, *one), dim=1).double()
    past = torch.nn.functional.normalize(queries.old, dim=1).double()
    number = len(read)
    others = read.sum(0) @ past.sum(0) - (read * past).sum()
    overlap_by_chance = min(1.0, NEIGHBOURS / catalogue) if catalogue else math.nan
    return {
        "cosine": float(others) / (number * (number - 1)) if number > 1 else math.nan,
        "relative_error": chance.relative_error,
        "overlap@10": overlap_by_chance,
        "overlap@10_own_queries": overlap_by_chance,
    }


def _mapped(vectors: Tensor, weight: Tensor, offset: Tensor | None) -> Tensor:
    mapped = vectors @ weight.to(vectors).T
    return mapped if offset is None else mapped + offset.to(mapped)
