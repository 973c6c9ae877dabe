"""What joint alignment is a mean over, and what that leaves of version 0: BC-Aligner by objects.

`reproduction/bc/recipes/table3-movielens.toml`, version 1, with the loss over all objects ([BC]
Eq. (7)), over the thirds of its authors' code, and over a batch's pairs; and `evergram`, which is
the first with its transform solved for in the end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import torch
from reproduction.bc.methods import RECIPES
from reproduction.recipe import PaperRecipe

from benchmarks.defaults import STUDENT
from benchmarks.tiny import recipes
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe
from evergram.training.recipe.recipe import values_of_file

SEEDS = range(5)
METHODS = {
    "bc-aligner, all objects (the paper)": ["upgrade.method=bc-aligner", "upgrade.objects=all"],
    "bc-aligner, thirds of a batch (its code)": [
        "upgrade.method=bc-aligner", "upgrade.objects=paper-code",
    ],
    "bc-aligner, a batch's pairs": ["upgrade.method=bc-aligner", "upgrade.objects=batch"],
    "evergram": ["upgrade.method=evergram", "upgrade.objects=all"],
}  # fmt: skip
BASELINE = next(iter(METHODS))


@dataclass(frozen=True)
class Distances:
    """Mean ‖z̃_0 − z_0‖₂ at version 1 over the objects that version 0 knows, by method and seed."""

    metric: str
    distance: dict[str, list[float]] = field(default_factory=dict)
    recall: dict[str, list[float]] = field(default_factory=dict)


def measure() -> Distances:
    return distances(RECIPES / "table3-movielens.toml", SEEDS)


def tiny() -> Distances:
    with recipes() as folder:
        return distances(folder / "growing.toml", range(2), ["task.kind=bpr"])


def distances(path: Path, seeds: Sequence[int], settings: Sequence[str] = ()) -> Distances:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = Distances(_recipe(path).training.metric)
    for seed in seeds:
        base = [f"seed={seed}", "upgrade.alone=false", *settings]
        recipe = _recipe(path, base)
        corpus = load_corpus(recipe)
        first = train(recipe, corpus)
        for name, method in METHODS.items():
            with tempfile.TemporaryDirectory() as folder:
                lineage = Lineage.create(Path(folder) / "lineage")
                lineage.publish(first)
                report = upgrade(_recipe(path, [*base, *method]), lineage, corpus).metrics
            drift = report["compatibility"]["0"]["drift"]["known"]["l2"]
            results.distance.setdefault(name, []).append(drift)
            recall = report["metrics"]["model"][results.metric]
            results.recall.setdefault(name, []).append(recall)
    torch.set_num_threads(threads)
    return results


def _recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a comparison's file, with a method among the overrides."""
    values = {k: v for k, v in values_of_file(path).items() if k != "compare"}
    return PaperRecipe.of(values, overrides, folder=path.parent)


def table(results: Distances) -> str:
    seeds = len(results.distance[BASELINE])
    lines = [
        f"| method | {' | '.join(f'seed {seed}' for seed in range(seeds))} | mean | "
        f"less than over all objects, paired | {results.metric} |",
        "|" + "---|" * (seeds + 4),
    ]
    for name, values in results.distance.items():
        differences = [b - a for a, b in zip(values, results.distance[BASELINE], strict=True)]
        paired = "" if name == BASELINE else _interval(differences)
        cells = [f"{value:.3f}" for value in values] + [f"{mean(values):.3f}", paired]
        lines.append(f"| {name} | {' | '.join(cells)} | {mean(results.recall[name]):.4f} |")
    lines += ["", f"± is half of the 95 % interval of the mean over {seeds} seeds."]
    return "\n".join(lines)


def _interval(values: Sequence[float]) -> str:
    half = STUDENT[len(values)] * stdev(values) / sqrt(len(values))
    return f"{mean(values):+.3f} ± {half:.3f}"
