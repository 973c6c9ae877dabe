"""Why two models cannot be judged by these files: one list, in text and in JSON."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.compatibility.aligner.aligner import Aligner
from evergram.compatibility.chance import LEAST_DEVIATIONS, beside_chance
from evergram.compatibility.degenerate import MOST_ZEROS
from evergram.compatibility.second_moments import SecondMoments
from evergram.releasing.migration.migration_vectors import MigrationVectors, unit

# With fewer judged queries there is no verdict.
LEAST_QUERIES = 20
# Queries whose vectors have such a cosine by both models are one query.
SAME_QUERY = 1 - 1e-5
# Queries compared at once.
BLOCK = 1024
# Texts by which a file is searched for a second model, and principal components that they keep.
TEXTS, NEW_DIMS, OLD_DIMS = 2000, 16, 64
# How far a row is from following two maps alike is |e₁ − e₂| / (e₁ + e₂). Where one model made all
# rows, it is spread around 0, and its first decile was at most .31 of its median in 384 made-up
# pairs of models. Where two did, hardly any row is near 0, and it is .4 to .8.
APART = 0.4
# Starts that are tried; two groups are settled when at most such a share of the rows changes.
STARTS, SETTLED, ROUNDS = 3, 0.01, 50


def distinct_queries(vectors: MigrationVectors) -> Tensor:
    """Return a number of each query, from 0, that those with the same vectors by both models share,
    int64 [Q]."""
    sides = unit(vectors.old_queries), unit(vectors.new_queries)
    first = []
    for start in range(0, len(sides[0]), BLOCK):
        same = torch.stack([s[start : start + BLOCK] @ s.T >= SAME_QUERY for s in sides]).all(0)
        rows = torch.arange(len(same))
        same[rows, rows + start] = True  # a vector of zeros, too, is its own
        first.append(same.int().argmax(1))
    of_query: Tensor = torch.unique(torch.cat(first), return_inverse=True)[1]
    return of_query


def reasons_not_to_judge(vectors: MigrationVectors, queries: int) -> list[str]:
    """Return a sentence for each reason; none if the models can be compared by these vectors.

    Args:
        queries: how many different ones there are.
    """
    reasons = [
        f"{zeros} of the {len(vectors.files[name])} vectors of {name} are zeros, as failed calls "
        "of an encoder leave them, so its model is not measured; encode them again."
        for name, zeros in vectors.zeros.items()
        if zeros > MOST_ZEROS * len(vectors.files[name])
    ]
    if reasons:
        return reasons
    old, new, old_queries, new_queries = map(unit, vectors.files.values())
    drawn = torch.randperm(len(old), generator=torch.Generator().manual_seed(0))[:TEXTS]
    map_ = Aligner("affine").fit(new[drawn], old[drawn])
    if map_.report().better_than_chance is False:
        return [
            "A map from new to old vectors of texts is no better than with the texts mixed up, so "
            "the same id is not the same text in both files; look at how their ids were written."
        ]
    weight, offset = map_.as_transform().affine() or (None, None)
    assert weight is not None
    pairs = SecondMoments(old.shape[1], new.shape[1])
    pairs.add(old_queries, new_queries)
    chance = beside_chance(pairs, weight, offset, queries)
    if queries >= LEAST_QUERIES and chance.deviations < LEAST_DEVIATIONS:
        reasons.append(
            "The map that reads new vectors of texts as old ones reads those of queries no better "
            "than with the queries mixed up: the two files of queries were swapped, are of other "
            "models than the texts, or the same id is not the same query in both."
        )
    for name, source, target in (("old texts", new, old), ("new texts", old, new)):
        share = second_model(source[drawn], target[drawn])
        if share is not None:
            reasons.append(
                f"{name[:3].capitalize()} vectors of about {share:.0%} of the texts follow another "
                f"map than the rest: the file of {name} holds vectors of two models; encode all "
                "texts by one."
            )
    return reasons


def second_model(source: Tensor, target: Tensor) -> float | None:
    """Return the share of the rows of `target` that another model made than the others; None if
    one model made all.

    Two linear maps from `source` are fitted to one half of the rows, each to those that it reads
    better than the other does, again and again. The other half says whether rows follow one map or
    the other. Residuals of the one map that fits all rows show where to start: between rows i and j
    of one model, ⟨rᵢ, rⱼ⟩⟨xᵢ, xⱼ⟩ is positive in the mean, and negative between those of two.
    """
    x, y = _components(source, NEW_DIMS), _components(target, OLD_DIMS)
    x = torch.cat([x, x.square().sum(1).mean().sqrt().expand(len(x), 1)], dim=1)
    half = len(x) // 2
    seen, others = slice(0, half), slice(half, None)
    residual = y[seen] - x[seen] @ _fit(x[seen], y[seen])
    kernel = (residual @ residual.T) * (x[seen] @ x[seen].T)
    directions = torch.linalg.eigh(kernel)[1][:, -STARTS:].T
    found = [_two_maps(x[seen], y[seen], direction > 0) for direction in directions]
    if not (groups := [maps for maps in found if maps is not None]):
        return None
    maps = min(groups, key=lambda maps: float(_nearer(x[seen], y[seen], maps).sum()))
    one, two = (_errors(x[others], y[others], map_) for map_ in maps)
    apart = (one - two).abs() / (one + two).clamp_min(1e-30)
    few, half_of_rows = apart.quantile(torch.tensor([0.1, 0.5], dtype=apart.dtype)).tolist()
    share = float((one < two).double().mean())
    return min(share, 1 - share) if few > APART * half_of_rows else None


def _two_maps(x: Tensor, y: Tensor, first: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return two maps, each fitted to the rows that it reads better than the other does; None if
    nearly all rows follow one. `first` are those that the first map is fitted to at the start."""
    maps = None
    for _ in range(ROUNDS):
        if min(int(first.sum()), int((~first).sum())) < 2 * x.shape[1]:
            return None
        maps = _fit(x[first], y[first]), _fit(x[~first], y[~first])
        nearer = _errors(x, y, maps[0]) < _errors(x, y, maps[1])
        if int((nearer != first).sum()) <= SETTLED * len(x):
            break
        first = nearer
    return maps


def _components(vectors: Tensor, most: int) -> Tensor:
    """Return centred vectors [n, D] by their first principal components, float64 [n, ≤ most]."""
    centred = vectors.double() - vectors.double().mean(0)
    components: Tensor = torch.linalg.eigh(centred.T @ centred)[1][:, -most:]
    return centred @ components


def _fit(x: Tensor, y: Tensor) -> Tensor:
    square = x.T @ x
    ridge = 0.01 * square.trace() / len(square) * torch.eye(len(square), dtype=x.dtype)
    map_: Tensor = torch.linalg.solve(square + ridge, x.T @ y)
    return map_


def _nearer(x: Tensor, y: Tensor, maps: tuple[Tensor, Tensor]) -> Tensor:
    return torch.minimum(*(_errors(x, y, map_) for map_ in maps))


def _errors(x: Tensor, y: Tensor, map_: Tensor) -> Tensor:
    return (y - x @ map_).square().sum(1)
