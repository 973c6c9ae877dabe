"""The papers' methods as tables [gramian] of a recipe, and the recipes of the presets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.experiment import Preset, Training

RECIPES = Path(__file__).parent / "recipes"
SMALL, TINY = RECIPES / "small.toml", RECIPES / "tiny.toml"
GOWALLA = RECIPES / "gowalla.toml"
PAPER = {language: RECIPES / f"paper-{language}.toml" for language in ("simple", "fr", "en")}
# [G2] §4.1: entities are drawn with probability ∝ 1, √count or count.
SAMPLERS = ("uniform", "sqrt", "linear")
WIKISPEEDIA = (
    "4,591 pages that link to pages, with titles' n-grams and categories, both towers over the "
    "same tables and one hidden layer of 256. Batches of 128 are 2.8 % of the pages; the papers' "
    "1,024 are 1.2 % of `simple` and 0.02 % of `en`. Adagrad and Adam in place of the papers' SGD, "
    "which would take days, at a third of the rates of quickest training; λ = 10."
)
PAPER_NOTE = (
    "The papers' own setting: SGD with η = 0.01, λ = 10, |B| = 1,024, 20 hours on `simple`, 30 on "
    "`fr`, 50 on `en`, Wikipedia's dumps."
)
GOWALLA_SETTING = (
    "29,858 users and the 40,980 places where they checked in, the public split's training part, "
    "by ids alone: no hidden layer, D = 32, Adagrad, λ = 10. The rate was chosen for SOGram."
)
# Of tables, features and layers in the small recipe.
SMALL_RATES = (0.015, 0.006, 1e-4)
TINY_NOTE = "Made-up data in seconds, for tests; nothing can be learned from its figures."

Table = dict[str, Any]


def on_wikispeedia(trainings: tuple[Training, ...], note: str, minutes: float) -> Preset:
    return Preset(trainings, note, minutes, "Wikispeedia", WIKISPEEDIA)


def on_gowalla(trainings: tuple[Training, ...], note: str, minutes: float) -> Preset:
    return Preset(trainings, note, minutes, "Gowalla", GOWALLA_SETTING)


def sampling(sampler: str = "linear", **more: Any) -> Table:
    """Return a sampling baseline: the Gramian of the batch drawn, with the gradient over it."""
    return {"kind": "sampled", "sampler": sampler, **more} | {"gradient": "sampled"}


def sogram(rate: float, sampler: str = "linear", **more: Any) -> Table:
    """Return SOGram as printed: it starts at zero and is not corrected ([G2] Algorithm 2)."""
    return {
        "kind": "sogram",
        "rate": rate,
        "sampler": sampler,
        "correct_start": False,
        **more,
    }


def sagram(beta: str, sampler: str = "linear", **more: Any) -> Table:
    """Return SAGram with β "1" or "1/n" ([G2] Algorithm 1)."""
    return {"kind": "sagram", "beta": beta, "sampler": sampler, **more}


def in_recipe(gramian: Mapping[str, Any]) -> Table:
    """Return a table [gramian] as settings of a training, by "gramian.key"."""
    return {f"gramian.{key}": value for key, value in gramian.items()}


def looking_on(gramian: Mapping[str, Any], batch_size: int) -> Table:
    """Return a table [gramian] of an estimator that only looks on, with a batch of its own."""
    table = {key: value for key, value in gramian.items() if key not in ("batch", "gradient")}
    return {**table, "batch_size": batch_size}
