"""Train and publish in one call, as `evergram train` and `evergram upgrade` do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergram.errors import DataError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.publish import Published, publish, refuse_unmeasurable
from evergram.releasing.upgrade import train, upgrade, upgrade_lost
from evergram.releasing.version_report import VersionReport, refuse_unwritable
from evergram.training.corpora import corpus_for
from evergram.training.recipe import Recipe
from evergram.training.resuming import AUTOMATIC

QUIET: Mapping[str, Any] = {"progress": False}


@dataclass(frozen=True)
class ReleaseOptions:
    """Conditions on which an upgrade is published.

    Args:
        max_degradation, strict_probes, promote: as for `publish`.
        allow_small_overlap: publish, without a certificate, a version that has few objects in
            common with the past.
        kept: publish the model that an earlier upgrade trained and another upgrade preceded; only
            its transform is fitted.
    """

    max_degradation: float | None = None
    strict_probes: bool = False
    promote: bool = True
    allow_small_overlap: bool = False
    kept: bool = False


def train_and_publish(
    recipe: Recipe, lineage: Lineage, *, report: Path | None = None, **training: Any
) -> Artefact:
    """Train version 0 and publish it in a new lineage; return it.

    An interrupted training resumes when it is called again.

    Args:
        lineage: without versions, see `Lineage.create`.
        report: an HTML file to write of the version.
        training: arguments of `train`; no progress is shown by default.
    Raises: DataError: the report cannot be written. LineageError: the lineage cannot. Others as
        `train` and `Lineage.publish`.
    """
    refuse_unwritable(report)
    lineage.refuse_unwritable()
    corpus = None if report is None else corpus_for(recipe, None)
    with lineage.training() as folder:
        artefact = train(recipe, corpus, folder=folder, **{**QUIET, **training})
    page = None if corpus is None else VersionReport.of(recipe, lineage, corpus, 0, artefact)
    published = publish(lineage, artefact)
    if page is not None and report is not None:
        page.write(report, published.metrics, published.warnings)
    return artefact


def upgrade_and_publish(
    recipe: Recipe,
    lineage: Lineage,
    options: ReleaseOptions = ReleaseOptions(),
    *,
    report: Path | None = None,
    **training: Any,
) -> Published:
    """Train the next version with its backward transform, and publish it if the limits allow.

    An interrupted training resumes when it is called again; limits that can never be met are
    refused before it.

    Args:
        report: an HTML file to write of the version, if it is published.
        training: arguments of `upgrade`; no progress is shown by default.
    Raises: DegradationError: a limit is passed, or cannot be measured. DataError: TensorBoard's
        files or checkpoints are asked for where no model is trained, or the report cannot be
        written. Others as `upgrade` and `publish`.
    """
    refuse_unwritable(report)
    _refuse_idle(recipe, options.kept, training)
    refuse_unmeasurable(lineage, recipe, options.max_degradation, options.strict_probes)
    lineage.refuse_unwritable()
    corpus = None if report is None else corpus_for(recipe, None, lineage)
    version = lineage.lost().manifest.version if options.kept else lineage.next_version
    asked = {**QUIET, **training, "allow_small_overlap": options.allow_small_overlap}
    if options.kept:
        asked = {k: v for k, v in asked.items() if k not in ("board", "checkpoints", "minutes")}
        artefact = upgrade_lost(recipe, lineage, corpus, **asked)
    else:
        artefact = upgrade(recipe, lineage, corpus, folder=lineage.work_dir, **asked)
    page = None if corpus is None else VersionReport.of(recipe, lineage, corpus, version, artefact)
    published = publish(
        lineage,
        artefact,
        max_degradation=options.max_degradation,
        strict_probes=options.strict_probes,
        promote=options.promote,
    )
    if options.kept:
        lineage.forget_lost()
    if page is not None and report is not None:
        page.write(report, published.metrics, published.warnings)
    return published


def _refuse_idle(recipe: Recipe, kept: bool, training: Mapping[str, Any]) -> None:
    """Raises: DataError: a training that there will not be is to be watched or saved."""
    asked = training.get("board") is not None or training.get("checkpoints", AUTOMATIC) != AUTOMATIC
    if asked and (kept or recipe.upgrade.start == "frozen"):
        why = "--kept" if kept else "upgrade.start = 'frozen'"
        raise DataError(
            f"{why} trains no model; leave out --tensorboard, --checkpoint-every and --resume."
        )
