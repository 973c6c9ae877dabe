"""A synthetic corpus with known tastes, popularity, arrival times and rating quality."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Corpus

# The weight of affinity in the logits; it makes the true ranking far better than popularity.
SHARPNESS = 6.0
GROUPS, FACTORS = 10, 8
# The number of time slices, and how far the taste of each query drifts over all of them.
SLICES, DRIFT = 40, 0.3


@dataclass(frozen=True)
class Planted:
    """A corpus and its ground truth, in the corpus's row order."""

    corpus: Corpus  # the data for a model
    query_factors: Tensor  # [Q, F], after the last time slice
    candidate_factors: Tensor  # [C, F]
    log_popularity: Tensor  # [C]
    quality: Tensor  # [C]; it raises a candidate's ratings

    def scores(self, rows: Tensor) -> Tensor:
        """Return the true logits of every candidate for the queries `rows`, [b, C]."""
        affinity = self.query_factors[rows] @ self.candidate_factors.T
        scores: Tensor = SHARPNESS * affinity + self.log_popularity
        return scores


def generate(
    *,
    queries: int = 2000,
    candidates: int = 1000,
    interactions: int = 60_000,
    seed: int = 0,
) -> Planted:
    """Draw a corpus; the same arguments give the same corpus.

    Queries and candidates cluster around a few centres. Two fifths of them exist from the start,
    the others arrive later. In each of `SLICES` time slices, queries that have arrived are drawn by
    their activity, and each draws a candidate from a softmax of affinity and log-popularity. A
    rating (1 to 5) is a quality linear in the candidate's factors, plus affinity, plus noise.
    """
    draw = torch.Generator().manual_seed(seed)
    centres = _unit(torch.randn(GROUPS, FACTORS, generator=draw))
    taste, target = (_around(centres, queries, 0.6, draw)[0] for _ in range(2))
    item, group = _around(centres, candidates, 0.5, draw)
    rank = torch.randperm(candidates, generator=draw) + 1
    log_popularity = -torch.log(rank.float() + 10)
    activity = 1 / (torch.randperm(queries, generator=draw) + 20).float()
    direction = _unit(torch.randn(FACTORS, generator=draw))
    quality = item @ direction + 0.1 * torch.randn(candidates, generator=draw)
    arrivals = []
    for size in (queries, candidates):  # two fifths at 0, the rest uniform in [0, 0.95)
        early = torch.rand(size, generator=draw) < 0.4
        early[0] = True  # even the smallest corpus needs one from the start
        arrivals.append(torch.where(early, 0.0, 0.95 * torch.rand(size, generator=draw)))
    columns: dict[str, list[Tensor]] = {"query": [], "candidate": [], "value": [], "time": []}
    for moment in range(SLICES):
        now = (moment + 0.5) / SLICES
        before = interactions * moment // SLICES
        count = interactions * (moment + 1) // SLICES - before
        if not count:  # fewer interactions than slices
            continue
        query = torch.multinomial(activity * (arrivals[0] <= now), count, True, generator=draw)
        current = _unit((1 - DRIFT * now) * taste + DRIFT * now * target)[query]
        logits = SHARPNESS * (current @ item.T) + log_popularity
        logits = logits.masked_fill(arrivals[1] > now, -torch.inf)
        # The Gumbel trick: with Gumbel noise, the argmax of the logits is a softmax draw.
        noise = torch.rand(logits.shape, generator=draw).clamp(1e-12, 1 - 1e-7)
        candidate = (logits - torch.log(-torch.log(noise))).argmax(1)
        rating = 3.2 + 1.5 * quality[candidate] + 0.6 * (current * item[candidate]).sum(1)
        rating = rating + 0.5 * torch.randn(count, generator=draw)
        columns["query"].append(query)
        columns["candidate"].append(candidate)
        columns["value"].append(rating.round().clamp(1, 5))
        columns["time"].append(torch.arange(count) + before)
    table = pa.table({name: torch.cat(parts).numpy() for name, parts in columns.items()})
    groups = [f"g{g}" for g in group.tolist()]
    features = pa.table({"id": range(candidates), "group": groups, "tags": _tags(group, draw)})
    corpus = Corpus.of(table, candidate_features=features)
    final = _unit((1 - DRIFT) * taste + DRIFT * target)
    query, candidate = (
        torch.from_numpy(side.vocabulary.keys.to_numpy().copy()) for side in corpus.sides.values()
    )
    return Planted(
        corpus, final[query], item[candidate], log_popularity[candidate], quality[candidate]
    )


def _unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


def _around(
    centres: Tensor, size: int, spread: float, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw unit vectors around centres, and return the number of each one's centre."""
    group = torch.randint(len(centres), (size,), generator=draw)
    noise = torch.randn(size, centres.shape[1], generator=draw) / centres.shape[1] ** 0.5
    return _unit(centres[group] + spread * noise), group


def _tags(group: Tensor, draw: torch.Generator) -> list[list[str]]:
    """Draw one to three tags for each entity, mostly from its group."""
    count = torch.randint(1, 4, (len(group),), generator=draw)
    stray = torch.rand(len(group), 3, generator=draw) < 0.2
    other = torch.randint(GROUPS, (len(group), 3), generator=draw)
    root = torch.where(stray, other, group[:, None])
    kinds = torch.randint(4, (len(group), 3), generator=draw)
    return [
        sorted({f"t{root[i, j]}-{kinds[i, j]}" for j in range(int(count[i]))})
        for i in range(len(group))
    ]
