"""Measurements of rankings, of Gramian estimates, of maps between versions, and of consumers.

Read in this order:

1. `score_blocks`: all scores, in blocks of bounded memory, and the largest of them. `ranking`:
   Recall@K, NDCG@K and MAP@K over the whole catalogue. `auc`.
   `large_catalogues/`: of a sample of queries, with standard errors, and by an index whose recall
   is measured.
2. `gramian_error`: an estimated Gramian beside the exact one ([G2] Fig. 2 to 4).
   `sampled_gramian_error`: beside a sample, with an interval.
3. `version_distance`: the distance of a version read as a past one from that past version.
   `map_quality`: the same of any map, and of one that mixes the objects up.
4. `degradation`, `consumer_tasks`, `consumer_classifiers`: the protocol of [BC] Section 4 and 5.
5. `judged/`: rankings of texts beside people's judgements. `probes/`: a consumer's own model, run
   in a process of its own. `reports/`: tables and figures.

Sources: [G2] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
ICLR 2019; [BC] Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.evaluation.auc import roc_auc
    from evergram.evaluation.consumer_classifiers import (
        ConsumerClassifiers,
        ConsumerFit,
        ConsumerInputs,
        fit_consumers,
    )
    from evergram.evaluation.consumer_tasks import ConsumerTask, consumer_tasks
    from evergram.evaluation.degradation import Degradation, degradation
    from evergram.evaluation.gramian_error import (
        Histograms,
        gradient_error,
        gramian_error,
        score_histograms,
    )
    from evergram.evaluation.large_catalogues.candidate_index import CandidateIndex, index_metrics
    from evergram.evaluation.large_catalogues.metric_sample import (
        MetricSample,
        SampledRanking,
        sample_queries,
    )
    from evergram.evaluation.map_quality import mapping_readings
    from evergram.evaluation.probes.probe_models import ProbeModel, load_probe_model
    from evergram.evaluation.ranking import (
        Relevance,
        popularity_metrics,
        query_metrics,
        rank_metrics,
    )
    from evergram.evaluation.relevance import relevance_of, test_relevance
    from evergram.evaluation.reports.embedding_map import EmbeddingMap
    from evergram.evaluation.sampled_gramian_error import (
        Interval,
        SampledTruth,
        gradient_error_interval,
        gramian_error_interval,
    )
    from evergram.evaluation.version_distance import as_dim, drift, overlap

__all__ = [
    "CandidateIndex",
    "ConsumerClassifiers",
    "ConsumerFit",
    "ConsumerInputs",
    "ConsumerTask",
    "Degradation",
    "EmbeddingMap",
    "Histograms",
    "Interval",
    "MetricSample",
    "ProbeModel",
    "Relevance",
    "SampledRanking",
    "SampledTruth",
    "as_dim",
    "consumer_tasks",
    "degradation",
    "drift",
    "fit_consumers",
    "gradient_error",
    "gradient_error_interval",
    "gramian_error",
    "gramian_error_interval",
    "index_metrics",
    "load_probe_model",
    "mapping_readings",
    "overlap",
    "popularity_metrics",
    "query_metrics",
    "rank_metrics",
    "relevance_of",
    "roc_auc",
    "sample_queries",
    "score_histograms",
    "test_relevance",
]

export_lazily(
    __name__,
    {
        "auc": "roc_auc",
        "large_catalogues.candidate_index": "CandidateIndex index_metrics",
        "consumer_classifiers": "ConsumerClassifiers ConsumerFit ConsumerInputs fit_consumers",
        "consumer_tasks": "ConsumerTask consumer_tasks",
        "degradation": "Degradation degradation",
        "gramian_error": "Histograms gradient_error gramian_error score_histograms",
        "map_quality": "mapping_readings",
        "large_catalogues.metric_sample": "MetricSample SampledRanking sample_queries",
        "probes.probe_models": "ProbeModel load_probe_model",
        "ranking": "Relevance popularity_metrics query_metrics rank_metrics",
        "reports.embedding_map": "EmbeddingMap",
        "relevance": "relevance_of test_relevance",
        "sampled_gramian_error": "Interval SampledTruth gradient_error_interval "
        "gramian_error_interval",
        "version_distance": "as_dim drift overlap",
    },
)
