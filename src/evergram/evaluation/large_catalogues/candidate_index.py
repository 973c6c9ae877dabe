"""Rank by an approximate index of the candidates, whose recall is measured before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from evergram.data.corpus import take_ragged
from evergram.errors import DataError, ShapeError
from evergram.evaluation.large_catalogues.metric_sample import sample_queries
from evergram.evaluation.ranking import METRICS, Relevance, parse_metric, values_of_ranks
from evergram.evaluation.score_blocks import best_candidates

IndexKind = Literal["hnsw", "ivf"]
# Recall that an index must have, and the queries that it is measured on.
RECALL, MEASURED = 0.95, 1000
# Neighbours of a candidate in HNSW's graph, and how many are looked at while it is built.
NEIGHBOURS, BUILDING = 32, 80
# Rows that IVF's centres are learned from, for each list.
TRAINING = 64
# Places of lists that are held at once.
PLACES = 1 << 21


@dataclass(frozen=True)
class IndexRecall:
    """The share of the k best candidates, by exact inner products, that an index returns.

    Args:
        recall: the share, over `queries` queries.
        effort: IVF's lists, or HNSW's candidates, that a search looks at.
    """

    recall: float
    k: int
    queries: int
    effort: int


class CandidateIndex:
    """A faiss index of candidates by inner product.

    Args:
        candidate: [N, D], finite.
        kind: "hnsw", a graph of neighbours, or "ivf", lists around centres.
    Attributes:
        measured: None until `measure`; nothing can be searched before.
    Raises: DataError: faiss is not installed.
    """

    def __init__(self, candidate: Tensor, kind: IndexKind) -> None:
        try:
            import faiss
        except ImportError:
            raise DataError(
                "To rank by an index, faiss is needed: pip install 'evergram[faiss]'; or rank "
                "without one."
            ) from None
        self.candidate: Tensor = candidate.detach().float().cpu()
        self.kind = kind
        vectors = np.ascontiguousarray(self.candidate.numpy())
        size, dim = vectors.shape
        self.measured: IndexRecall | None = None
        if kind == "hnsw":
            self._index: Any = faiss.IndexHNSWFlat(dim, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
            self._index.hnsw.efConstruction = BUILDING
            self._most = size
        else:
            lists = max(1, min(round(2 * size**0.5), size // TRAINING))
            coarse = faiss.IndexFlatIP(dim)
            self._index = faiss.IndexIVFFlat(coarse, dim, lists, faiss.METRIC_INNER_PRODUCT)
            self._index.cp.max_points_per_centroid = TRAINING
            self._index.cp.min_points_per_centroid = 1
            self._index.train(vectors)
            # Kept: faiss does not own it.
            self._coarse, self._most = coarse, lists
        self._index.add(vectors)

    def measure(self, query: Tensor, k: int) -> IndexRecall:
        """Look at more and more until the recall of the k best is `RECALL`, and return it.

        Args:
            query: [Q, D], such as those that are to be ranked.
        Raises: DataError: even the widest search finds less, or there is no query.
        """
        k = min(k, len(self.candidate))
        truth = best_candidates(query.detach().float().cpu(), self.candidate, k)
        if not len(truth):
            raise DataError("The recall of an index needs queries to be measured on; there are 0.")
        rows = torch.arange(len(truth))[:, None] * len(self.candidate)
        effort = min(self._most, 16 if self.kind == "ivf" else max(64, k))
        while True:
            _, places = self._search(query, k, effort)
            cells = torch.where(places >= 0, rows + places, -1)
            recall = float(torch.isin(rows + truth, cells).sum()) / truth.numel()
            if recall >= RECALL:
                self.measured = IndexRecall(recall, k, len(truth), effort)
                return self.measured
            if effort >= self._most:
                raise DataError(
                    f"The {self.kind} index finds {recall:.1%} of the {k} best candidates, and "
                    f"{RECALL:.0%} are needed; choose another index, or rank without one."
                )
            effort = min(self._most, 2 * effort)

    def search(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return scores and places of about the k best candidates, [Q, k], best first; a place is
        −1 where fewer were found.

        Raises: DataError: the recall was not measured.
        """
        if self.measured is None:
            raise DataError(
                "The recall of this index was not measured, so nothing may be said by it; call "
                "measure first."
            )
        effort = self.measured.effort
        if self.kind == "hnsw":
            effort = max(effort, k)
        return self._search(query, k, effort)

    def _search(self, query: Tensor, k: int, effort: int) -> tuple[Tensor, Tensor]:
        if self.kind == "hnsw":
            self._index.hnsw.efSearch = effort
        else:
            self._index.nprobe = effort
        vectors = np.ascontiguousarray(query.detach().float().cpu().numpy())
        scores, places = self._index.search(vectors, k)
        return torch.from_numpy(scores), torch.from_numpy(places)


def index_metrics(
    query: Tensor,
    relevance: Relevance,
    index: CandidateIndex,
    names: Sequence[str] = METRICS,
    *,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Return the metrics of each query by the candidates that an index finds, float64 [Q].

    The recall is measured first, against exact ranking, on `MEASURED` of the queries. A target that
    the index misses is a miss; seen candidates that it finds are passed over, so that as many more
    are asked for.

    Args:
        query: [N_q, D].
        names: as of `rank_metrics`.
        seed: draws the queries that the recall is measured on.
    Raises: DataError: the recall is too low. ShapeError: the dims differ.
    """
    if query.shape[-1] != index.candidate.shape[-1]:
        raise ShapeError(
            f"Queries have dim {query.shape[-1]} and candidates {index.candidate.shape[-1]}; "
            "embeddings of one version are needed on both sides."
        )
    wanted = {name: parse_metric(name) for name in names}
    depth = max(k for _, k in wanted.values())
    sample = sample_queries(relevance, MEASURED, seed)
    index.measure(query[sample.queries], depth)
    values = {name: torch.zeros(len(relevance), dtype=torch.float64) for name in names}
    # Queries that have seen as much are searched together.
    order = torch.argsort(relevance.seen_offsets.diff(), stable=True)
    start = 0
    while start < len(order):
        rows = max(1, PLACES // (depth + 1 + _seen(relevance, order[start])))
        block = order[start : start + rows]
        asked = depth + 1 + _seen(relevance, block[-1])
        asked = min(asked, len(index.candidate))
        searched = index.search(query[relevance.queries[block]], asked)
        rank, owner, size = _ranks(searched, relevance, block, (depth, len(index.candidate)))
        for name, metric in wanted.items():
            values[name][block] = values_of_ranks(metric, rank, owner, size)
        start += len(block)
    return values


def _seen(relevance: Relevance, place: Tensor) -> int:
    return int(relevance.seen_offsets[place + 1] - relevance.seen_offsets[place])


def _ranks(
    searched: tuple[Tensor, Tensor], relevance: Relevance, block: Tensor, sizes: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ranks [t], owners [t] and sizes [b] of a block's targets, as of `values_of_ranks`.

    Args:
        searched: scores and places [b, k].
        sizes: the largest K, and the number of candidates.
    """
    (scores, places), (depth, candidates) = searched, sizes
    rows = torch.arange(len(block))

    def keys(column: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        inside, at = take_ragged(column, offsets, block)
        owner = torch.repeat_interleave(rows, at.diff())
        return torch.where(inside >= 0, owner * candidates + inside, -1), owner

    cells = torch.where(places >= 0, rows[:, None] * candidates + places, -2)
    hidden, _ = keys(relevance.seen, relevance.seen_offsets)
    # As of `rank_metrics`, a seen candidate is in no list.
    scores = scores.masked_fill(torch.isin(cells, hidden) | (places < 0), -torch.inf)
    targets, owner = keys(relevance.targets, relevance.target_offsets)
    size = torch.bincount(owner, minlength=len(block))
    sorted_, order = cells.flatten().sort()
    at = torch.searchsorted(sorted_, targets).clamp(max=len(sorted_) - 1)
    score = torch.where(sorted_[at] == targets, scores.flatten()[order[at]], -torch.inf)
    rank = torch.cat(
        [
            (scores[own] >= s[:, None]).sum(1)
            for own, s in zip(torch.split(owner, 4096), torch.split(score, 4096), strict=True)
        ]
    )
    return torch.where(score == -torch.inf, depth + 1, rank), owner, size
