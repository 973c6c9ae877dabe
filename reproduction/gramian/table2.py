"""SOGram compared with three samplings: MAP@10 over time. [G1] Fig. 4; [G2] Fig. 3, Table 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from reproduction.claims import Claim, Margins
from reproduction.experiment import Experiment, Panel, Preset, Runs, Search, Table, Training
from reproduction.gramian import map_series, methods
from reproduction.readings.map_over_time import MapOverTime

BUDGET, LAMBDA = 30.0, "task.penalty"
# A gain up to this many percent counts as no improvement.
SLACK = 2.0
RATE = 0.1
# [G1] Table 2.
RATES = (0.001, 0.005, 0.01, 0.1)
SAMPLING = {s: f"{s} sampling" for s in methods.SAMPLERS}
SOGRAM = {s: f"{s} SOGram" for s in methods.SAMPLERS}
BASELINES = {SOGRAM[s]: SAMPLING[s] for s in methods.SAMPLERS}
SOFTMAX = "softmax, logQ"
BESIDE = {
    "sampling": "linear sampling, the other measure",
    "sogram": "linear SOGram, the other measure",
}


def trainings(
    recipe: Path,
    rates: Mapping[str, float] | None = None,
    **settings: Any,
) -> tuple[Training, ...]:
    """Return both methods with each sampler under the uniform measure, and with one sampler under
    the measure of examples; the softmax; and SOGram with the α of [G1] Table 2, for
    `averaging_rate`.

    Args:
        rates: base learning rates by key for each method's trials; other α use the settings of
            linear SOGram. None runs no trials.
    """
    tables: dict[str, dict[str, Any]] = {}
    for sampler in methods.SAMPLERS:
        for label, table in (
            (SAMPLING[sampler], methods.sampling(sampler)),
            (SOGRAM[sampler], methods.sogram(RATE, sampler)),
        ):
            tables[label] = methods.in_recipe(table) | methods.UNIFORM
    for label, known in zip(BESIDE.values(), (SAMPLING, SOGRAM), strict=True):
        tables[label] = tables[known["linear"]] | methods.EXAMPLES
    tables[SOFTMAX] = methods.SOFTMAX
    # Where the number of passes is set, trials have half as many.
    shorter = {key: n // 2 for key, n in settings.items() if key == "training.epochs"}
    searches = _searches(tables, rates or {}, settings | shorter)
    for other in RATES[:-1]:
        label = rate_name(other)
        tables[label] = methods.in_recipe(methods.sogram(other)) | methods.UNIFORM
        searches[label] = searches[SOGRAM["linear"]]
    reading = (MapOverTime(),)
    return tuple(
        Training(
            label,
            recipe,
            table | settings,
            reading,
            search=searches[label] if rates else None,
        )
        for label, table in tables.items()
    )


def _searches(
    tables: Mapping[str, methods.Table], rates: Mapping[str, float], settings: methods.Table
) -> dict[str, Search]:
    """Return nine trials per method; the softmax varies its temperature instead of λ."""
    usual = list(rates), list(rates.values())
    own = {SOFTMAX: methods.trials(*usual, methods.TEMPERATURES, "task.temperature")}
    trials = methods.trials(*usual)
    return {
        label: Search(label, table | settings, own.get(label, trials))
        for label, table in tables.items()
    }


def on_gowalla() -> tuple[Training, ...]:
    """Return both methods with each sampler on Gowalla; the last epoch chooses of twelve trials."""
    own: dict[str, Any] = {"training.batch_size": 512, "training.evaluate_every": 3}
    made = trainings(methods.GOWALLA, {"training.table_rate": 0.025}, **own)
    # Measure five times in three epochs of 1,535 steps.
    reading = (MapOverTime(queries=1000, every=921),)
    beyond = {SOFTMAX: {"task.temperature": 0.05}} | {b: {LAMBDA: 1.0} for b in BESIDE.values()}
    chosen = []
    for training in made:
        if (search := training.search) is not None and "α" not in training.label:
            more = beyond.get(training.label, {LAMBDA: 100.0})
            trials = (*search.trials, *({**trial, **more} for trial in search.trials[:3]))
            last = replace(search, trials=trials, score=map_series.final)
            chosen.append(replace(training, readings=reading, search=last))
    return tuple(chosen)


def rate_name(rate: float) -> str:
    """Return the label of linear SOGram with this α."""
    return SOGRAM["linear"] if rate == RATE else f"linear SOGram, α = {rate}"


def own(runs: Runs) -> Runs:
    """Return the runs except those with another α."""
    return runs.only([label for label in runs.labels if "α" not in label])


def tables(runs: Runs) -> list[Table]:
    over = BASELINES | {BESIDE["sogram"]: BESIDE["sampling"], SOFTMAX: SAMPLING["linear"]}
    return [map_series.table(own(runs), over)]


def panels(runs: Runs) -> list[Panel]:
    dashed = [*SAMPLING.values(), BESIDE["sampling"], SOFTMAX]
    return map_series.panels(own(runs), dashed)


def _shares(runs: Runs, label: str, baseline: str) -> list[float | None]:
    pairs = zip(runs.of(label), runs.values(baseline, map_series.final), strict=False)
    return [map_series.share_to_reach(result, value) for result, value in pairs]


def below_popularity(runs: Runs) -> str:
    """Return why the models under the first measure say nothing about quality, or ""."""
    return map_series.below_popularity(runs.only([*SAMPLING.values(), *SOGRAM.values()]))


still_rising = map_series.still_rising([*SAMPLING.values(), *SOGRAM.values()])


def better_with_every_sampler(runs: Runs) -> Margins:
    return {other: map_series.gains(runs, own, other) for own, other in BASELINES.items()}


def linear_sogram_is_best(runs: Runs) -> Margins:
    others = [*SAMPLING.values(), *(v for k, v in SOGRAM.items() if k != "linear")]
    return {other: map_series.gains(runs, SOGRAM["linear"], other) for other in others}


def time_saved(runs: Runs) -> Margins:
    return {
        other: [BUDGET - 100 * (1.0 if s is None else s) for s in _shares(runs, own, other)]
        for own, other in BASELINES.items()
    }


def no_better_on_training(runs: Runs) -> list[float]:
    pair = SOGRAM["linear"], SAMPLING["linear"]
    return [SLACK - value for value in map_series.gains(runs, *pair, map_series.trained)]


def softmax_is_better(runs: Runs) -> list[float]:
    return map_series.gains(runs, SOFTMAX, SAMPLING["linear"])


CLAIMS = (
    Claim(
        "SOGram has better validation performance than sampling with every sampling strategy.",
        "[G2] §4.3",
        "gain of MAP on test pairs with each strategy, %",
        better_with_every_sampler,
        premise=below_popularity,
        too_short=still_rising,
    ),
    Claim(
        "The best performance is consistently achieved by SOGram with linear importance sampling.",
        "[G2] §4.3",
        "gain of its MAP on test pairs over each other method's, %",
        linear_sogram_is_best,
        premise=below_popularity,
        too_short=still_rising,
    ),
    Claim(
        "SOGram exceeds the final validation MAP of each baseline within 30 % of the budget.",
        "[G2] §4.3",
        "30 % less the share of the CPU time, % points; 100 % where it never does",
        time_saved,
        premise=below_popularity,
        too_short=still_rising,
    ),
    Claim(
        "SOGram does not improve MAP on the training set over sampling.",
        "[G1] §4.3",
        f"{SLACK:g} less the gain of SOGram's final training MAP over sampling's, %, both linear",
        no_better_on_training,
        premise=below_popularity,
        too_short=still_rising,
    ),
    Claim(
        "In-batch softmax with logQ finds more than linear sampling with the penalty.",
        "ours, no claim of the papers",
        "gain of MAP on test pairs, %",
        softmax_is_better,
        premise=below_popularity,
    ),
)
EXPERIMENT = Experiment(
    "gramian/table2",
    {"G1": "Figure 4, Table 2", "G2": "Figure 3, Table 2"},
    "MAP@10 over time: SOGram against sampling",
    "Sampling is dashed. The penalty is under the uniform measure; two rows have the papers', the "
    "frequency of examples. Gains are over sampling. In-batch softmax with the correction of logQ, "
    "which the papers do not have, is compared with linear sampling; its temperature, of 0.05 to "
    "1, is chosen where others' λ is.",
    {
        "tiny": Preset(trainings(methods.TINY), methods.TINY_NOTE),
        "small": methods.on_wikispeedia(
            trainings(
                methods.SMALL,
                dict(zip(methods.RATE_KEYS, methods.SMALL_RATES, strict=True)),
                **{"training.epochs": 4},
            ),
            "Four passes, trials of two. " + methods.CHOSEN_NOTE,
        ),
        "gowalla": methods.on_gowalla(
            on_gowalla(),
            "Batches of 512, three epochs, shown at five moments and tested after the last. "
            + methods.CHOSEN_NOTE.replace("nine", "twelve"),
        ),
    },
    tables,
    panels,
    CLAIMS,
)
