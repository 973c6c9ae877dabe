"""Measure, by strata of candidates, what a new version keeps of each past one."""

from __future__ import annotations

from evergram.compatibility.chain import Chain
from evergram.errors import EvergramError
from evergram.evaluation.breakdown.strata import recall_by_popularity
from evergram.evaluation.breakdown.target_ranks import metric_of_ranks, target_ranks
from evergram.evaluation.large_catalogues.metric_sample import QueryDraw
from evergram.evaluation.ranking import parse_metric
from evergram.evaluation.reports.version_facts import KeptPast, NotMeasured
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.html_report.model_facts import MeasuredModel
from evergram.releasing.past_models import known_vectors, past_model
from evergram.releasing.past_version_report import known_relevance


def kept_of_past(
    lineage: Lineage, artefact: Artefact, model: MeasuredModel
) -> dict[str, KeptPast | NotMeasured]:
    """Return what is kept of every past version, on the queries that its reading is of.

    Args:
        lineage: without the artefact.
        model: of the artefact.
    """
    if artefact.transform is None:
        return {}
    chain = lineage.chain.extended(artefact.transform)
    readings = artefact.metrics.get("compatibility", {})
    kept: dict[str, KeptPast | NotMeasured] = {}
    for version in lineage.readable:
        reading = readings.get(str(version))
        if reading is None:
            kept[str(version)] = NotMeasured("Its model was not given, and is not stored.")
        elif not reading["queries"]:
            kept[str(version)] = NotMeasured("It knew none of the test queries.")
        else:
            try:
                kept[str(version)] = _kept(lineage, version, chain, model, reading["queries"])
            except EvergramError as error:
                kept[str(version)] = NotMeasured(str(error))
    return kept


def _kept(
    lineage: Lineage, version: int, chain: Chain, model: MeasuredModel, queries: int
) -> KeptPast | NotMeasured:
    past_encoder = past_model(lineage, version)
    if past_encoder is None:
        return NotMeasured("Its model was not given, and is not stored.")
    past, known = known_vectors(past_encoder, model.split.training)
    catalogue = known["candidate"]
    relevance = known_relevance(model.split, known)
    # The queries of the published reading: the same seed draws the same ones.
    relevance = QueryDraw(queries, model.recipe.seed).of(relevance)
    metric = model.recipe.training.metric
    back = {s: chain.apply(v, chain.newest, version) for s, v in model.vectors.items()}
    ranks = {
        name: target_ranks(vectors["query"], vectors["candidate"][catalogue], relevance)
        for name, vectors in (("past", past), ("chain", back), ("new", model.vectors))
    }
    counts = model.split.training.counts("candidate")[catalogue]
    k = parse_metric(metric)[1]
    return KeptPast(
        float(metric_of_ranks(metric, ranks["new"], relevance).mean()),
        recall_by_popularity(ranks, relevance.targets, counts, k),
    )
