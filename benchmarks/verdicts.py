"""Verdicts of `vectors plan-migration`, tested on queries that were not used for the verdict.

The judged queries of each corpus are split into two halves; a verdict is based on one half and
measured on the other, and vice versa. Corpora and encoders are those of `migrations`. "Regret" is
the difference in nDCG@10 between the best and the chosen way on the other half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from benchmarks import migrations
from evergram.evaluation.judged import JudgedQueries, Judgements, judged_metrics, paired_bootstrap
from evergram.migration.migration_plan import (
    LEAST_QUERIES,
    MigrationVectors,
    Situation,
    WaySettings,
    decide,
    measure_ways,
)

# The ways to serve searches; a sidecar serves old readers, and naive is a mistake.
CHOICES = ("stay", "bridge", "cascade", "bridge_cascade", "reindex")
# Width of a normal 90 % interval relative to a 95 % interval.
NARROWER = 1.645 / 1.96
# The gain in nDCG@10 from which a change pays, if means decide.
WORTH = 0.01


@dataclass(frozen=True)
class Trial:
    """A verdict based on one half of the queries, measured on the other half."""

    corpus: str
    chosen: str | None  # the way that the verdict chose; None without a verdict
    expected: str | None  # the way chosen if means decide, with `WORTH`; None without a verdict
    ndcg: Mapping[str, float]  # mean nDCG@10 on the other half, by way
    encoded: Mapping[str, float]  # share of the texts that each way encodes with the new model
    # Whether the first half's 90 % interval of reindexing − staying, widened for the noise of the
    # other half, contains the difference measured there.
    covers: bool

    def regret(self, way: str) -> float:
        """Return the nDCG@10 of the best way minus the nDCG@10 of this way."""
        return max(self.ndcg[choice] for choice in CHOICES) - self.ndcg[way]


def measure() -> list[Trial]:
    judged = migrations.judged_migrations()
    return [trial for corpus, _, pair, of in judged for trial in of_pair(corpus, pair, of)]


def tiny() -> list[Trial]:
    return of_pair("made up", *migrations.made_up())


def of_pair(corpus: str, pair: MigrationVectors, judgements: Judgements) -> list[Trial]:
    """Return the two trials of a pair of encoders."""
    judged = JudgedQueries.of(judgements, pair.queries, pair.texts)
    asked = MigrationVectors(
        *(pair.texts, [pair.queries[row] for row in judged.rows.tolist()], pair.old, pair.new),
        *(pair.old_queries[judged.rows], pair.new_queries[judged.rows]),
    )
    ways = measure_ways(asked, WaySettings())
    ndcg = {name: judged_metrics(way.ranked, judged)["ndcg@10"] for name, way in ways.items()}
    encoded = {name: ways[name].encoded / len(pair.texts) for name in CHOICES}
    count = len(judged.rows)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    halves = order[: count // 2], order[count // 2 :]
    return [_trial(corpus, ndcg, encoded, *parts) for parts in (halves, halves[::-1])]


def _trial(
    corpus: str,
    ndcg: Mapping[str, Tensor],
    encoded: Mapping[str, float],
    seen: Tensor,
    unseen: Tensor,
) -> Trial:
    of_seen = {name: values[seen] for name, values in ndcg.items()}
    gain = paired_bootstrap(ndcg["reindex"][seen], ndcg["stay"][seen])
    wider = NARROWER * (1 + len(seen) / len(unseen)) ** 0.5
    there = float((ndcg["reindex"][unseen] - ndcg["stay"][unseen]).double().mean())
    low, high = ((end - gain.mean) * wider for end in (gain.low, gain.high))
    chosen = expected = None
    if len(seen) >= LEAST_QUERIES:
        chosen = decide(of_seen, Situation()).way
        expected = decide(of_seen, Situation(worth=WORTH)).way
    return Trial(
        corpus,
        chosen,
        expected,
        {name: float(ndcg[name][unseen].double().mean()) for name in CHOICES},
        encoded,
        low <= there - gain.mean <= high,
    )


def table(trials: Sequence[Trial]) -> str:
    """Return the regret and encoded share of each rule, including always and never reindexing."""
    made = [(t, t.chosen, t.expected) for t in trials if t.chosen and t.expected]
    rules = {
        "shown": [(t, shown) for t, shown, _ in made],
        f"expected, `--worth {WORTH:g}`": [(t, expected) for t, _, expected in made],
        "always reindex": [(t, "reindex") for t, _, _ in made],
        "never": [(t, "stay") for t, _, _ in made],
    }
    lines = [
        f"{len(made)} of {len(trials)} trials have a verdict; the interval covers in "
        f"{sum(t.covers for t in trials)} of {len(trials)}.",
        "",
        "| rule | regret | texts encoded |",
        "|---|---|---|",
    ]
    for rule, ways in rules.items():
        regret = fmean(trial.regret(way) for trial, way in ways)
        lines.append(f"| {rule} | {regret:.3f} | {fmean(t.encoded[w] for t, w in ways):.0%} |")
    return "\n".join(lines)
