"""Compare methods from the same M_0: train what is missing, measure it, summarise it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evergram.atomic_files import new_folder, replace_file
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.errors import RecipeError
from evergram.evaluation.consumer_tasks import ConsumerTask, consumer_tasks
from evergram.evaluation.reports.comparison_report import summarise, write_comparison
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.lineage.version_files import plain_numbers
from evergram.releasing.comparison.consumer_scores import ConsumerScores
from evergram.releasing.comparison.results_folder import claim_folder
from evergram.releasing.comparison.runs import Run, recipe_of, runs_of, seeds_of, sweep_of
from evergram.releasing.comparison.scope import unmeasurable
from evergram.releasing.comparison.trained_models import REFERENCE, trained_models
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import pick_device
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import corpus_for, split_for, with_selecting_metric
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.split import TimeSplit
from evergram.training.recipe.upgrade import ComparedUpgrade, CompareSettings


def compare(
    recipe: Recipe,
    out: Path,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
    progress: Progress | bool = True,
    fresh: bool = False,
) -> dict[str, Any]:
    """Run every method of `recipe.compare` on every version of `recipe.split`, and measure it.

    Each run is a lineage, `out/seed-S/METHOD`; an interrupted comparison resumes version by
    version. More methods, seeds and lambdas may be asked for later.

    Args:
        progress: whether steps and evaluations are shown on stderr.
        fresh: remove what another recipe has left in `out`.
    Returns: the content of `results.json`, see docs/compare.md; the table and the figures are
        beside it.
    Raises: RecipeError: the split is not by time, has a single version, `out` holds the results of
        another recipe, training.epochs is 0, or upgrade.consumer_weight is set. DataError,
        TrainingError.
    Source: [BC] §4, §5, App. A.
    """
    recipe = recipe.compared()
    if not isinstance(recipe.split, TimeSplit) or len(recipe.split.versions) < 2:
        raise RecipeError(
            "A comparison is along time; set split.kind = 'time' and two or more split.versions."
        )
    if recipe.training.epochs == 0:
        raise RecipeError(
            "training.epochs = 0 trains nothing, and most methods of a comparison learn their "
            "transform while they train; set training.epochs above 0."
        )
    assert isinstance(recipe.upgrade, ComparedUpgrade)
    if recipe.upgrade.consumer_weight:
        raise RecipeError(
            f"upgrade.consumer_weight is {recipe.upgrade.consumer_weight:g}, and the lineages of a "
            "comparison have no consumers with a probe; leave it out."
        )
    corpus = corpus_for(recipe, corpus)
    claim_folder(out, recipe.model_dump(mode="json"), corpus, fresh=fresh)
    comparison = Comparison(recipe, out, corpus, device, Progress.of_choice(progress))
    results = comparison.results()
    replace_file(out / "results.json", json.dumps(plain_numbers(results), indent=2).encode())
    write_comparison(out, results)
    return results


class Comparison:
    """The runs of a comparison, with the data and the consumer tasks that they are measured on.

    Args:
        recipe: `compare` and `split` say what is run.
        out: folder of the lineages and of their measures.
        corpus: all interactions.
    """

    def __init__(
        self, recipe: Recipe, out: Path, corpus: Corpus, device: str, progress: Progress
    ) -> None:
        assert isinstance(recipe.split, TimeSplit)
        assert isinstance(recipe.upgrade, ComparedUpgrade)
        self.settings: CompareSettings = recipe.comparison
        self.upgrade: ComparedUpgrade = recipe.upgrade
        self.times: list[float] = recipe.split.versions
        self.recipe = recipe
        self.out = out
        self.corpus = corpus
        self.device = device
        self.progress = progress
        self.protocol = self.settings.protocol or recipe.split.selection
        self.runs: list[Run] = runs_of(recipe)
        self.seeds: Sequence[int] = seeds_of(recipe)
        # Seeds choose who selects an epoch, and nothing of what a version learns from.
        splits = [split_for(recipe, corpus, k) for k in range(len(self.times))]
        # One metric for all versions: that of the first one's candidates, which are the fewest.
        self.recipe, _ = with_selecting_metric(recipe, splits[0], progress)
        self.training: list[Corpus] = [split.training for split in splits]
        self.tasks: list[ConsumerTask]
        self.left_out: list[str]
        self.tasks, self.left_out = consumer_tasks(
            corpus,
            recipe.split.ends,
            self.training,
            minimum=self.settings.minimum_ratings,
            limit=self.settings.max_examples,
            seed=recipe.seed,
        )
        for sentence in unmeasurable(
            splits,
            self.tasks,
            self.left_out,
            seeds=len(self.seeds),
            reads_features=recipe.model.reads_features,
        ):
            progress.say(sentence)

    def results(self) -> dict[str, Any]:
        """Train and measure what is missing. Returns: the content of `results.json`."""
        recipe = self.recipe
        measured = {seed: self._of_seed(seed) for seed in self.seeds}
        sweep = {m: {w: r.name for w, r in runs.items()} for m, runs in sweep_of(recipe).items()}
        return {
            "name": recipe.name,
            "protocol": self.protocol,
            "metric": recipe.training.metric,
            "lambda": self.upgrade.weight,
            "times": self.times,
            "seeds": list(self.seeds),
            "reference_budget": asdict(REFERENCE),
            "tasks": {task.name: _sizes(task) for task in self.tasks},
            "left_out": self.left_out,
            **summarise(measured, self.settings.methods, sweep),
            "runs": measured,
        }

    def _of_seed(self, seed: int) -> dict[str, Any]:
        """Return the measures of every run of one seed, by its name."""
        folder, progress = self.out / f"seed-{seed}", self.progress.of(f"seed {seed}")
        lineages: dict[str, Lineage] = {}
        for run in self.runs:
            lineage = self._lineage(folder, run, seed, progress)
            self._publish_missing(run, seed, lineage, lineages, progress.of(run.name))
            lineages[run.name] = lineage
        scores = ConsumerScores(
            folder, self.recipe.comparison, self.tasks, self.training, pick_device(self.device)
        ).of(lineages, progress)
        return {
            run.name: {
                "method": run.method,
                "lambda": run.weight,
                "intended": _intended(lineages[run.name], self.recipe.training.metric),
                "seconds": _seconds(run, lineages),
                "trained": trained_models(run, lineages[run.name], self.recipe),
                **scores[run.name],
            }
            for run in self.runs
        }

    def _lineage(self, folder: Path, run: Run, seed: int, progress: Progress) -> Lineage:
        """Return a run's lineage with M_0 in it, which is trained once and copied."""
        first = folder / "m0"
        if not (first / "lineage.json").exists():
            base = recipe_of(self.recipe, Run("keep-all"), seed, self.protocol)
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
        recipe = recipe_of(self.recipe, run, seed, self.protocol)
        for version in range(lineage.next_version, len(self.times)):
            trained = load_encoder(lineages["keep-all"], version) if run.shares_models else None
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


def _intended(lineage: Lineage, metric: str) -> dict[int, float]:
    return {
        m.version: lineage.metrics(m.version)["metrics"]["model"][metric] for m in lineage.versions
    }


def _seconds(run: Run, lineages: Mapping[str, Lineage]) -> float:
    """Return the seconds of training of all versions after M_0, with Keep-All's if the run uses
    its models."""
    used = ["keep-all", run.name] if run.shares_models else [run.name]
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
