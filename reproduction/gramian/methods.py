"""The papers' methods as [gramian] tables of recipes, and the recipes of the presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction.experiment import Preset, Training

Table = dict[str, Any]
Trials = tuple[Mapping[str, Any], ...]

RECIPES = Path(__file__).parent / "recipes"
SMALL, TINY = RECIPES / "small.toml", RECIPES / "tiny.toml"
GOWALLA = RECIPES / "gowalla.toml"
# [G2] §4.1: entities are drawn with probability ∝ 1, √count or count.
SAMPLERS = ("uniform", "sqrt", "linear")
WIKISPEEDIA = (
    "4,591 pages that link to pages, with titles' n-grams and categories, both towers over the "
    "same tables and one hidden layer of 256. Adagrad and Adam in place of the papers' SGD, "
    "which would take days, at a third of the rates of quickest training; λ = 10."
)
GOWALLA_SETTING = (
    "29,858 users and the 40,980 places where they checked in, the public split's training part, "
    "by ids alone: no hidden layer, D = 32, Adagrad, λ = 10."
)
# Learning rates of tables, features and layers, and their values in the small recipe.
RATE_KEYS = ("training.table_rate", "training.feature_rate", "training.layer_rate")
SMALL_RATES = (0.015, 0.006, 1e-4)
# The papers' measure, the frequency in examples, under which small models are worse than
# popularity; and the uniform measure.
EXAMPLES: Table = {"task.query_measure": 1.0, "task.candidate_measure": 1.0}
UNIFORM: Table = dict.fromkeys(EXAMPLES, 0.0)
# docs/reproduction.md, "How a claim is judged", says what these mean.
UNIFORM_NOTE, CHOSEN_NOTE = "Uniform measure.", "Settings of each method by nine trials."
TINY_NOTE = "Made-up data in seconds, for tests; nothing can be learned from its figures."


def on_wikispeedia(trainings: tuple[Training, ...], note: str) -> Preset:
    return Preset(trainings, note, "Wikispeedia", WIKISPEEDIA)


def on_gowalla(trainings: tuple[Training, ...], note: str) -> Preset:
    return Preset(trainings, note, "Gowalla", GOWALLA_SETTING)


# In-batch softmax with the logQ correction, instead of a loss with a penalty.
SOFTMAX: Table = {
    "task.kind": "softmax",
    "task.penalty": 0.0,
    **dict.fromkeys((*EXAMPLES, "training.precondition")),
}
TEMPERATURES = (0.1, 0.3, 1.0)


def sampling(sampler: str = "linear") -> Table:
    """Return a sampling baseline: the Gramian of a sampled batch, with the gradient over it."""
    return {"kind": "sampled", "sampler": sampler, "gradient": "sampled"}


def sogram(rate: float, sampler: str = "linear") -> Table:
    """Return SOGram as published: starting from zero, without correction ([G2] Algorithm 2)."""
    return {"kind": "sogram", "rate": rate, "sampler": sampler, "correct_start": False}


def sagram(beta: str, sampler: str = "linear", **more: Any) -> Table:
    """Return SAGram with β "1" or "1/n" ([G2] Algorithm 1)."""
    return {"kind": "sagram", "beta": beta, "sampler": sampler, **more}


def in_recipe(gramian: Mapping[str, Any]) -> Table:
    """Return a [gramian] table as settings of a training, by "gramian.key"."""
    return {f"gramian.{key}": value for key, value in gramian.items()}


def looking_on(gramian: Mapping[str, Any], batch_size: int) -> Table:
    """Return the [gramian] table of an estimator that only observes, with its own batch."""
    table = {key: value for key, value in gramian.items() if key not in ("batch", "gradient")}
    return {**table, "batch_size": batch_size}


def trials(
    rate_keys: Sequence[str],
    rates: Sequence[float],
    values: Sequence[float] = (3.0, 10.0, 30.0),
    key: str = "task.penalty",
) -> Trials:
    """Return nine trials, the same for every method: three values each of λ, learning rate and l2,
    in a Latin square.

    Args:
        rate_keys, rates: base learning rates by key; trials multiply them by 1, 2 and 4.
        values: values of λ, or of `key`.
    """
    l2 = (0.0, 0.01, 0.1)
    return tuple(
        {
            key: value,
            "task.l2": l2[(row + column) % 3],
            **{key: factor * rate for key, rate in zip(rate_keys, rates, strict=True)},
        }
        for row, value in enumerate(values)
        for column, factor in enumerate((1.0, 2.0, 4.0))
    )
