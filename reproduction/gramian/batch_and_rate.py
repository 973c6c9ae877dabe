"""MAP@10 by batch size, learning rate and α. [G2] Tables 3 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from reproduction.claims import Claim, Margins
from reproduction.experiment import Experiment, Line, Panel, Preset, Runs, Table, Training
from reproduction.gramian import map_series, methods
from reproduction.intervals import shown
from reproduction.readings.map_over_time import MapOverTime

SAMPLING = "sampling"
ALPHAS = (0.1, 0.01, 0.001)
METHODS = (SAMPLING, *(f"SOGram, α = {alpha}" for alpha in ALPHAS))
# Learning rates relative to 0.01, the baselines' best, with the papers' rates; and batch sizes.
FACTORS = {2.0: "0.02", 1.0: "0.01", 0.5: "0.005"}
SIZES = (128, 512)


def label(method: str, size: int, factor: float) -> str:
    return f"{method} | |B| = {size} | η × {factor:g}"


def trainings(
    recipe: Path,
    rates: Sequence[float],
    sizes: Sequence[int],
    epochs: int | None = None,
    **others: Any,
) -> tuple[Training, ...]:
    """Return every method with every batch size and rate.

    Args:
        rates: learning rates of tables, features and layers for factor 1.
        epochs: number of epochs, for all batch sizes.
    """
    tables = {SAMPLING: methods.sampling()}
    tables |= {f"SOGram, α = {alpha}": methods.sogram(alpha) for alpha in ALPHAS}
    made = []
    for place, size in zip(SIZES, sizes, strict=True):
        for factor in FACTORS:
            scaled = dict(zip(methods.RATE_KEYS, (factor * rate for rate in rates), strict=True))
            settings: dict[str, Any] = {**scaled, "training.batch_size": size, **others}
            if epochs is not None:
                settings["training.epochs"] = epochs
            for method, table in tables.items():
                name = label(method, place, factor)
                every = methods.in_recipe(table) | settings
                made.append(Training(name, recipe, every, (MapOverTime(),)))
    return tuple(made)


def tables(runs: Runs) -> list[Table]:
    """Return the MAP@10 of sampling, and the gain of each α over sampling."""
    rows = []
    for size, factor in product(SIZES, FACTORS):
        baseline = shown(runs.values(label(SAMPLING, size, factor), map_series.tested))
        each = (map_series.percent(_gains(runs, m, size, factor)) for m in METHODS[1:])
        rows.append([f"|B| = {size}, η × {factor:g}", baseline, *each])
    header = ["", "sampling", *(f"gain of {method}" for method in METHODS[1:])]
    return [Table("MAP@10 on test pairs", header, rows)]


def panels(runs: Runs) -> list[Panel]:
    """Return the gains by learning rate, one panel per batch size."""
    made = []
    factors = sorted(FACTORS)
    for size in SIZES:
        lines = []
        for method in METHODS[1:]:
            ours = zip(*(_gains(runs, method, size, f) for f in factors), strict=True)
            lines.append(Line(method, factors, [list(each) for each in ours]))
        made.append(Panel(f"|B| = {size}", "learning rate, η ×", "gain over sampling, %", lines))
    return made


def _gains(runs: Runs, method: str, size: int, factor: float) -> list[float]:
    return map_series.gains(runs, label(method, size, factor), label(SAMPLING, size, factor))


def at_best_rate(runs: Runs, method: str, size: int) -> str:
    """Return the label of a method with the rate whose mean validation MAP is the highest."""
    labels = [label(method, size, factor) for factor in FACTORS]
    return max(labels, key=lambda each: fmean(runs.values(each, map_series.final)))


def slowest_is_best(runs: Runs) -> Margins:
    """Return the gain of α = 0.001 over each other method, each with its best rate."""
    slow = METHODS[-1]
    return {
        f"{method}, |B| = {size}": map_series.gains(
            runs, at_best_rate(runs, slow, size), at_best_rate(runs, method, size)
        )
        for method, size in product(METHODS[:-1], SIZES)
    }


def more_with_small_batches(runs: Runs) -> list[float]:
    """Return the gain of α = 0.001 with the small batch minus that with the large one."""
    small, large = (_gains(runs, METHODS[-1], size, 1.0) for size in SIZES)
    return [one - other for one, other in zip(small, large, strict=True)]


def robust_to_large_rates(runs: Runs) -> Margins:
    """Return how much more sampling loses than each α at twice the rate, for each batch size."""
    margins = {}
    for size in SIZES:
        sampling, *drops = (
            map_series.gains(runs, label(m, size, 2.0), label(m, size, 1.0)) for m in METHODS
        )
        for method, drop in zip(METHODS[1:], drops, strict=True):
            pairs = zip(sampling, drop, strict=True)
            margins[f"{method}, |B| = {size}"] = [sogram - base for base, sogram in pairs]
    return margins


EXPERIMENT = Experiment(
    "gramian/tables3-4",
    {"G2": "Tables 3, 4"},
    "MAP@10 by batch size, learning rate and α",
    "MAP@10 on test pairs; gains are over sampling with the same batch and rate.",
    {
        "tiny": Preset(trainings(methods.TINY, (0.1, 0.02, 1e-3), (32, 64)), methods.TINY_NOTE),
        "small": methods.on_wikispeedia(
            trainings(methods.SMALL, methods.SMALL_RATES, SIZES, 3, **methods.UNIFORM),
            "Three passes. " + methods.UNIFORM_NOTE,
        ),
    },
    tables,
    panels,
    (
        Claim(
            "The best performance is consistently achieved by SOGram with α = 0.001.",
            "[G2] App. E.4",
            "its gain over each other method, each with its best rate, %",
            slowest_is_best,
            premise=map_series.below_popularity,
            too_short=map_series.too_few_steps(min(ALPHAS)),
        ),
        Claim(
            "The improvement over sampling is larger for smaller batches.",
            "[G2] App. E.4",
            "gain of α = 0.001 at rate η, |B| = 128 less 512, % points",
            more_with_small_batches,
            premise=map_series.below_popularity,
            too_short=map_series.too_few_steps(min(ALPHAS)),
        ),
        Claim(
            "With a larger learning rate the drop of the baseline is much more significant.",
            "[G2] App. E.4",
            "change of MAP with twice the rate, SOGram with each α less sampling, % points",
            robust_to_large_rates,
            premise=map_series.below_popularity,
        ),
    ),
)
