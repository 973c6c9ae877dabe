"""Compare methods from the same M_0: train what is missing, measure it, summarise it."""

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
    """Run every method on every version of `split.versions`, and measure it.

    Each run is a lineage, `out/seed-S/METHOD`; an interrupted comparison resumes version by
    version. More methods, seeds and lambdas may be asked for later.

    Args:
        progress: whether steps and evaluations are shown on stderr.
        fresh: remove what another recipe has left in `out`.
    Returns: the content of `results.json`, see README.md; the table and the figures are
        next to it.
    Raises: RecipeError: the split is not by time, has a single version, or `out` holds the results
        of another recipe. DataError, TrainingError.
    Source: [BC] §4, §5, App. A.
    """
    split = comparison.base.split
    if not isinstance(split, TimeSplit) or len(split.versions) < 2:
        raise RecipeError(
            "A comparison is along time; set split.kind = 'time' and two or more split.versions."
        )
    corpus = corpus_for(comparison.base, corpus)
    claim_folder(out, comparison.identity, corpus, fresh=fresh)
    runs = ComparedRuns(comparison, split, out, corpus, device, Progress.of_choice(progress))
    results = runs.results()
    replace_file(out / "results.json", json.dumps(plain_numbers(results), indent=2).encode())
    write_comparison(out, results)
    return results


def claim_folder(out: Path, identity: Mapping[str, Any], corpus: Corpus, *, fresh: bool) -> None:
    """Record in `out` the recipe and the data that its results are of.

    Args:
        identity: of the comparison.
        fresh: remove what another recipe has left there.
    Raises: RecipeError: it holds the results of another recipe.
    """
    digest = hashlib.sha256()
    for name in ("query", "candidate", *(["value"] if corpus.has_values else [])):
        digest.update(corpus.column(name).numpy().tobytes())
    mine = flat({**identity, "corpus": digest.hexdigest()})
    path = out / "recipe.json"
    if out.exists() and not out.is_dir():
        raise RecipeError(f"{out} is a file; a comparison is written into a folder.")
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
                f"{out} holds the results of another recipe ({', '.join(changed[:5])} changed); "
                "choose another folder, or remove them with --fresh."
            )
        for left in out.glob("seed-*"):
            shutil.rmtree(left)
    replace_file(path, json.dumps(mine, indent=2).encode())


class ComparedRuns:
    """The runs of a comparison, with the data and the consumer tasks that they are measured on.

    Args:
        split: of the comparison's recipes.
        out: folder of the lineages and of their measures.
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
        # Seeds choose who selects an epoch, and nothing of what a version learns from.
        splits = [split_for(comparison.base, corpus, k) for k in range(len(self.times))]
        # One metric for all versions: that of the first one's candidates, which are the fewest.
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
        """Train and measure what is missing. Returns: the content of `results.json`."""
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
        """Return the measures of every run of one seed, by its name."""
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
        """Return a run's lineage with M_0 in it, which is trained once and copied."""
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
        """Publish the versions that a run's lineage lacks.

        Args:
            lineages: of the runs before it, by name.
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
        trained: the model of that version, if it is trained already.
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
            # The comparison measures by itself, whatever can be certified.
            allow_small_overlap=True,
            # Every method is tested on the same queries: what Fix-M0 does not know, it misses.
            keep_unknown=True,
        )


def unmeasurable(
    comparison: Comparison,
    splits: Sequence[Split],
    tasks: Sequence[ConsumerTask],
    left_out: Sequence[str],
) -> list[str]:
    """Return a sentence on each measure that the data or the recipe does not allow, to be said
    before anything is trained for hours.

    Args:
        splits: of each version.
        tasks: of consumers, those that can be scored.
        left_out: a sentence on each task that cannot.
    """
    sentences = list(left_out)
    if not tasks:
        sentences.append(
            "No consumer task is left, so (2) and (1)+(2) will not be measured; with ratings (a "
            "column 'value') and three or more versions they are."
        )
    for k, split in enumerate(splits):
        queries = len(torch.unique(split.test.query))
        if queries < LEAST_QUERIES:
            sentences.append(
                f"Version {k} is tested by {queries} queries, so (1) says little of it; "
                f"{LEAST_QUERIES} or more are needed to tell methods apart."
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
                f"Version 0's model knows ids alone: of the objects of version {len(splits) - 1}, "
                f"{1 - share:.0%} have no embedding of it, so (2) and (3) are measured on the rest."
            )
    if len(comparison.seeds) == 1:
        sentences.append("With one seed no deviation is measured; set compare.seeds for more.")
    return sentences


def _intended(lineage: Lineage, metric: str) -> dict[int, float]:
    return {
        m.version: lineage.metrics(m.version)["metrics"]["model"][metric] for m in lineage.versions
    }


def _seconds(run: Run, lineages: Mapping[str, Lineage]) -> float:
    """Return the seconds of training of all versions after M_0, with Keep-All's if the run uses
    its models."""
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
