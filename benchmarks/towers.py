"""Two towers against the factorization, for `docs/measured.md`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import gowalla
from benchmarks.tiny import recipes as tiny_recipes
from evergram.data.sampling import Batch
from evergram.training.callbacks import Callback, Point
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe

CPU = torch.device("cpu")
RECIPES = gowalla.ROOT / "recipes"
FACTORIZATION = ["model.kind=factorization"]
VARIANTS = {"factorization": FACTORIZATION, "two towers": []}
NAMES = ("movielens-two-tower", "gowalla-two-tower")


def rows(
    recipe: Path, variants: Mapping[str, Sequence[str]], seeds: Iterable[int] = (0,)
) -> Iterator[dict[str, Any]]:
    """Train a recipe under each named list of overrides, and each seed.

    Yields: a dict for each run: variant, seed; selection and test, both by the recipe's metric;
        the best epoch, and the CPU seconds of training until it.
    """
    for seed in seeds:
        recipes = {
            name: Recipe.load(recipe, [f"seed={seed}", *overrides])
            for name, overrides in variants.items()
        }
        first = next(iter(recipes.values()))
        split = split_for(first, load_corpus(first), 0)
        for name, chosen in recipes.items():
            clock = Clock()
            trained = fit_encoder(chosen, split, 0, RunContext(CPU, callbacks=[clock]))
            metric = chosen.training.metric
            row: dict[str, Any] = {
                "variant": name,
                "seed": seed,
                "selection": max(entry[metric] for entry in trained.history),
                "test": trained.metrics["model"][metric],
                "epoch": trained.best_epoch,
                "seconds": clock.seconds_by_epoch[trained.best_epoch],
            }
            yield row


class Clock(Callback):
    """CPU seconds of training at each evaluation, evaluation not counted. On one thread these
    are the seconds of an idle machine, however busy this one is."""

    def __init__(self) -> None:
        self.last: float | None = None
        self.total = 0.0
        self.seconds_by_epoch: dict[int, float] = {}

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        now = time.process_time()
        self.total += 0.0 if self.last is None else now - self.last
        self.last = now

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        self.seconds_by_epoch[at.epoch] = self.total
        self.last = time.process_time()


def lines(
    recipes: Mapping[str, Path], seeds: range = range(2), settings: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the table's lines as they are measured."""
    yield (
        "| data | variant | seed | selection | test | best epoch | CPU seconds until then "
        "| × factorization |"
    )
    yield "|" + "---|" * 8
    variants = {name: [*settings, *overrides] for name, overrides in VARIANTS.items()}
    for name, recipe in recipes.items():
        base: dict[int, float] = {}
        for row in rows(recipe, variants, seeds):
            ratio = row["seconds"] / base.setdefault(row["seed"], row["seconds"])
            cells = [name.removesuffix("-two-tower"), row["variant"], str(row["seed"])]
            cells += [f"{row[key]:.4f}" for key in ("selection", "test")]
            cells += [str(row["epoch"]), f"{row['seconds']:.0f}", f"{ratio:.1f}"]
            yield f"| {' | '.join(cells)} |"


def section() -> str:
    """Return the table of `docs/measured.md`."""
    gowalla.convert()
    return "\n".join(lines({name: RECIPES / f"{name}.toml" for name in NAMES}))


def tiny() -> str:
    with tiny_recipes() as folder:
        paths = dict(
            zip(NAMES, (folder / f"{kind}.toml" for kind in ("random", "given")), strict=True)
        )
        return "\n".join(lines(paths, range(1), ["model.kind=two_tower"]))
