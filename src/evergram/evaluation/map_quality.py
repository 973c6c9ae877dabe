"""What a map from new vectors to old ones keeps of them, on objects it was not fitted to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.compatibility.chance import Chance
from evergram.compatibility.second_moments import SecondMoments
from evergram.evaluation.version_distance import as_dim, overlap

# How many neighbours are looked up.
NEIGHBOURS = 10
# W [D_old, D_new] and an offset [D_old].
Affine = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Pairs:
    """Old [n, D_old] and new [n, D_new] vectors of the same objects."""

    old: Tensor
    new: Tensor


def mapping_readings(
    maps: dict[str, Affine], held: SecondMoments, queries: Pairs, catalogue: Pairs
) -> dict[str, dict[str, float]]:
    """For each map by name, and for "as_is", who takes new vectors for old ones: the first
    coordinates, zeros filling up.

    Args:
        held: moments of all held-out pairs, for the relative error √(E‖δ‖² / E‖z_old‖²).
        queries: held-out objects, for the mean cosine, and whose neighbours are looked up.
        catalogue: other objects, among which they are looked up, by cosine.
    Returns: {"cosine", "relative_error", "overlap@10", "overlap@10_own_queries"}; the last is of a
        consumer that kept its old query vectors and meets new candidates.
    """
    readers: dict[str, Affine] = {
        "as_is": (torch.eye(held.old_dim, held.new_dim), None),
        **maps,
    }
    past, among_past = (torch.nn.functional.normalize(p.old, dim=1) for p in (queries, catalogue))
    power = held.power
    found = {}
    for name, (weight, offset) in readers.items():
        read, among = (
            torch.nn.functional.normalize(
                as_dim(p.new, held.old_dim) if name == "as_is" else _mapped(p.new, weight, offset),
                dim=1,
            )
            for p in (queries, catalogue)
        )
        found[name] = {
            "cosine": float((read * past).sum(1).mean()),
            "relative_error": math.sqrt(held.error(weight, offset) / power) if power else math.nan,
            "overlap@10": overlap(read, among, past, among_past, NEIGHBOURS),
            "overlap@10_own_queries": overlap(past, among, past, among_past, NEIGHBOURS),
        }
    return found


def chance_reading(one: Affine, chance: Chance, queries: Pairs, catalogue: int) -> dict[str, float]:
    """What a map keeps of other objects than its own: the same names as of `mapping_readings`.

    Args:
        chance: of this map.
        catalogue: among how many objects neighbours are looked up.
    """
    read = torch.nn.functional.normalize(_mapped(queries.new, *one), dim=1).double()
    past = torch.nn.functional.normalize(queries.old, dim=1).double()
    number = len(read)
    others = read.sum(0) @ past.sum(0) - (read * past).sum()
    found = min(1.0, NEIGHBOURS / catalogue) if catalogue else math.nan
    return {
        "cosine": float(others) / (number * (number - 1)) if number > 1 else math.nan,
        "relative_error": chance.relative_error,
        "overlap@10": found,
        "overlap@10_own_queries": found,
    }


def _mapped(vectors: Tensor, weight: Tensor, offset: Tensor | None) -> Tensor:
    mapped = vectors @ weight.T
    return mapped if offset is None else mapped + offset
