"""Train and publish in one call, as `evergram train` and `evergram upgrade` do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergram.lineage.lineage import Lineage
from evergram.releasing.publish import Published, publish, refuse_unmeasurable
from evergram.releasing.upgrade import train, upgrade
from evergram.releasing.version_report import refuse_unwritable, write_report
from evergram.training.recipe import Recipe


@dataclass(frozen=True)
class Limits:
    """Conditions on which an upgrade is published, see `publish`."""

    max_degradation: float | None = None
    strict_probes: bool = False
    promote: bool = True


def train_and_publish(
    recipe: Recipe, lineage: Lineage, *, report: Path | None = None, **training: Any
) -> Published:
    """Train version 0 and publish it in a new lineage.

    An interrupted training resumes when it is called again.

    Args:
        lineage: without versions, see `Lineage.create`.
        report: an HTML file to write of the version.
        training: arguments of `train`.
    Raises: DataError: the report cannot be written. LineageError: the lineage cannot. Others as
        `train` and `Lineage.publish`.
    """
    refuse_unwritable(report)
    lineage.refuse_unwritable()
    with lineage.training() as folder:
        published = publish(lineage, train(recipe, folder=folder, **training))
    return _reported(published, lineage, report)


def upgrade_and_publish(
    recipe: Recipe,
    lineage: Lineage,
    limits: Limits = Limits(),
    *,
    report: Path | None = None,
    **training: Any,
) -> Published:
    """Train the next version with its backward transform, and publish it if the limits allow.

    An interrupted training resumes when it is called again; limits that can never be met are
    refused before it.

    Args:
        report: an HTML file to write of the version, if it is published.
        training: arguments of `upgrade`.
    Raises: DegradationError: a limit is passed, or cannot be measured. DataError: the report cannot
        be written. Others as `upgrade` and `publish`.
    """
    refuse_unwritable(report)
    refuse_unmeasurable(lineage, recipe, limits.max_degradation, limits.strict_probes)
    lineage.refuse_unwritable()
    # Also while probes run and files are written, nobody begins what could not be published.
    with lineage.training() as folder:
        artefact = upgrade(recipe, lineage, folder=folder, **training)
        published = publish(lineage, artefact, **vars(limits))
    return _reported(published, lineage, report)


def _reported(published: Published, lineage: Lineage, report: Path | None) -> Published:
    if report is not None:
        # The given recipe's is another where that could not tell models apart.
        metric = lineage.recipe(published.version)["training"]["metric"]
        write_report(report, lineage.name, metric, published.metrics, published.warnings)
    return published
