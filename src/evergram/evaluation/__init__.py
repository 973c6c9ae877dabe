"""Measure embeddings: rankings, Gramians, consumers, and versions read as past ones.

Read in this order: `ranking` (Recall, NDCG, MAP over the whole catalogue), `relevance` (targets
and masks of a split), `gramian_error`, `version_distance`, `map_quality` (maps between
files), `consumer_tasks` and `consumer_classifiers` (teams that stay on version 0), `degradation`
(the metrics of [BC] §4). `probes/` runs consumers' own models apart, `reports/` draws.

[BC] Hu et al., Learning backward compatible embeddings, KDD 2022. [G2] Krichene et al., Efficient
training on very large corpora via Gramian estimation, ICLR 2019.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.evaluation.auc import roc_auc
    from evergram.evaluation.consumer_classifiers import ConsumerClassifiers, fit_consumers
    from evergram.evaluation.consumer_tasks import ConsumerTask
    from evergram.evaluation.degradation import Degradation
    from evergram.evaluation.gramian_error import gradient_error, score_histograms
    from evergram.evaluation.map_quality import mapping_readings
    from evergram.evaluation.ranking import Relevance, popularity_metrics, rank_metrics
    from evergram.evaluation.relevance import relevance_of, test_relevance
    from evergram.evaluation.version_distance import as_dim, drift, overlap

__all__ = [
    "ConsumerClassifiers",
    "ConsumerTask",
    "Degradation",
    "Relevance",
    "as_dim",
    "drift",
    "fit_consumers",
    "gradient_error",
    "mapping_readings",
    "overlap",
    "popularity_metrics",
    "rank_metrics",
    "relevance_of",
    "roc_auc",
    "score_histograms",
    "test_relevance",
]

# Imported when first used: to read a recipe does not wait for torch.
_HOME = {
    "ConsumerClassifiers": "evergram.evaluation.consumer_classifiers",
    "ConsumerTask": "evergram.evaluation.consumer_tasks",
    "Degradation": "evergram.evaluation.degradation",
    "Relevance": "evergram.evaluation.ranking",
    "as_dim": "evergram.evaluation.version_distance",
    "drift": "evergram.evaluation.version_distance",
    "fit_consumers": "evergram.evaluation.consumer_classifiers",
    "gradient_error": "evergram.evaluation.gramian_error",
    "mapping_readings": "evergram.evaluation.map_quality",
    "overlap": "evergram.evaluation.version_distance",
    "popularity_metrics": "evergram.evaluation.ranking",
    "rank_metrics": "evergram.evaluation.ranking",
    "relevance_of": "evergram.evaluation.relevance",
    "roc_auc": "evergram.evaluation.auc",
    "score_histograms": "evergram.evaluation.gramian_error",
    "test_relevance": "evergram.evaluation.relevance",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'evergram.evaluation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
