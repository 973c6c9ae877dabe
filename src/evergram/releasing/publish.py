"""Publish a version: check the limits, run every consumer's probe, then write it to the lineage."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evergram.errors import DegradationError
from evergram.evaluation.large_catalogues.metric_sample import NORMAL
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.lineage.publication import publish_version
from evergram.lineage.publication_checks import check_artefact
from evergram.lineage.version_warnings import LEAST_QUERIES, version_warnings
from evergram.releasing.probes import ProbeReading, refuse_broken, with_probes
from evergram.training.recipe import Recipe

REFUSED = "The new version was not published: "
log: logging.Logger = logging.getLogger(__name__)
# The name of the model trained without alignment among the references of a version.
ALONE = "alone"


@dataclass(frozen=True)
class Published:
    """The result of `publish`.

    Args:
        version: its number.
        metrics: all that was measured, with every probe's reading as "probes".
        probes: the readings of all probes.
        warnings: a sentence on each broken probe, and on each thing that could not be certified.
    """

    version: int
    metrics: Mapping[str, Any]
    probes: Sequence[ProbeReading]
    warnings: Sequence[str]


def publish(
    lineage: Lineage,
    artefact: Artefact,
    *,
    max_degradation: float | None = None,
    strict_probes: bool = False,
    promote: bool = True,
    warn: Callable[[str], None] = log.warning,
) -> Published:
    """Run every consumer's probe on a version, hold it to the limits, and publish it.

    `evergram upgrade` and `evergram vectors align` publish by this function.

    >>> import evergram
    >>> data = {"kind": "synthetic", "queries": 200, "candidates": 100, "interactions": 4000}
    >>> recipe = evergram.Recipe.of({"data": data, "training": {"epochs": 3}})
    >>> lineage = evergram.Lineage.create("lineages/new", "new")
    >>> published = evergram.publish(lineage, evergram.train(recipe))
    >>> published.version, lineage.newest
    (0, 0)

    Args:
        max_degradation: percent of `training.metric` that the model may lose to the same model
            trained alone, and that a past version may lose when this one is read as it.
        strict_probes: publish only if no probe is past its limit.
        promote: as for `Lineage.publish`.
        warn: called with each of `Published.warnings`; by default they go to Python's log.
    Raises: DegradationError: a limit is passed or could not be measured; nothing is published.
        Others as `Lineage.publish`.
    """
    check_artefact(lineage, artefact)
    if max_degradation is not None:
        refuse_degradation(artefact, lineage.readable, max_degradation)
    readings: list[ProbeReading] = []
    if lineage.versions:
        artefact, readings = with_probes(artefact, lineage)
    if strict_probes:
        refuse_untried(lineage)
        refuse_broken(readings)
    number = publish_version(lineage, artefact, promote=promote)
    warnings = [r.sentence for r in readings if r.broken]
    warnings += [f"Version {number}: {warning}" for warning in version_warnings(lineage)[number]]
    for sentence in warnings:
        warn(sentence)
    return Published(number, artefact.metrics, readings, warnings)


def refuse_unmeasurable(
    lineage: Lineage,
    recipe: Recipe,
    *,
    max_degradation: float | None,
    strict_probes: bool,
) -> None:
    """Refuse, before a long training, limits that can never be checked.

    Raises: DegradationError: a limit of degradation is set on a metric that is not measured, or no
        consumer has a probe with a limit.
    """
    if strict_probes:
        refuse_untried(lineage)
    if max_degradation is None:
        return
    _refuse_no_number(max_degradation)
    if recipe.training.metric not in recipe.metrics:
        raise DegradationError(REFUSED + _not_measured(recipe.training.metric))
    if not recipe.upgrade.alone:
        raise DegradationError(f"{REFUSED}{_NO_ALONE}.")


def refuse_untried(lineage: Lineage) -> None:
    """Raises: DegradationError: no consumer has a probe with a limit, so nothing is compared."""
    consumers = ConsumerRegistry.open(lineage.address).list()
    if not any(consumer.probe is not None and consumer.probe.has_limit for consumer in consumers):
        raise DegradationError(
            f"{REFUSED}no consumer has a probe with a limit, so there is nothing that "
            "--strict-probes could hold it to; add one by 'evergram consumer add' with --probe and "
            "--limit, or leave the option out."
        )


def degradation(report: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Return a version's loss in percent of `metric`, by reference: "alone" is the same model
    without alignment, and "0", "1", … are past versions, on the objects that they knew."""
    return {
        name: 100 * (was - now) / was
        for name, (now, was) in _pairs(report, metric).items()
        if _is_number(now) and _is_number(was) and was > 0
    }


def worst_degradation(report: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Return `degradation` at its worse end: of a sampled metric, the upper end of the loss's 95 %
    interval; infinity where its standard error is not known."""
    worst = {}
    for name, loss in degradation(report, metric).items():
        sampled = report.get("sampled")
        if name != ALONE:
            sampled = report["compatibility"][name].get("sampled")
        if sampled is None:
            worst[name] = loss
        else:
            reference = ALONE if name == ALONE else "past"
            worst[name] = loss + NORMAL * _loss_error(sampled, reference, metric)
    return worst


def _loss_error(sampled: Any, reference: str, metric: str) -> float:
    """Return the standard error of a loss; infinity if it is not recorded."""
    for key in ("loss", reference, metric):
        if not isinstance(sampled, Mapping):
            return math.inf
        sampled = sampled.get(key)
    return float(sampled) if _is_number(sampled) and sampled >= 0 else math.inf


def refuse_degradation(artefact: Artefact, past: Sequence[int], limit: float) -> None:
    """Raises: DegradationError: the model, or a past version that the new one is read as, loses
    more than `limit` percent of `training.metric`; or the loss of one could not be measured.

    Args:
        past: the versions that must have been measured.
    """
    _refuse_no_number(limit)
    metric = artefact.recipe.get("training", {}).get("metric")
    if metric is None or not past:
        raise DegradationError(
            f"{REFUSED}a limit of degradation was given, and "
            + ("there is no version before it" if not past else "no model was trained for it")
            + ", so nothing can be measured; leave the limit out."
        )
    report = artefact.metrics
    if "untested" in report:
        raise DegradationError(f"{REFUSED}{report['untested']}")
    if not _is_number(report.get("metrics", {}).get("model", {}).get(metric)):
        raise DegradationError(REFUSED + _not_measured(metric))
    unknown = _unmeasured(report, metric, past)
    if unknown:
        raise DegradationError(
            f"{REFUSED}at most {limit:g} % of {metric} may be lost, and that cannot be measured: "
            f"{'; '.join(unknown)}. Publish it without the limit: a command that is run again "
            "without it goes on from its checkpoints."
        )
    worst = {k: v for k, v in worst_degradation(report, metric).items() if not v <= limit}
    if not worst:
        return
    means = degradation(report, metric)
    losses = ", ".join(
        ("" if value == means[name] else f"{means[name]:.2f} %, by its sample of queries up to ")
        + f"{value:.2f} % {'to the model trained alone' if name == ALONE else f'as version {name}'}"
        for name, value in worst.items()
    )
    raise DegradationError(
        f"{REFUSED}it loses {losses} of {metric}, and at most {limit:g} % is allowed. Change the "
        "recipe, or publish it with another limit: a command that is run again with another "
        "--max-degradation goes on from its checkpoints."
    )


def _pairs(report: Mapping[str, Any], metric: str) -> dict[str, tuple[Any, Any]]:
    """Return, by reference ("alone" or a past version), the new version's value and the
    reference's."""
    metrics = report["metrics"]
    pairs = {}
    if ALONE in metrics:
        pairs[ALONE] = metrics["model"].get(metric), metrics[ALONE].get(metric)
    for j, reading in report.get("compatibility", {}).items():
        ranking = reading["ranking"]
        pairs[j] = ranking["chain"].get(metric), ranking["past"].get(metric)
    return pairs


def _unmeasured(report: Mapping[str, Any], metric: str, past: Sequence[int]) -> list[str]:
    """Return why the loss to the model trained alone, or to a past version, is not known."""
    pairs, losses = _pairs(report, metric), worst_degradation(report, metric)
    readings = report.get("compatibility", {})
    queries = {ALONE: report.get("data", {}).get("test_queries", 0)}
    queries |= {j: reading["queries"] for j, reading in readings.items()}
    reasons = [] if ALONE in pairs else [_NO_ALONE]
    for name in [*([ALONE] if ALONE in pairs else []), *map(str, past)]:
        what = "the model trained alone" if name == ALONE else f"version {name}"
        if name not in pairs:
            reasons.append(f"reading it as {what} was not measured")
            continue
        known = "there are" if name == ALONE else "it knew"
        if queries[name] < LEAST_QUERIES:
            reasons.append(
                f"{what}: {known} {queries[name]} test queries, and {LEAST_QUERIES} are needed"
            )
        elif name not in losses:
            reasons.append(f"{what} had no {metric} above 0, of which something could be lost")
        elif losses[name] == math.inf:
            reasons.append(f"{what}: only a sample of queries was ranked, and its error is unknown")
    return reasons


def _refuse_no_number(limit: float) -> None:
    if not limit >= 0:
        raise DegradationError(
            f"The limit of degradation is {limit}; it is a percentage, such as 2."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


_NO_ALONE = "the model was not trained alone (upgrade.alone is false)"


def _not_measured(metric: str) -> str:
    return (
        f"{metric} was not measured, so nothing is known of what it loses; add it to `metrics` in "
        "the recipe."
    )
