"""Methods side by side, from the same M_0: train what is missing, measure it, sum it up."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergram.atomic_files import new_folder, replace_file
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.errors import RecipeError
from evergram.evaluation.consumer_tasks import ConsumerTask, consumer_tasks
from evergram.evaluation.reports.comparison import summarise
from evergram.evaluation.reports.comparison_report import write_comparison
from evergram.lineage.artefact import Artefact
from evergram.lineage.disk.plain_json import plain_numbers
from evergram.lineage.lineage import Lineage
from evergram.releasing.comparison.consumer_scores import Judge
from evergram.releasing.comparison.scope import unmeasurable
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import pick_device
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus, split_for
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe, flat
from evergram.training.recipe.methods import METHODS

# Keys of [compare] that say how much is run, and change nothing of what has been run.
EXTENT = ("methods", "seeds", "lambdas", "lambda_methods")
QUIET = Progress(quiet=True)


@dataclass(frozen=True)
class Run:
    """A method, and its λ where it is not the recipe's."""

    method: str
    weight: float | None = None

    @property
    def name(self) -> str:
        return self.method if self.weight is None else f"{self.method}-lambda-{self.weight:g}"

    @property
    def given(self) -> bool:
        """Whether it takes the models that Keep-All has trained: only its way back is its own."""
        settings = METHODS[self.method]
        alone = settings["fit"] != "joint" and settings["start"] == "fresh"
        return alone and self.method != "keep-all"


def compare(
    recipe: Recipe,
    out: Path,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
    progress: Progress = QUIET,
    fresh: bool = False,
) -> dict[str, Any]:
    """Run every method of `recipe.compare` on every version of `recipe.split`, and measure it.

    Each run is a lineage, `out/seed-S/METHOD`; whatever is there already is gone on with, version
    by version. More methods, seeds and lambdas may be asked for later.

    Args:
        fresh: remove what another recipe has left in `out`.
    Returns: what `results.json` holds, see docs/compare.md; the table and the figures are beside
        it.
    Raises: RecipeError: the split is not by time, has a single version, or `out` holds the results
        of another recipe. DataError, TrainingError.
    Source: [BC] §4, §5, App. A.
    """
    settings = recipe.compare
    protocol = settings.protocol or recipe.split.selection
    if recipe.split.kind != "time" or len(recipe.split.versions) < 2:
        raise RecipeError(
            "A comparison is along time; set split.kind = 'time' and two or more split.versions."
        )
    corpus = load_corpus(recipe) if corpus is None else corpus
    _claim(out, recipe, corpus, fresh)
    runs = runs_of(recipe)
    seeds = seeds_of(recipe)
    # Seeds choose who selects an epoch, and nothing of what a version learns from.
    splits = [split_for(recipe, corpus, k) for k in range(len(recipe.split.versions))]
    training = [split.training for split in splits]
    tasks, left_out = consumer_tasks(
        corpus,
        recipe.split.ends,
        training,
        minimum=settings.minimum_ratings,
        limit=settings.max_examples,
        seed=recipe.seed,
    )
    for sentence in unmeasurable(recipe, splits, tasks, left_out, len(seeds)):
        progress.say(sentence)
    found: dict[int, dict[str, Any]] = {}
    for seed in seeds:
        said = progress.of(f"seed {seed}")
        base = recipe_of(recipe, Run("keep-all"), seed, protocol)
        lineages: dict[str, Lineage] = {}
        for run in runs:
            chosen = recipe_of(recipe, run, seed, protocol)
            lineage = _lineage(out / f"seed-{seed}", base, run, corpus, device, said)
            _go_on(chosen, run, lineage, lineages, corpus, device, said.of(run.name))
            lineages[run.name] = lineage
        judge = Judge(out / f"seed-{seed}", settings, tasks, training, pick_device(device))
        measured = judge.judge(lineages, said)
        found[seed] = {
            run.name: {
                "method": run.method,
                "lambda": run.weight,
                "intended": _intended(lineages[run.name], base.training.metric),
                "seconds": _seconds(run, lineages),
                **measured[run.name],
            }
            for run in runs
        }
    names = {m: {w: run.name for w, run in runs.items()} for m, runs in _sweep(recipe).items()}
    results = {
        "name": recipe.name,
        "protocol": protocol,
        "metric": recipe.training.metric,
        "lambda": recipe.upgrade.weight,
        "unit": recipe.upgrade.unit,
        "times": recipe.split.versions,
        "seeds": list(seeds),
        "tasks": {task.name: _sizes(task) for task in tasks},
        "left_out": left_out,
        **summarise(found, settings.methods, names),
        "runs": found,
    }
    replace_file(out / "results.json", json.dumps(plain_numbers(results), indent=2).encode())
    write_comparison(out, results)
    return results


def runs_of(recipe: Recipe) -> list[Run]:
    """Keep-All first, for it is what all others are measured beside, then the methods and the
    sweep; λ = `upgrade.weight` is the method itself."""
    settings = recipe.compare
    named = map(Run, ["keep-all", *settings.methods])
    swept = (run for runs in _sweep(recipe).values() for run in runs.values())
    return list(dict.fromkeys([*named, *swept]))


def seeds_of(recipe: Recipe) -> Sequence[int]:
    seeds = recipe.compare.seeds
    return seeds if isinstance(seeds, list) else range(recipe.seed, recipe.seed + seeds)


def recipe_of(recipe: Recipe, run: Run, seed: int, protocol: str) -> Recipe:
    """The recipe of one run's lineage: the method's settings win over those of [upgrade]."""
    values = recipe.model_dump(mode="json", exclude={"compare"})
    values["seed"] = seed
    values["split"]["selection"] = protocol
    values["metrics"] = list(dict.fromkeys([*recipe.metrics, recipe.training.metric]))
    preset = {key for settings in METHODS.values() for key in settings}
    table = {k: v for k, v in values["upgrade"].items() if k not in preset}
    table |= {"method": run.method, "alone": False}
    if run.weight is not None:
        table["weight"] = run.weight
    values["upgrade"] = table
    return Recipe.stored(values)


def run_version(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus,
    encoder: Encoder | None,
    device: str,
    progress: Progress,
) -> Artefact:
    """The next version of a run. `encoder`: of that version, where it is trained already."""
    with lineage.training() as work:
        return upgrade(
            recipe,
            lineage,
            corpus,
            encoder=encoder,
            device=device,
            progress=progress,
            folder=work,
            readings=False,
            # What is compared is measured here, whatever can be certified.
            allow_small_overlap=True,
        )


def _lineage(
    folder: Path, base: Recipe, run: Run, corpus: Corpus, device: str, progress: Progress
) -> Lineage:
    """A run's lineage, with M_0 in it: trained once, and copied."""
    first = folder / "m0"
    if not (first / "lineage.json").exists():
        new = Lineage.create(first, base.name)
        with new.training() as work:
            artefact = train(base, corpus, device=device, progress=progress, folder=work)
        new.publish(artefact)
    mine = folder / run.name
    if not (mine / "lineage.json").exists():
        shutil.rmtree(mine, ignore_errors=True)
        with new_folder(mine) as part:
            hidden = shutil.ignore_patterns(".*")
            shutil.copytree(first, part, ignore=hidden, dirs_exist_ok=True)
    return Lineage.open(mine)


def _go_on(
    recipe: Recipe,
    run: Run,
    lineage: Lineage,
    lineages: Mapping[str, Lineage],
    corpus: Corpus,
    device: str,
    progress: Progress,
) -> None:
    """Publish the versions that are missing."""
    for version in range(lineage.next_version, len(recipe.split.versions)):
        encoder = load_encoder(lineages["keep-all"], version) if run.given else None
        lineage.publish(run_version(recipe, lineage, corpus, encoder, device, progress))


def _intended(lineage: Lineage, metric: str) -> dict[int, float]:
    return {
        m.version: lineage.metrics(m.version)["metrics"]["model"][metric] for m in lineage.versions
    }


def _seconds(run: Run, lineages: Mapping[str, Lineage]) -> float:
    """Of training, of all versions after M_0; with Keep-All's where they are its models."""
    used = ["keep-all", run.name] if run.given else [run.name]
    return sum(
        float(lineages[name].metrics(m.version)["training"]["seconds"])
        for name in used
        for m in lineages[name].versions[1:]
    )


def _sweep(recipe: Recipe) -> dict[str, dict[float, Run]]:
    """For each method of the sweep, its runs by λ, ascending."""
    settings, own = recipe.compare, recipe.upgrade.weight
    return {
        method: {w: Run(method, None if w == own else w) for w in sorted(set(settings.lambdas))}
        for method in (settings.lambda_methods if settings.lambdas else ())
    }


def _claim(out: Path, recipe: Recipe, corpus: Corpus, fresh: bool) -> None:
    """Say in `out` whose results it holds. Raises: RecipeError: those of another recipe."""
    digest = hashlib.sha256()
    for name in ("query", "candidate", *(["value"] if corpus.has_values else [])):
        digest.update(corpus.column(name).numpy().tobytes())
    kept = recipe.model_dump(mode="json")
    for key in EXTENT:
        del kept["compare"][key]
    mine = flat({**kept, "corpus": digest.hexdigest()})
    path = out / "recipe.json"
    if out.exists() and not out.is_dir():
        raise RecipeError(f"{out} is a file; a comparison is written into a folder.")
    if path.exists():
        theirs = _read(path)
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


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path} cannot be read ({error}); choose another folder.") from error
    return found


def _sizes(task: ConsumerTask) -> dict[str, Any]:
    return {
        "training": len(task.training),
        "validation": len(task.validation),
        "tests": {str(k): len(e) for k, e in task.tests.items()},
        "absent": {str(k): e.absent for k, e in task.tests.items()},
    }
