"""What an upgrade costs and gives: its own searches, and what users of version 0 still get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from evergram.evaluation import Relevance, drift, rank_metrics
from reproduction.bc.images.roles import ConsumerTask, Roles
from reproduction.comparison.consumer_classifiers import (
    ConsumerClassifiers,
    ConsumerFit,
    ConsumerInputs,
    fit_consumers,
)

# Images of the same class among the ten nearest, by rank; and the image itself as the nearest.
FIRST = 10
SAME_CLASS, ITSELF = f"map@{FIRST}", "recall@1"
FIT = ConsumerFit(epochs=50, patience=5)


@dataclass(frozen=True)
class Reading:
    """The vectors of all N images by one method.

    Args:
        own: [N, D], what the newest version's own users read.
        as_old: [N, D_0], what users of version 0 read in its place.
    """

    own: Tensor
    as_old: Tensor


@dataclass(frozen=True)
class Consumers:
    """Classifiers of version 0's vectors, which are never fitted again.

    Args:
        tasks: by name.
        fitted: the classifiers of each, one a seed.
    """

    tasks: Mapping[str, ConsumerTask]
    fitted: Mapping[str, ConsumerClassifiers]

    @classmethod
    def fit(cls, old: Tensor, tasks: Mapping[str, ConsumerTask], count: int) -> Consumers:
        """Fit `count` classifiers for each task to version 0's vectors [N, D_0]."""
        inputs = partial(_inputs, old)
        fitted = {
            name: fit_consumers(
                (inputs(task.training), task.label[task.training]),
                (inputs(task.validation), task.label[task.validation]),
                seeds=range(count),
                settings=FIT,
            )[0]
            for name, task in tasks.items()
        }
        return cls(tasks, fitted)

    def auc(self, as_old: Tensor) -> dict[str, float]:
        """Return by task the mean ROC-AUC of its classifiers, which read [N, D_0]."""
        return {
            name: fmean(self.fitted[name].auc(_inputs(as_old, task.test), task.label[task.test]))
            for name, task in self.tasks.items()
        }


def _inputs(vectors: Tensor, rows: Tensor) -> ConsumerInputs:
    return ConsumerInputs((vectors,), (rows,))


def search(query: Tensor, index: Tensor, label: Tensor) -> float:
    """Return the MAP@10 of searching for images of a query's class, the image itself left out.

    Args:
        query: [n, D] and index: [n, D], of the same n images. Scores are inner products.
        label: int64 [n].
    """
    rows = torch.arange(len(label))
    same = label[:, None] == label
    same.fill_diagonal_(False)
    query_rows, targets = same.nonzero().T
    relevance = Relevance.of(query_rows, targets, rows, rows)
    return rank_metrics(query, index, relevance, [SAME_CLASS])[SAME_CLASS]


def cascade_search(own: Tensor, as_old: Tensor, index: Tensor, label: Tensor, depth: int) -> float:
    """Return the MAP@10 of a cascade: an index of old vectors proposes `depth` images for each, and
    the newest version's own vectors rank these. The image itself is left out, as of `search`.

    Args:
        own: [n, D]; as_old: [n, D_0], the queries that search the index [n, D_0]; of the same n
            images. Scores are inner products.
        label: int64 [n].
    """
    first = (as_old @ index.T).fill_diagonal_(-torch.inf)
    proposed = first.topk(min(depth, len(label) - 1)).indices
    scores = (own @ own.T).gather(1, proposed)
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :FIRST]
    hit = (label[proposed.gather(1, best)] == label[:, None]).double()
    precision = hit.cumsum(1) / torch.arange(1, hit.shape[1] + 1)
    most = (torch.bincount(label)[label] - 1).clamp(max=FIRST)
    return float(((precision * hit).sum(1) / most).mean())


def finds_itself(query: Tensor, index: Tensor) -> float:
    """Return the share of images [n, D] whose nearest in an index [n, D] is the image itself, by
    distance, so that an image that is near to all does not win by its length."""
    rows = torch.arange(len(query))
    nothing = torch.empty(0, dtype=torch.int64)
    relevance = Relevance.of(rows, rows, nothing, nothing)
    # ‖q − x‖² is least where ⟨q, x⟩ − ½‖x‖² is largest.
    halves = -0.5 * index.square().sum(1, keepdim=True)
    query = torch.cat([query, torch.ones(len(query), 1)], dim=1)
    index = torch.cat([index, halves], dim=1)
    return rank_metrics(query, index, relevance, [ITSELF])[ITSELF]


def measure_all(
    readings: Mapping[str, Reading],
    old: Tensor,
    label: Tensor,
    roles: Roles,
    consumers: Consumers,
    depth: int,
) -> dict[str, dict[str, Any]]:
    """Return what each method gives, on test images.

    Args:
        readings: by method; vectors that several share are measured once.
        old: [N, D_0], version 0's own vectors.
        label: int64 [N].
        depth: images that a cascade ranks again.
    Returns: by method and then by group of images "own" (MAP@10 of the newest version's searches),
        "old index" (that of its vectors read as version 0, as queries to an index of version 0's),
        "cascade" (that of `cascade_search`, which takes its queries there),
        "itself" (the share of images that find themselves there) and "error" ([BC] metric 3, "l2"
        and "relative"); and "consumers", their AUC by task.
    """
    groups = roles.tested
    own: dict[int, dict[str, float]] = {}
    past: dict[int, dict[str, Any]] = {}
    for reading in readings.values():
        mine, theirs = reading.own, reading.as_old
        if id(mine) not in own:
            own[id(mine)] = {g: search(mine[r], mine[r], label[r]) for g, r in groups.items()}
        if id(theirs) not in past:
            past[id(theirs)] = {
                "old index": {g: search(theirs[r], old[r], label[r]) for g, r in groups.items()},
                "itself": {g: finds_itself(theirs[r], old[r]) for g, r in groups.items()},
                "error": {g: drift(theirs[r], old[r]) for g, r in groups.items()},
                "consumers": consumers.auc(theirs),
            }
    return {
        name: {
            "own": own[id(reading.own)],
            "cascade": {
                g: cascade_search(reading.own[r], reading.as_old[r], old[r], label[r], depth)
                for g, r in groups.items()
            },
            **past[id(reading.as_old)],
        }
        for name, reading in readings.items()
    }
