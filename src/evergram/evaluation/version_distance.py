"""The distance between a past version and a newer version mapped to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.compatibility.chance import Chance
from evergram.compatibility.closed_forms import SecondMoments, mapped_rows
from evergram.errors import ShapeError
from evergram.evaluation.score_blocks import best_candidates


def drift(transformed: Tensor, past: Tensor) -> dict[str, float]:
    """Return the mean distance of transformed embeddings z̃_j from past ones z_j, both [N, D_j].

    Returns: "l2", the mean of ‖z̃_j − z_j‖₂, and "relative", the same divided by the mean of ‖z_j‖₂;
        NaN if N is 0.
    Source: [BC] §5, metric 3.
    """
    _check(transformed, past)
    distance = (transformed - past).norm(dim=-1).mean()
    return {"l2": float(distance), "relative": float(distance / past.norm(dim=-1).mean())}


def overlap(
    transformed_query: Tensor,
    transformed_candidate: Tensor,
    past_query: Tensor,
    past_candidate: Tensor,
    k: int = 10,
) -> float:
    """Return the mean share of a query's k best candidates that are the same for z̃_j and z_j.

    Args:
        transformed_query, past_query: [Q, D]; transformed_candidate, past_candidate: [N, D].
    Returns: in [0, 1]; NaN if Q or N is 0.
    """
    _check(transformed_query, past_query)
    _check(transformed_candidate, past_candidate)
    total, n = len(past_query), len(past_candidate)
    if not total or not n:
        return float("nan")
    k = min(k, n)
    new = best_candidates(transformed_query, transformed_candidate, k)
    old = best_candidates(past_query, past_candidate, k)
    both = torch.cat([new, old], dim=1).sort(dim=1).values
    return int((both[:, 1:] == both[:, :-1]).sum()) / (total * k)


def as_dim(embeddings: Tensor, dim: int) -> Tensor:
    """Return the first `dim` coordinates, [N, dim], padded with zeros if there are fewer. This is
    how a consumer that ignores versions reads embeddings of another dim."""
    missing = dim - embeddings.shape[-1]
    return torch.nn.functional.pad(embeddings, (0, missing)) if missing else embeddings


def _check(transformed: Tensor, past: Tensor) -> None:
    if transformed.shape != past.shape:
        raise ShapeError(
            f"Transformed embeddings are {list(transformed.shape)} and past ones "
            f"{list(past.shape)}; they must be of the same objects and dim."
        )


NEIGHBOURS = 10  # neighbours per query in the overlap
Affine = tuple[Tensor, Tensor | None]  # W [D_old, D_new] and an offset [D_old]


@dataclass(frozen=True)
class VectorPairs:
    """Old [n, D_old] and new [n, D_new] vectors of the same objects."""

    old: Tensor
    new: Tensor

    def double(self) -> VectorPairs:
        """Return both arrays in float64."""
        return VectorPairs(self.old.double(), self.new.double())


def mapping_readings(
    maps: dict[str, Affine], held: SecondMoments, queries: VectorPairs, catalogue: VectorPairs
) -> dict[str, dict[str, float]]:
    """Return the quality of each map by name, and of "as_is", which uses new vectors unchanged.

    Args:
        held: moments of all held-out pairs, for the relative error √(E‖δ‖² / E‖z_old‖²).
        queries: held-out objects, for the mean cosine and as queries for neighbours.
        catalogue: other objects, the candidates for neighbours by cosine.
    Returns: {"cosine", "relative_error", "overlap@10", "overlap@10_own_queries"}; the last is for a
        consumer that keeps its old query vectors and reads new candidates.
    """
    named_maps: dict[str, Affine] = {
        "as_is": (torch.eye(held.old_dim, held.new_dim), None),
        **maps,
    }
    # Use float64: if vectors share a large mean, their cosines differ beyond float32 precision.
    queries, catalogue = queries.double(), catalogue.double()
    past, others = (torch.nn.functional.normalize(p.old, dim=1) for p in (queries, catalogue))
    power = held.power
    readings = {}
    for name, (weight, offset) in named_maps.items():
        mapped, mapped_others = (
            torch.nn.functional.normalize(mapped_rows(p.new, weight, offset), dim=1)
            for p in (queries, catalogue)
        )
        readings[name] = {
            "cosine": float((mapped * past).sum(1).mean()),
            "relative_error": math.sqrt(held.error(weight, offset) / power) if power else math.nan,
            "overlap@10": overlap(mapped, mapped_others, past, others, NEIGHBOURS),
            "overlap@10_own_queries": overlap(past, mapped_others, past, others, NEIGHBOURS),
        }
    return readings


def chance_reading(
    fitted: Affine, chance: Chance, queries: VectorPairs, catalogue: int
) -> dict[str, float]:
    """Return the quality of a map on shuffled pairs, with the keys of `mapping_readings`;
    `catalogue` is the number of candidates for neighbours."""
    mapped = torch.nn.functional.normalize(mapped_rows(queries.new, *fitted), dim=1).double()
    past = torch.nn.functional.normalize(queries.old, dim=1).double()
    count = len(mapped)
    others = mapped.sum(0) @ past.sum(0) - (mapped * past).sum()
    overlap_by_chance = min(1.0, NEIGHBOURS / catalogue) if catalogue else math.nan
    return {
        "cosine": float(others) / (count * (count - 1)) if count > 1 else math.nan,
        "relative_error": chance.relative_error,
        "overlap@10": overlap_by_chance,
        "overlap@10_own_queries": overlap_by_chance,
    }
