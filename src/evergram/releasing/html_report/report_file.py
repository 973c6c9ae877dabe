"""A version's HTML report: refused before training, measured before publishing, written last."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES
from evergram.errors import DataError
from evergram.evaluation.reports.version_facts import NotMeasured, VersionFacts
from evergram.evaluation.reports.version_report import write_version_report
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.frozen.known_objects import split_of_known, stored_in
from evergram.releasing.html_report.model_facts import MeasuredModel, attempt
from evergram.releasing.html_report.past_facts import kept_of_past
from evergram.training.corpora import final_split, split_for
from evergram.training.recipe import Recipe
from evergram.training.selecting_metric import with_selecting_metric


def refuse_unwritable(path: Path | None) -> None:
    """Refuse a path at which no report could be written; None is never refused.

    Raises: DataError: it does not end in .html, is a folder, or is in one that cannot be written.
    """
    if path is None:
        return
    if path.suffix != ".html":
        raise DataError(f"--report {path} must end in .html.")
    if path.is_dir():
        raise DataError(f"--report {path} is a folder; give the file to write in it.")
    folder = path.absolute().parent
    try:
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(
            f"--report {path} cannot be written: {folder}: {error.strerror or error}; give a file "
            "in a folder that you may write to."
        ) from None


@dataclass(frozen=True)
class ReportedVersion:
    """The data and the number of the version that a report is of, before it is published.

    Args:
        corpus: all that its recipe names.
        version: the one whose data it is trained on.
    """

    recipe: Recipe
    lineage: Lineage
    corpus: Corpus
    version: int

    def facts(self, artefact: Artefact) -> VersionFacts:
        """Measure a version that is not published yet; nothing is trained.

        A measure that cannot be made is `NotMeasured`.
        """
        history = self.lineage.pair_history if self.lineage.versions else None
        split = split_for(self.recipe, self.corpus, self.version, history)
        recipe, _ = with_selecting_metric(self.recipe, split)
        split = final_split(split, refits=recipe.refits)
        if "unknown_to_model" in artefact.metrics.get("data", {}):
            ids = {side: artefact.block(side)[0] for side in SIDES}
            split = split_of_known(split, stored_in(ids, split.training))
        model = attempt(MeasuredModel.of, recipe, split, artefact)
        measured: dict[str, Any] = (
            dict.fromkeys(_OF_MODEL, model) if isinstance(model, NotMeasured) else model.facts()
        )
        kept = {} if isinstance(model, NotMeasured) else kept_of_past(self.lineage, artefact, model)
        metrics, metric = artefact.metrics, recipe.training.metric
        number = metrics["version"]
        return VersionFacts(recipe.name, number, metric, metrics, kept=kept, **measured)


_OF_MODEL = ("spectra", "scores", "neighbours", "worst", "by_popularity", "by_pairs")


def write_published(
    path: Path, facts: VersionFacts, metrics: Mapping[str, Any], warnings: Sequence[str]
) -> Path:
    """Write the report of a version that has been published.

    Args:
        metrics: with the probes' readings.
        warnings: of publishing.
    Raises: DataError: the file cannot be written any more.
    """
    try:
        return write_version_report(path, facts, metrics, warnings)
    except OSError as error:
        raise DataError(
            f"Version {facts.version} is published, and its report could not be written: {path}: "
            f"{error.strerror or error}. Its numbers are in the version's metrics."
        ) from error
