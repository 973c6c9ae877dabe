"""SOGram against the three samplings: MAP@10 over time. [G1] Fig. 4; [G2] Fig. 3, Table 2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from reproduction.claims import Claim, Margins
from reproduction.experiment import Experiment, Panel, Preset, Runs, Table, Training
from reproduction.gramian import map_series, methods
from reproduction.readings.map_over_time import MapOverTime

BUDGET = 30.0
RATE = 0.1
# [G1] Table 2.
RATES = (0.001, 0.005, 0.01, 0.1)
SAMPLING = {s: f"{s} sampling" for s in methods.SAMPLERS}
SOGRAM = {s: f"{s} SOGram" for s in methods.SAMPLERS}
BASELINES = {SOGRAM[s]: SAMPLING[s] for s in methods.SAMPLERS}
# The papers cite adaptive sampling and do not measure it; [G2] §4.1 has the three above.
ADAPTIVE = "adaptive sampling"
# The same under the uniform measure, beside the papers' measure of examples.
UNIFORM = {"task.query_measure": 0.0, "task.candidate_measure": 0.0}
BESIDE = {
    "sampling": "linear sampling, uniform measure",
    "sogram": "linear SOGram, uniform measure",
}


def trainings(recipe: Path, rate: float, **settings: Any) -> tuple[Training, ...]:
    """Return both methods with each sampler, with one under the uniform measure, and adaptive
    sampling; and SOGram with the α of [G1] Table 2, which `averaging_rate` shows."""
    reading = (MapOverTime(),)
    tables: dict[str, dict[str, Any]] = {}
    for sampler in methods.SAMPLERS:
        tables[SAMPLING[sampler]] = methods.in_recipe(methods.sampling(sampler))
        tables[SOGRAM[sampler]] = methods.in_recipe(methods.sogram(rate, sampler))
    for other in sorted({*RATES} - {rate}):
        tables[rate_name(other, rate)] = methods.in_recipe(methods.sogram(other))
    tables[BESIDE["sampling"]] = methods.in_recipe(methods.sampling()) | UNIFORM
    tables[BESIDE["sogram"]] = methods.in_recipe(methods.sogram(rate)) | UNIFORM
    tables[ADAPTIVE] = methods.in_recipe(methods.sampling("adaptive"))
    return tuple(
        Training(label, recipe, table | settings, reading) for label, table in tables.items()
    )


def on_gowalla() -> tuple[Training, ...]:
    """Return both methods with each sampler on Gowalla, under the papers' measure alone."""
    chosen = {*SAMPLING.values(), *SOGRAM.values()}
    own = {"training.batch_size": 512, "training.evaluate_every": 3}
    made = trainings(methods.GOWALLA, RATE, **own)
    # Five times in three epochs of 1,535 steps.
    reading = (MapOverTime(queries=1000, every=921),)
    return tuple(replace(t, readings=reading) for t in made if t.label in chosen)


def rate_name(rate: float, default: float = RATE) -> str:
    """Return the label of linear SOGram with this α."""
    return SOGRAM["linear"] if rate == default else f"linear SOGram, α = {rate}"


def own(runs: Runs) -> Runs:
    """Return the runs without those of other α."""
    return runs.only([label for label in runs.labels if "α" not in label])


def tables(runs: Runs) -> list[Table]:
    over = BASELINES | {BESIDE["sogram"]: BESIDE["sampling"], ADAPTIVE: SAMPLING["linear"]}
    return [map_series.table(own(runs), over)]


def panels(runs: Runs) -> list[Panel]:
    dashed = [*SAMPLING.values(), BESIDE["sampling"], ADAPTIVE]
    return map_series.panels(own(runs), dashed)


def _shares(runs: Runs, label: str, baseline: str) -> list[float | None]:
    pairs = zip(runs.of(label), runs.values(baseline, map_series.final), strict=False)
    return [map_series.share_to_reach(result, value) for result, value in pairs]


def not_comparable(runs: Runs) -> str:
    """Return why the models under the papers' measure prove nothing; "" where they do."""
    if any(result.preset == "gowalla" for result in runs.all):
        return "the learning rate was chosen for SOGram"
    labels = [*SAMPLING.values(), *SOGRAM.values()]
    return map_series.below_popularity(runs.only(labels))


def better_under_the_uniform_measure(runs: Runs) -> list[float]:
    ours, sampling = BESIDE["sogram"], BESIDE["sampling"]
    return map_series.gains(runs, ours, sampling) if ours in runs.labels else []


def uniform_below_popularity(runs: Runs) -> str:
    return map_series.below_popularity(runs.only(list(BESIDE.values())))


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
    return [-value for value in map_series.gains(runs, *pair, "training")]


CLAIMS = (
    Claim(
        "SOGram has better validation performance than sampling with every sampling strategy.",
        "[G2] §4.3",
        "gain of the final validation MAP with each strategy, %",
        better_with_every_sampler,
        premise=not_comparable,
    ),
    Claim(
        "SOGram has better validation performance than sampling, under the uniform measure.",
        "[G2] §4.3, our measure",
        "gain of the final validation MAP, linear samplers, one λ and rate for both, %",
        better_under_the_uniform_measure,
        premise=uniform_below_popularity,
    ),
    Claim(
        "The best performance is consistently achieved by SOGram with linear importance sampling.",
        "[G2] §4.3",
        "gain of its final validation MAP over each other method's, %",
        linear_sogram_is_best,
        premise=not_comparable,
    ),
    Claim(
        "SOGram exceeds the final validation MAP of each baseline within 30 % of the budget.",
        "[G2] §4.3",
        "30 % less the share of the CPU time, % points; 100 % where it never does",
        time_saved,
        premise=not_comparable,
    ),
    Claim(
        "SOGram does not improve MAP on the training set over sampling.",
        "[G1] §4.3",
        "how much lower SOGram's final training MAP is than sampling's, %, both linear",
        no_better_on_training,
        premise=not_comparable,
    ),
)
EXPERIMENT = Experiment(
    "gramian/table2",
    {"G1": "Figure 4, Table 2", "G2": "Figure 3, Table 2"},
    "MAP@10 over time: SOGram against sampling",
    "Sampling is dashed. The papers' measure is the frequency of examples; two rows have the "
    "uniform one. Gains are over sampling, of adaptive sampling over linear.",
    {
        "tiny": Preset(trainings(methods.TINY, RATE), methods.TINY_NOTE),
        "small": methods.on_wikispeedia(trainings(methods.SMALL, RATE), "", 9),
        "gowalla": methods.on_gowalla(
            on_gowalla(), "Batches of 512, three epochs, judged at five moments.", 2
        ),
        "paper": Preset(
            trainings(methods.PAPER["en"], 0.001),
            methods.PAPER_NOTE + " α = 0.001, the best of [G1] Table 2 on `en`.",
        ),
    },
    tables,
    panels,
    CLAIMS,
)
