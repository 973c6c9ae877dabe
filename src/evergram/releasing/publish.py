"""Publish a version: check limits, run all probes, then write it to the lineage."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from evergram.atomic_files import remove_folder
from evergram.errors import DegradationError
from evergram.evaluation.metric_sample import NORMAL
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.diagnosis import LEAST_QUERIES, version_warnings
from evergram.lineage.lineage import Lineage
from evergram.releasing.probes import ProbeReading, refuse_broken, with_probes
from evergram.releasing.skew import HALF, skew
from evergram.training.recipe import Recipe

REFUSED = "The new version was not published: "
log: logging.Logger = logging.getLogger(__name__)
# Name of the reference model that was trained without alignment.
ALONE = "alone"
NOT_ALONE = "the model was not trained alone (upgrade.alone is false)"
NOT_MEASURED = (
    "{} was not measured, so nothing is known of what it loses; add it to `metrics` in the recipe."
)


@dataclass(frozen=True)
class Published:
    """The result of `publish`: the version number, all metrics, all probe readings, and a warning
    for each broken probe and each missing certificate."""

    version: int
    metrics: Mapping[str, Any]
    probes: Sequence[ProbeReading]
    warnings: Sequence[str]


def publish(
    lineage: Lineage,
    artefact: Artefact,
    *,
    max_degradation: float | None = None,
    max_loss: float | None = None,
    strict_probes: bool = False,
    promote: bool = True,
) -> Published:
    """Check a version's limits, run every consumer's probe, and publish it.

    >>> import evergram
    >>> data = {"kind": "synthetic", "queries": 200, "candidates": 100, "interactions": 4000}
    >>> recipe = evergram.Recipe.of({"data": data, "training": {"epochs": 3}})
    >>> lineage = evergram.Lineage.create("lineages/new", "new")
    >>> published = evergram.publish(lineage, evergram.train(recipe))
    >>> published.version, lineage.newest
    (0, 0)

    Args:
        max_degradation: largest loss of `training.metric` in percent, compared with the same model
            trained alone, and with each past version when this one is read as it.
        max_loss: largest loss in percent of an index with half of its rows one version old, read
            through the chain; see `skew`.
        strict_probes: publish only if no probe violates its limit.
        promote: as for `Lineage.publish`.
    Raises: DegradationError: a limit is exceeded or could not be measured; nothing is published.
        Others as `Lineage.publish`.
    """
    readings: list[ProbeReading] = []
    measured: Mapping[str, Any] = {}

    def gate(fitting: Artefact) -> Artefact:
        nonlocal measured
        if max_degradation is not None:
            refuse_degradation(fitting, lineage.readable, max_degradation)
        if lineage.versions:
            fitting, found = with_probes(fitting, lineage)
            readings.extend(found)
        if strict_probes:
            refuse_untried(lineage)
            refuse_broken(readings)
        if max_loss is not None:
            fitting = with_skew(fitting, lineage, max_loss)
        measured = fitting.metrics
        return fitting

    number = lineage.publish(artefact, promote=promote, gate=gate)
    warnings = [r.sentence for r in readings if r.broken]
    warnings += [f"Version {number}: {warning}" for warning in version_warnings(lineage)[number]]
    for sentence in warnings:
        log.warning(sentence)
    return Published(number, measured, readings, warnings)


def refuse_unmeasurable(
    lineage: Lineage, recipe: Recipe, max_degradation: float | None, strict_probes: bool
) -> None:
    """Refuse, before a long training, limits that can never be checked."""
    if strict_probes:
        refuse_untried(lineage)
    if max_degradation is None:
        return
    if recipe.training.metric not in recipe.metrics:
        raise DegradationError(REFUSED + NOT_MEASURED.format(recipe.training.metric))
    if not recipe.upgrade.alone:
        raise DegradationError(f"{REFUSED}{NOT_ALONE}.")


def refuse_untried(lineage: Lineage) -> None:
    """Raises: DegradationError: no consumer has a probe with a limit."""
    probes = [c.probe for c in ConsumerRegistry.open(lineage.address).list() if c.probe is not None]
    if all(probe.min is None and probe.max is None for probe in probes):
        raise DegradationError(
            f"{REFUSED}no consumer has a probe with a limit, so --strict-probes compares nothing; "
            "add one by 'evergram consumer add' with --probe and --limit, or leave it out."
        )


@dataclass(frozen=True)
class MetricLoss:
    """Loss of a metric in percent of a reference. The mean is NaN if the reference's metric is not
    positive. `worst` is the upper end of the 95 % interval of a sampled metric, infinity if its
    standard error is unknown."""

    mean: float
    worst: float
    queries: int


def losses(report: Mapping[str, Any], metric: str) -> dict[str, MetricLoss]:
    """Return a version's losses of `metric` by reference: "alone", the same model without
    alignment, and "0", "1", …, past versions on the objects that they knew."""
    tables, found = report["metrics"], {}
    if ALONE in tables:
        queries = report.get("data", {}).get("test_queries", 0)
        found[ALONE] = _loss(tables["model"], tables[ALONE], metric, report, ALONE, queries)
    for version, reading in report.get("compatibility", {}).items():
        ranking, queries = reading["ranking"], reading["queries"]
        found[version] = _loss(ranking["chain"], ranking["past"], metric, reading, "past", queries)
    return found


def _loss(
    now: Mapping[str, Any],
    was: Mapping[str, Any],
    metric: str,
    measured: Mapping[str, Any],
    reference: str,
    queries: int,
) -> MetricLoss:
    """Return the loss from `was` to `now`; `measured` has its standard error."""
    new, old, mean = now.get(metric), was.get(metric), math.nan
    if _is_number(new) and _is_number(old) and old > 0:
        mean = 100 * (old - new) / old
    error: Any = 0.0  # all queries were ranked
    if "sampled" in measured:
        try:
            error = measured["sampled"]["loss"][reference][metric]
        except (LookupError, TypeError):
            error = None
        error = error if _is_number(error) and error >= 0 else math.inf
    return MetricLoss(mean, mean + NORMAL * error, queries)


def refuse_degradation(artefact: Artefact, past: Sequence[int], limit: float) -> None:
    """Raises: DegradationError: the model, or its reading as one of the `past` versions, loses more
    than `limit` percent of `training.metric`, or the loss is unknown."""
    if not limit >= 0:
        raise DegradationError(f"max_degradation is {limit}; it is a percentage, such as 2.")
    metric = artefact.recipe.get("training", {}).get("metric")
    if metric is None or not past:
        why = "no model was trained for it" if past else "there is no version before it"
        raise DegradationError(f"{REFUSED}{why}, so no loss can be limited; leave the limit out.")
    report = artefact.metrics
    if "untested" in report:
        raise DegradationError(f"{REFUSED}{report['untested']}")
    if not _is_number(report.get("metrics", {}).get("model", {}).get(metric)):
        raise DegradationError(REFUSED + NOT_MEASURED.format(metric))
    known = losses(report, metric)
    reasons: list[str] = []
    lost: list[str] = []
    for name in (ALONE, *map(str, past)):
        what = "the model trained alone" if name == ALONE else f"version {name}"
        loss = known.get(name)
        if loss is None:
            reasons.append(NOT_ALONE if name == ALONE else f"reading it as {what} was not measured")
        elif loss.queries < LEAST_QUERIES:
            reasons.append(
                f"{what} knew {loss.queries} test queries, and {LEAST_QUERIES} are needed"
            )
        elif math.isnan(loss.mean):
            reasons.append(f"{what} had no {metric} above 0, of which something could be lost")
        elif loss.worst == math.inf:
            reasons.append(f"{what}: only a sample of queries was ranked, and its error is unknown")
        elif not loss.worst <= limit:
            mean = f"{loss.mean:.2f} %, by its sample of queries up to "
            exact = loss.worst == loss.mean
            to = "to" if name == ALONE else "as"
            lost.append(f"{'' if exact else mean}{loss.worst:.2f} % {to} {what}")
    if reasons:
        raise DegradationError(
            f"{REFUSED}at most {limit:g} % of {metric} may be lost, and that cannot be measured: "
            f"{'; '.join(reasons)}. The same command without the limit goes on from checkpoints."
        )
    if lost:
        raise DegradationError(
            f"{REFUSED}it loses {', '.join(lost)} of {metric}, and at most {limit:g} % is allowed. "
            "The same command with another --max-degradation goes on from its checkpoints."
        )


def with_skew(artefact: Artefact, lineage: Lineage, limit: float) -> Artefact:
    """Measure the loss with half of the rows one version old, on a copy of the lineage; add it to
    the metrics. Raises: DegradationError: it may exceed `limit` percent or is unknown."""
    if not lineage.versions:
        raise DegradationError("The first version has no stale rows; leave max_loss out.")
    lineage.check()  # also downloads a remote lineage's files
    folder = lineage.work_dir / "skew"
    remove_folder(folder)
    try:
        for part in ("versions", "embeddings"):
            shutil.copytree(lineage.path / part, folder / part, copy_function=_linked)
        shutil.copy(lineage.path / "lineage.json", folder)
        copy = Lineage.open(folder)
        copy.label("before", copy.newest)  # keeps its vectors
        copy.publish(artefact, promote=False)
        report = skew(copy, [HALF])
    finally:
        remove_folder(folder)
    if past := report.past_limit(limit):
        todo = "Raise --max-loss, or leave it out and refresh all rows before serving."
        raise DegradationError(f"The new version was not published. {past[0]} {todo}")
    return replace(artefact, metrics={**artefact.metrics, "skew": report.as_json()})


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copy(source, target)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and math.isfinite(value)
