"""Train and publish in one call, as `evergram train` and `evergram upgrade` do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evergram.errors import DataError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.html_report import (
    ReportedVersion,
    refuse_unwritable,
    write_published,
)
from evergram.releasing.publish import PlannedMetrics, Published, publish, refuse_unmeasurable
from evergram.releasing.upgrade import train, upgrade, upgrade_lost
from evergram.training.checkpoints.settings import AUTOMATIC, CheckpointSettings
from evergram.training.corpora import corpus_for
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe


@dataclass(frozen=True)
class ReleaseOptions:
    """Conditions on which an upgrade is published.

    Args:
        max_degradation: percent of `training.metric` that the model and each past version may lose;
            None for any.
        strict_probes: publish only if no consumer's probe is past its limit.
        promote: put the version into production.
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
    recipe: Recipe,
    lineage: Lineage,
    *,
    device: str = "auto",
    progress: Progress | None = None,
    board: Path | None = None,
    checkpoints: CheckpointSettings = AUTOMATIC,
    report: Path | None = None,
    minutes: float | None = None,
) -> Artefact:
    """Train version 0 and publish it in a new lineage.

    An interrupted training resumes when it is called again.

    Args:
        lineage: without versions, see `Lineage.create`.
        progress: where progress is shown; by default nowhere.
        board: folder for TensorBoard's files.
        checkpoints: when they are written, how many are kept, whether they are read.
        report: an HTML file to write of the version.
        minutes: after which training ends, see `train`.
    Returns: the published version.
    Raises: DataError: the report cannot be written. LineageError: the lineage cannot. Others as
        `train` and `Lineage.publish`.
    """
    refuse_unwritable(report)
    lineage.refuse_unwritable()
    shown = Progress(quiet=True) if progress is None else progress
    corpus = None if report is None else corpus_for(recipe, None)
    with lineage.training() as folder:
        artefact = train(
            recipe,
            corpus,
            device=device,
            progress=shown,
            folder=folder,
            checkpoints=checkpoints,
            board=board,
            minutes=minutes,
        )
    if corpus is None or report is None:
        publish(lineage, artefact)
        return artefact
    facts = ReportedVersion(recipe, lineage, corpus, 0).facts(artefact)
    published = publish(lineage, artefact)
    write_published(report, facts, published.metrics, published.warnings)
    return artefact


def take_part_in_training(recipe: Recipe, *, device: str = "auto") -> None:
    """Train version 0 together with the first process, which publishes it. Raises: as `train`."""
    train(recipe, device=device, progress=False)


def take_part_in_upgrade(
    recipe: Recipe, lineage: Lineage, *, device: str = "auto", allow_small_overlap: bool = False
) -> None:
    """Train the next version together with the first process, which publishes it.

    Raises: as `upgrade`.
    """
    upgrade(recipe, lineage, device=device, progress=False, allow_small_overlap=allow_small_overlap)


def upgrade_and_publish(
    recipe: Recipe,
    lineage: Lineage,
    options: ReleaseOptions = ReleaseOptions(),
    *,
    device: str = "auto",
    progress: Progress | None = None,
    board: Path | None = None,
    checkpoints: CheckpointSettings = AUTOMATIC,
    report: Path | None = None,
    minutes: float | None = None,
) -> Published:
    """Train the next version with its backward transform, and publish it if the limits allow.

    An interrupted training resumes when it is called again; limits that can never be met are
    refused before it.

    Args:
        progress: where progress is shown; by default nowhere.
        board: folder for TensorBoard's files.
        checkpoints: when they are written, how many are kept, whether they are read.
        report: an HTML file to write of the version, if it is published.
        minutes: after which training ends, see `upgrade`.
    Raises: DegradationError: a limit is passed, or cannot be measured. DataError: TensorBoard's
        files or checkpoints are asked for where no model is trained, or the report cannot be
        written. Others as `upgrade` and `publish`.
    """
    refuse_unwritable(report)
    frozen = recipe.upgrade.start == "frozen"
    if (options.kept or frozen) and (board is not None or checkpoints != AUTOMATIC):
        why = "--kept" if options.kept else "upgrade.start = 'frozen'"
        raise DataError(
            f"{why} trains no model; leave out --tensorboard, --checkpoint-every and --resume."
        )
    refuse_unmeasurable(
        lineage,
        PlannedMetrics(recipe.training.metric, recipe.metrics, recipe.upgrade.alone),
        max_degradation=options.max_degradation,
        strict_probes=options.strict_probes,
    )
    lineage.refuse_unwritable()
    shown = Progress(quiet=True) if progress is None else progress
    small = options.allow_small_overlap
    corpus = None if report is None else corpus_for(recipe, None, lineage)
    version = lineage.lost().manifest.version if options.kept else lineage.next_version
    if options.kept:
        artefact = upgrade_lost(
            recipe, lineage, corpus, device=device, progress=shown, allow_small_overlap=small
        )
    else:
        artefact = upgrade(
            recipe,
            lineage,
            corpus,
            device=device,
            progress=shown,
            folder=lineage.work_dir,
            checkpoints=checkpoints,
            board=board,
            minutes=minutes,
            allow_small_overlap=small,
        )
    facts = None
    if corpus is not None:
        facts = ReportedVersion(recipe, lineage, corpus, version).facts(artefact)
    published = publish(
        lineage,
        artefact,
        max_degradation=options.max_degradation,
        strict_probes=options.strict_probes,
        promote=options.promote,
    )
    if options.kept:
        lineage.forget_lost()
    if facts is not None and report is not None:
        write_published(report, facts, published.metrics, published.warnings)
    return published
