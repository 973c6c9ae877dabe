"""Compare methods from the same M_0: train missing models, measure and summarise them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from evergram.atomic_files import new_folder, replace_file
from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.errors import RecipeError
from evergram.lineage.artefact import Artefact, plain_numbers
from evergram.lineage.diagnosis import LEAST_QUERIES
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import corpus_for, pick_device, split_for
from evergram.training.checkpoint import load_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe, flat
from evergram.training.recipe.tables import TimeSplit
from reproduction.comparison.consumer_scores import ConsumerScores
from reproduction.comparison.consumer_tasks import ConsumerTask, consumer_tasks
from reproduction.comparison.report import write_comparison
from reproduction.comparison.settings import REFERENCE, Comparison, Run
from reproduction.comparison.summary import summarise
from reproduction.comparison.training_budget import PAPER, trained_models


def compare(
    comparison: Comparison,
    out: Path,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
    progress: Progress | bool = True,
    fresh: bool = False,
) -> dict[str, Any]:
    """Run and measure every method on every version of `split.versions`.

    Each run is a lineage, `out/seed-S/METHOD`. An interrupted comparison resumes version by
    version, and methods, seeds and lambdas can be added later.

    Args:
        progress: whether to show steps and evaluations on stderr.
        fresh: remove the results of another recipe from `out`.
    Returns: the content of `results.json`, see README.md; the table and the figures are written
        next to it.
    Raises: RecipeError: the split is not by time, has a single version, or `out` contains the
        results of another recipe. DataError, TrainingError.
    Source: [BC] §4, §5, App. A.
    """
    split = comparison.base.split
    if not isinstance(split, TimeSplit) or len(split.versions) < 2:
        raise RecipeError(
            "A comparison needs a split by time; set split.kind = 'time' and two or more "
            "split.versions."
        )
    corpus = corpus_for(comparison.base, corpus)
    claim_folder(out, comparison.identity, corpus, fresh=fresh)
    runs = ComparedRuns(comparison, split, out, corpus, device, Progress.of_choice(progress))
    results = runs.results()
    replace_file(out / "results.json", json.dumps(plain_numbers(results), indent=2).encode())
    write_comparison(out, results)
    return results


def claim_folder(out: Path, identity: Mapping[str, Any], corpus: Corpus, *, fresh: bool) -> None:
    """Record in `out` the recipe and the data of its results.

    Args:
        identity: the comparison's `identity`.
        fresh: remove the results of another recipe.
    Raises: RecipeError: `out` contains the results of another recipe.
    """
    digest = hashlib.sha256()
    for name in ("query", "candidate", *(["value"] if corpus.has_values else [])):
        digest.update(corpus.column(name).numpy().tobytes())
    mine = flat({**identity, "corpus": digest.hexdigest()})
    path = out / "recipe.json"
    if out.exists() and not out.is_dir():
        raise RecipeError(f"{out} is a file; give a folder for the comparison.")
    if path.exists():
        try:
            theirs = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RecipeError(f"{path} cannot be read ({error}); choose another folder.") from error
        changed = sorted(k for k in {**mine, **theirs} if mine.get(k) != theirs.get(k))
        if not changed:
            return
        if not fresh:
            raise RecipeError(
                f"{out} contains results of another recipe ({', '.join(changed[:5])} changed); "
                "choose another folder, or remove them with --fresh."
            )
        for left in out.glob("seed-*"):
            shutil.rmtree(left)
    replace_file(path, json.dumps(mine, indent=2).encode())


class ComparedRuns:
    """The runs of a comparison, with their data and consumer tasks.

    Args:
        split: the split of the comparison's recipes.
        out: the folder of the lineages and their measurements.
        corpus: all interactions.
    """

    def __init__(
        self,
        comparison: Comparison,
        split: TimeSplit,
        out: Path,
        corpus: Corpus,
        device: str,
        progress: Progress,
    ) -> None:
        self.times: list[float] = split.versions
        self.out = out
        self.corpus = corpus
        self.device = device
        self.progress = progress
        # Seeds affect only the queries that select an epoch, not the training data.
        splits = [split_for(comparison.base, corpus, k) for k in range(len(self.times))]
        # One metric for all versions, chosen on the first one, which has the fewest candidates.
        self.comparison = comparison.selecting(splits[0], progress)
        self.training: list[Corpus] = [each.training for each in splits]
        self.tasks: list[ConsumerTask]
        self.left_out: list[str]
        self.tasks, self.left_out = consumer_tasks(
            corpus,
            split.ends,
            self.training,
            minimum=comparison.settings.minimum_ratings,
            limit=comparison.settings.max_examples,
            seed=comparison.base.seed,
            of_first=not comparison.base.model.reads_features,
        )
        for sentence in unmeasurable(comparison, splits, self.tasks, self.left_out):
            progress.say(sentence)

    def results(self) -> dict[str, Any]:
        """Train and measure missing versions. Returns: the content of `results.json`."""
        comparison = self.comparison
        measured = {seed: self._of_seed(seed) for seed in comparison.seeds}
        sweep = {m: {w: r.name for w, r in runs.items()} for m, runs in comparison.sweep.items()}
        return {
            "name": comparison.base.name,
            "protocol": comparison.protocol,
            "metric": comparison.base.training.metric,
            "lambda": comparison.weight,
            "times": self.times,
            "seeds": list(comparison.seeds),
            "reference_budget": asdict(PAPER),
            "tasks": {task.name: _sizes(task) for task in self.tasks},
            "left_out": self.left_out,
            **summarise(measured, comparison.settings.methods, sweep),
            "runs": measured,
        }

    def _of_seed(self, seed: int) -> dict[str, Any]:
        """Return the measurements of every run of one seed, by run name."""
        folder, progress = self.out / f"seed-{seed}", self.progress.of(f"seed {seed}")
        runs, metric = self.comparison.runs, self.comparison.base.training.metric
        lineages: dict[str, Lineage] = {}
        for run in runs:
            lineage = self._lineage(folder, run, seed, progress)
            self._publish_missing(run, seed, lineage, lineages, progress.of(run.name))
            lineages[run.name] = lineage
        scores = ConsumerScores(
            folder, self.comparison.settings, self.tasks, self.training, pick_device(self.device)
        ).of(lineages, progress)
        return {
            run.name: {
                "method": run.method,
                "lambda": run.weight,
                "intended": _intended(lineages[run.name], metric),
                "seconds": _seconds(run, lineages),
                "trained": trained_models(
                    run, lineages[run.name], self.comparison.recipes[run.method]
                ),
                **scores[run.name],
            }
            for run in runs
        }

    def _lineage(self, folder: Path, run: Run, seed: int, progress: Progress) -> Lineage:
        """Return a run's lineage, which starts with a copy of M_0."""
        first = folder / "m0"
        if not (first / "lineage.json").exists():
            base = self.comparison.recipe_of(Run(REFERENCE), seed)
            new = Lineage.create(first, base.name)
            with new.training() as work:
                artefact = train(
                    base, self.corpus, device=self.device, progress=progress, folder=work
                )
            new.publish(artefact)
        mine = folder / run.name
        if not (mine / "lineage.json").exists():
            shutil.rmtree(mine, ignore_errors=True)
            with new_folder(mine) as part:
                hidden = shutil.ignore_patterns(".*")
                shutil.copytree(first, part, ignore=hidden, dirs_exist_ok=True)
        return Lineage.open(mine)

    def _publish_missing(
        self,
        run: Run,
        seed: int,
        lineage: Lineage,
        lineages: Mapping[str, Lineage],
        progress: Progress,
    ) -> None:
        """Publish the missing versions of a run's lineage.

        Args:
            lineages: the lineages of earlier runs, by name.
        """
        recipe = self.comparison.recipe_of(run, seed)
        for version in range(lineage.next_version, len(self.times)):
            trained = load_encoder(lineages[REFERENCE], version) if run.shares_models else None
            lineage.publish(
                run_version(recipe, lineage, self.corpus, trained, self.device, progress)
            )


def run_version(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus,
    trained: Encoder | None,
    device: str,
    progress: Progress,
) -> Artefact:
    """Return the next version of a run.

    Args:
        trained: the model of that version, if it has been trained already.
    """
    with lineage.training() as work:
        return upgrade(
            recipe,
            lineage,
            corpus,
            trained=trained,
            device=device,
            progress=progress,
            folder=work,
            readings=False,
            # The comparison does its own measurements and needs no certificate.
            allow_small_overlap=True,
            # Test every method on the same queries; those that Fix-M0 does not know are misses.
            keep_unknown=True,
        )


def unmeasurable(
    comparison: Comparison,
    splits: Sequence[Split],
    tasks: Sequence[ConsumerTask],
    left_out: Sequence[str],
) -> list[str]:
    """Return a sentence for each metric that cannot be measured with this data or recipe, to be
    shown before hours of training.

    Args:
        splits: the split of each version.
        tasks: the consumer tasks that can be scored.
        left_out: a sentence for each task that cannot.
    """
    sentences = list(left_out)
    if not tasks:
        sentences.append(
            "No consumer task is left, so (2) and (1)+(2) will not be measured; they need ratings "
            "(a column 'value') and three or more versions."
        )
    for k, split in enumerate(splits):
        queries = len(torch.unique(split.test.query))
        if queries < LEAST_QUERIES:
            sentences.append(
                f"Version {k} is tested on {queries} queries, so its (1) is unreliable; "
                f"{LEAST_QUERIES} or more are needed to distinguish methods."
            )
    if not comparison.base.model.reads_features:
        first, last = splits[0].training, splits[-1].training
        known = sum(
            int((old.vocabulary.rows(new.vocabulary.keys) >= 0).sum())
            for old, new in ((first.queries, last.queries), (first.candidates, last.candidates))
        )
        share = known / (len(last.queries) + len(last.candidates))
        if share < 1:
            sentences.append(
                f"Version 0's model uses ids only, so {1 - share:.0%} of the objects of version "
                f"{len(splits) - 1} have no version-0 embedding; (2) and (3) exclude them."
            )
    if len(comparison.seeds) == 1:
        sentences.append("With one seed there are no deviations; set compare.seeds for more.")
    return sentences


def _intended(lineage: Lineage, metric: str) -> dict[int, float]:
    return {
        m.version: lineage.metrics(m.version)["metrics"]["model"][metric] for m in lineage.versions
    }


def _seconds(run: Run, lineages: Mapping[str, Lineage]) -> float:
    """Return the training time in seconds of all versions after M_0, including Keep-All's if the
    run uses its models."""
    used = [REFERENCE, run.name] if run.shares_models else [run.name]
    return sum(
        float(lineages[name].metrics(m.version)["training"]["seconds"])
        for name in used
        for m in lineages[name].versions[1:]
    )


def _sizes(task: ConsumerTask) -> dict[str, Any]:
    return {
        "training": len(task.training),
        "validation": len(task.validation),
        "tests": {str(k): len(e) for k, e in task.tests.items()},
        "absent": {str(k): e.absent for k, e in task.tests.items()},
    }
