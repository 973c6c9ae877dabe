"""MAP@10 by α. [G1] Table 2, Fig. 4; [G2] Fig. 7."""

from __future__ import annotations

from reproduction.claims import Claim
from reproduction.experiment import Experiment, Panel, Runs, Table
from reproduction.gramian import map_series, table2

SAMPLING = table2.SAMPLING["linear"]
LABELS = {rate: table2.rate_name(rate) for rate in table2.RATES}
LOWEST, HIGHEST = LABELS[min(LABELS)], LABELS[max(LABELS)]


def own(runs: Runs) -> Runs:
    """Return the runs of linear sampling and of all α."""
    return runs.only([SAMPLING, *(x for x in LABELS.values() if x in runs.labels)])


def tables(runs: Runs) -> list[Table]:
    return [map_series.table(own(runs), dict.fromkeys(LABELS.values(), SAMPLING))]


def panels(runs: Runs) -> list[Panel]:
    return map_series.panels(own(runs), [SAMPLING], by="step")


def below_popularity(runs: Runs) -> str:
    """Return why these models say nothing about quality, or ""."""
    return map_series.below_popularity(own(runs))


def slower_at_first(runs: Runs) -> list[float]:
    return [high - low for high, low in runs.pairs(HIGHEST, LOWEST, map_series.first)]


def better_at_last(runs: Runs) -> list[float]:
    return map_series.gains(runs, LOWEST, HIGHEST)


EXPERIMENT = Experiment(
    "gramian/averaging-rate",
    {"G1": "Table 2, Figure 4", "G2": "Figure 7"},
    "MAP@10 by α",
    "SOGram with the α of [G1] Table 2, and sampling (dashed); linear samplers.",
    {name: p for name, p in table2.EXPERIMENT.presets.items() if name != "gowalla"},
    tables,
    panels,
    (
        Claim(
            "With a lower α progress is initially slower.",
            "[G1] §4.3, [G2] App. E.3",
            "MAP@10 of α = 0.1 less that of α = 0.001, at the first evaluation",
            slower_at_first,
            premise=below_popularity,
        ),
        Claim(
            "With a lower α the final performance is better.",
            "[G1] §4.3, [G2] App. E.3",
            "gain of α = 0.001 over α = 0.1 at the end, %",
            better_at_last,
            premise=below_popularity,
            too_short=map_series.too_few_steps(min(table2.RATES)),
        ),
    ),
    runs_of=table2.EXPERIMENT.name,
)
