"""Gramian error and gradient error by estimator and batch size. [G1] Fig. 2; [G2] Fig. 2a, 6."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from reproduction.claims import Claim, Margins
from reproduction.experiment import Experiment, Line, Panel, Preset, Runs, Table, Training
from reproduction.gramian import methods
from reproduction.intervals import rank_correlation, shown
from reproduction.readings.gramian_errors import GramianErrors
from reproduction.results import Result

TRAJECTORY = "common trajectory"
RATE = 0.1
BASELINES = tuple(f"sampling, {sampler}" for sampler in methods.SAMPLERS)
SAGRAMS = ("SAGram, β = 1", "SAGram, β = 1/n")
SOGRAM = f"SOGram, α = {RATE}"
NAMES = (*BASELINES, SOGRAM, *SAGRAMS)
# The α of SOGram for `averaging_error`, on the same trajectory with the larger batch.
RATES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5)
KINDS = {"gramian": "‖Ĝ − G‖ / ‖G‖", "gradient": "‖∇ĝ − ∇g‖ / ‖∇g‖"}


def estimators(sizes: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the table [gramian] of each estimator and batch size, by "name | size"."""
    tables = {f"sampling, {s}": methods.sampling(s) for s in methods.SAMPLERS} | {
        SOGRAM: methods.sogram(RATE),
        SAGRAMS[0]: methods.sagram("1"),
        SAGRAMS[1]: methods.sagram("1/n"),
    }
    both = {
        f"{name} | {size}": methods.looking_on(table, size)
        for size in sizes
        for name, table in tables.items()
    }
    size = sizes[-1]
    rates = {sogram_name(r): methods.sogram(r) for r in RATES}
    return both | {f"{n} | {size}": methods.looking_on(t, size) for n, t in rates.items()}


def sogram_name(rate: float) -> str:
    return f"SOGram, α = {rate}"


def trajectories(
    recipe: Path, sizes: Sequence[int], every: int, **settings: Any
) -> tuple[Training, ...]:
    """Return a training observed by estimators, which are measured every `every` steps."""
    own = {**methods.in_recipe(methods.sogram(RATE)), **settings}
    reading = (GramianErrors(estimators(sizes), every),)
    return (Training(TRAJECTORY, recipe, own, reading),)


PRESETS = {
    "tiny": Preset(trajectories(methods.TINY, (16, 64), 5), methods.TINY_NOTE),
    "small": methods.on_wikispeedia(
        trajectories(methods.SMALL, (128, 1024), 50, **{"training.epochs": 3}),
        "Three epochs.",
    ),
    "gowalla": methods.on_gowalla(
        trajectories(
            methods.GOWALLA, (128, 1024), 50, **{"training.epochs": 1, "split.share": 0.5}
        ),
        "One epoch over half of the pairs, in batches of 128.",
    ),
}


def sizes_of(result: Result) -> tuple[int, ...]:
    """Return the measured batch sizes, ascending."""
    names = (name.partition(" | ")[2] for name in result.series["errors"]["gramian"])
    return tuple(sorted({int(size) for size in names if size}))


def error(result: Result, kind: str, name: str, size: int) -> float:
    """Return an estimator's mean error over the second half of the trajectory."""
    values = result.series["errors"][kind][f"{name} | {size}"]
    return fmean(values[len(values) // 2 :])


def last_quarter(errors: Sequence[float]) -> float:
    """Return the mean over the last quarter of the measurements."""
    return fmean(errors[-max(1, len(errors) // 4) :])


def still_moves(late: Callable[[float], float], low: float, high: float) -> str:
    """Return why a trajectory has not settled, or "": a low α that has forgotten its start ends
    with a larger error (`late`) than a high one, because it follows moving vectors late."""
    if late(low) <= late(high):
        return ""
    return (
        f"the vectors still move, so that α = {low:g} follows them late (its error is "
        f"{late(low):.3f}, and that of α = {high:g} is {late(high):.3f})"
    )


def judged(runs: Runs) -> list[Result]:
    """Return the results on which claims are judged."""
    return runs.of(TRAJECTORY)


def tables(runs: Runs) -> list[Table]:
    results = judged(runs)
    sizes = sizes_of(results[0])
    rows = [
        [name, *(shown([error(r, "gramian", name, size) for r in results]) for size in sizes)]
        for name in NAMES
    ]
    header = ["estimator", *(f"|B| = {size:,}" for size in sizes)]
    return [Table("‖Ĝ − G‖ / ‖G‖, mean over the second half of the trajectory", header, rows)]


def panels(runs: Runs) -> list[Panel]:
    results = judged(runs)
    made = []
    for kind, size in product(KINDS, sizes_of(results[0])):
        lines = [
            Line(
                name,
                results[0].series["errors"]["step"],
                [r.series["errors"][kind][f"{name} | {size}"] for r in results],
                dashed=name in BASELINES,
            )
            for name in NAMES
        ]
        made.append(Panel(f"|B| = {size:,}", "step", KINDS[kind], lines, log_y=True))
    return made


# Below this relative error, an estimator is exact up to rounding.
EXACT = 1e-5
# An estimator and a batch size.
Cell = tuple[str, int]


def _lower(runs: Runs, pairs: Iterable[tuple[Cell, Cell]], slack: float = 1.0) -> Margins:
    """Return how much lower the Gramian error of the first cell of each pair is than `slack` times
    the error of the second, in %."""
    margins = {}
    for better, worse in pairs:
        errors = [
            [error(result, "gramian", *cell) for cell in (better, worse)] for result in judged(runs)
        ]
        name = f"{better[0]}, {better[1]:,}, over {worse[0]}, {worse[1]:,}"
        margins[name] = [100 * (1 - low / (slack * high)) for low, high in errors]
    return margins


def _at_each_size(runs: Runs, better: Sequence[str], worse: Sequence[str]) -> Margins:
    """Return how much lower the first estimators' errors are than the others', by batch size."""
    sizes = sizes_of(judged(runs)[0])
    names = product(better, worse, sizes)
    return _lower(runs, (((one, size), (other, size)) for one, other, size in names))


def sagram_is_best(runs: Runs) -> Margins:
    return _at_each_size(runs, SAGRAMS, (*BASELINES, SOGRAM))


def sogram_beats_sampling(runs: Runs) -> Margins:
    return _at_each_size(runs, [SOGRAM], BASELINES)


def importance_beats_uniform(runs: Runs) -> Margins:
    return _at_each_size(runs, BASELINES[1:], BASELINES[:1])


def larger_is_better(runs: Runs) -> Margins:
    """Compare batch sizes, for estimators that are not exact with the small batch."""
    results = judged(runs)
    small, *_, large = sizes_of(results[0])
    erring = [n for n in NAMES if any(error(r, "gramian", n, small) > EXACT for r in results)]
    return _lower(runs, (((name, large), (name, small)) for name in erring))


def small_batch_suffices(runs: Runs) -> Margins:
    """Test that SOGram with the small batch is at most a quarter worse than each sampling with the
    large one."""
    sizes = sizes_of(judged(runs)[0])
    pairs = (((SOGRAM, sizes[0]), (name, sizes[-1])) for name in BASELINES)
    return _lower(runs, pairs, slack=1.25)


def gradients_alike(runs: Runs) -> list[float]:
    """Return Spearman's correlation of both errors over all estimators and sizes, minus 0.8."""
    margins = []
    for result in judged(runs):
        cells = list(product(NAMES, sizes_of(result)))
        errors = ([error(result, kind, *cell) for cell in cells] for kind in KINDS)
        margins.append(rank_correlation(*errors) - 0.8)
    return margins


CLAIMS = (
    Claim(
        "Both variants of SAGram yield the best estimates.",
        "[G1] §4.2, [G2] §4.2",
        "how much lower each SAGram's error is than each other's, %, at each batch size",
        sagram_is_best,
        remarks={
            "small": "On Wikispeedia pages move at each step; β = 1/n counts them as last drawn.",
            "gowalla": "On Gowalla both are exact: with ids alone a row moves only in the step "
            "that draws it, and that step writes it into the cache.",
        },
    ),
    Claim(
        "SOGram yields better estimates than the baselines.",
        "[G1] §4.2, [G2] §4.2",
        "how much lower SOGram's error is than each sampling's, %, at each batch size",
        sogram_beats_sampling,
    ),
    Claim(
        "Importance sampling (both linear and sqrt) performs better than uniform.",
        "[G2] §4.2",
        "how much lower each one's error is than uniform's, %, at each batch size",
        importance_beats_uniform,
    ),
    Claim(
        "A larger batch, 1,024 in place of 128, improves the quality of all estimates.",
        "[G1] §4.2, [G2] §4.2",
        "how much lower each estimator's error is with the larger batch, %",
        larger_is_better,
    ),
    Claim(
        "SOGram with |B| = 128 has comparable quality to the baselines with |B| = 1,024.",
        "[G1] §4.2, [G2] §4.2",
        "how much lower SOGram's error is than 1.25 times that of each sampling with the large "
        "batch, %",
        small_batch_suffices,
    ),
    Claim(
        "The gradient errors are similar to the Gramian errors.",
        "[G2] App. E.1",
        "Spearman's correlation of both errors over estimators and batch sizes, less 0.8",
        gradients_alike,
    ),
)
EXPERIMENT = Experiment(
    "gramian/gramian-error",
    {"G1": "Figure 2", "G2": "Figures 2a, 6"},
    "Gramian error by estimator and batch size",
    "Estimates of the Gramian, and of the penalty's gradient, on a common trajectory.",
    PRESETS,
    tables,
    panels,
    CLAIMS,
)
