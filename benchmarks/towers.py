"""Two towers against the factorization, variant by variant, for `docs/measured.md`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from reproduction.recipe import PaperRecipe
from torch import Tensor, nn

from benchmarks import gowalla
from benchmarks.tiny import recipes as tiny_recipes
from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.encoders.row_encoder import RowEncoder
from evergram.encoders.two_tower import TwoTower
from evergram.evaluation.ranking import rank_metrics, test_relevance
from evergram.training.callbacks import Callback, Point
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder

CPU = torch.device("cpu")
RECIPES = gowalla.ROOT / "recipes"
FACTORIZATION = ["model.kind=factorization"]
SLOW = ["gramian.rate=0.01"]
PLAIN = "model.residual=false"
VARIANTS: dict[str, dict[str, list[str]]] = {
    "movielens-two-tower": {
        "factorization": FACTORIZATION,
        "two towers": [],
        "no way around the layers": [PLAIN],
        "no way around the layers, SOGram 0.01": [PLAIN, *SLOW],
        "SOGram, rate 0.01": SLOW,
        "SOGram, rate 0.05": ["gramian.rate=0.05"],
        "storm, automatic rate": ["gramian.kind=storm"],
        "layers at 0.001": ["training.layer_rate=0.001"],
        "features at the ids' rate": ["training.feature_rate=0.05"],
        "no preconditioner": ["training.precondition=0"],
    },
    "gowalla-two-tower": {
        "factorization": FACTORIZATION,
        "two towers": [],
        "SOGram, rate 0.01": SLOW,
    },
}


def rows(
    recipe: Path, variants: Mapping[str, Sequence[str]], seeds: Iterable[int] = (0,)
) -> Iterator[dict[str, Any]]:
    """Train a recipe under each named list of overrides, and each seed.

    Yields: a dict for each run: variant, seed; selection and test, both by the recipe's metric;
        the best epoch, and the CPU seconds of training until it. Of two towers also `hidden` and
        `nonlinear`, see `shares`, and `features_alone`: the test metric where every candidate is
        embedded as if its id were unknown.
    """
    for seed in seeds:
        recipes = {
            name: PaperRecipe.load(recipe, [f"seed={seed}", *overrides])
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
            if isinstance(trained.encoder, TwoTower) and trained.encoder.residual:
                row |= shares(trained.encoder, split.training)
            if isinstance(trained.encoder, TwoTower) and split.training.candidates.features:
                assert isinstance(trained.encoder, RowEncoder)
                unseen = _without_ids(trained.encoder, split.training)
                relevance = test_relevance(split)
                row["features_alone"] = rank_metrics(trained.query, unseen, relevance, [metric])[
                    metric
                ]
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


def shares(encoder: TwoTower, corpus: Corpus) -> dict[str, float]:
    """Return two shares of the output x + f(x): the hidden layers' part ‖f‖ / (‖x‖ + ‖f‖), mean
    over all entities, and the part of f's variance that no affine map of x explains."""
    norms: list[Tensor] = []
    left = total = 0.0
    for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True):
        if side not in encoder.hidden:
            return {}
        whole = encoder.encode(side, entities)
        layers = encoder.hidden[side]
        encoder.hidden[side] = _Zero()
        plain = encoder.encode(side, entities)
        encoder.hidden[side] = layers
        added = (whole - plain).double()
        norms.append(added.norm(dim=1) / (added.norm(dim=1) + plain.norm(dim=1)).clamp(min=1e-12))
        affine = torch.cat([plain.double(), torch.ones(len(plain), 1, dtype=torch.float64)], 1)
        fitted = affine @ torch.linalg.lstsq(affine, added).solution
        left += float((added - fitted).square().sum() / len(added))
        total += float((added - added.mean(0)).square().sum() / len(added))
    return {"hidden": float(torch.cat(norms).mean()), "nonlinear": left / max(total, 1e-12)}


class _Zero(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.zeros(())


def _without_ids(encoder: RowEncoder, corpus: Corpus) -> Tensor:
    """Return [N, D] of all candidates by their features only."""
    inputs = encoder.schema.read("candidate", corpus.candidates)
    unknown = replace(inputs, ids=torch.full_like(inputs.ids, -1))
    return torch.cat(list(encoder.blocks("candidate", unknown)))


def lines(
    recipes: Mapping[str, Path], seeds: range = range(2), settings: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the table's lines as they are measured, of the recipe of each entry of `VARIANTS`."""
    yield (
        "| data | variant | seed | selection | test | best epoch | CPU seconds until then "
        "| × factorization | hidden share | non-linear | features alone |"
    )
    yield "|" + "---|" * 11
    for name, recipe in recipes.items():
        variants = {v: [*settings, *overrides] for v, overrides in VARIANTS[name].items()}
        main = dict(list(variants.items())[:2])
        tried = {variant: v for variant, v in variants.items() if variant not in main}
        base: dict[int, float] = {}
        for row in chain(rows(recipe, main, seeds), rows(recipe, tried, seeds[:1])):
            ratio = row["seconds"] / base.setdefault(row["seed"], row["seconds"])
            cells = [name.removesuffix("-two-tower"), row["variant"], str(row["seed"])]
            cells += [f"{row[key]:.4f}" for key in ("selection", "test")]
            cells += [str(row["epoch"]), f"{row['seconds']:.0f}", f"{ratio:.1f}"]
            for key, digits in (("hidden", 2), ("nonlinear", 2), ("features_alone", 4)):
                cells.append(f"{row[key]:.{digits}f}" if key in row else "–")
            yield f"| {' | '.join(cells)} |"


def section() -> str:
    """Return the table of `docs/measured.md`: two variants on all seeds, the rest on the first."""
    gowalla.convert()
    return "\n".join(lines({name: RECIPES / f"{name}.toml" for name in VARIANTS}))


def tiny() -> str:
    kinds = {"movielens-two-tower": "random", "gowalla-two-tower": "given"}
    with tiny_recipes() as folder:
        paths = {name: folder / f"{kind}.toml" for name, kind in kinds.items()}
        return "\n".join(lines(paths, range(1), ["model.kind=two_tower"]))
