"""Verdicts of `vectors plan-migration` on queries that did not make them.

The judged queries of each corpus are divided into two halves; a verdict is made of one and measured
on the other, and the other way round. Corpora and encoders are those of `migrations`. "Regret" is
what the chosen way's nDCG@10 lacks to the best way's on the half that was not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean

import torch
from torch import Tensor

from benchmarks import judged_corpora, migrations
from evergram.evaluation.judged import JudgedQueries, Judgements, judged_metrics, paired_bootstrap
from evergram.migration.migration_plan import LEAST_QUERIES, Situation, decide
from evergram.migration.ways import MigrationVectors, WaySettings, measure_ways

# What a searcher can be given; a sidecar serves old readers, and naive is an accident.
CHOICES = ("stay", "bridge", "cascade", "bridge_cascade", "reindex")
# An interval of 90 % is so much narrower than one of 95 %, both normal.
NARROWER = 1.645 / 1.96
# For which nDCG@10 a change pays, where means decide.
WORTH = 0.01


@dataclass(frozen=True)
class Trial:
    """A verdict of one half of the queries, on the other half.

    Args:
        chosen: the verdict's way; None if there was none.
        expected: the way where means decide, with `WORTH`; None if there was none.
        ndcg: mean nDCG@10 on the other half, by way.
        encoded: share of the texts that each way has the new model encode.
        covers: whether the first half's 90 % interval of reindexing − staying, made wider for the
            other half's own noise, holds the difference there.
    """

    corpus: str
    chosen: str | None
    expected: str | None
    ndcg: Mapping[str, float]
    encoded: Mapping[str, float]
    covers: bool

    def regret(self, way: str) -> float:
        """Return what a way lacks to the best."""
        return max(self.ndcg[choice] for choice in CHOICES) - self.ndcg[way]


def measure() -> list[Trial]:
    trials: list[Trial] = []
    encoders = migrations.installed()
    for name, read in judged_corpora.available().items():
        texts, queries, judgements = read()
        vectors = {e: migrations.vectors_of(name, e, texts, queries) for e in encoders}
        for old, new in permutations(encoders, 2):
            parts = vectors[old][0], vectors[new][0], vectors[old][1], vectors[new][1]
            pair = MigrationVectors(list(texts), list(queries), *parts)
            trials += of_pair(name, pair, judgements)
    return trials


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
    """Return each corpus's verdicts, by intervals and by means, beside those who always reindex and
    who never do."""
    lines = [
        "| corpus | verdicts | intervals that cover | reindex, stay, between: shown "
        f"| expected, worth {WORTH:g} | regret: shown, expected, always reindex, never "
        "| texts encoded: shown, expected, always reindex |",
        "|---" * 7 + "|",
    ]
    for name in [*dict.fromkeys(t.corpus for t in trials), "all"]:
        own = [t for t in trials if name in (t.corpus, "all")]
        made = [(t, t.chosen, t.expected) for t in own if t.chosen and t.expected]
        covered = sum(t.covers for t in own)
        cells = [name, f"{len(made)} of {len(own)}", f"{covered} of {len(own)}"]
        if made:
            ways = {
                "shown": [(t, way) for t, way, _ in made],
                "expected": [(t, way) for t, _, way in made],
                "always": [(t, "reindex") for t, _, _ in made],
                "never": [(t, "stay") for t, _, _ in made],
            }
            cells += [_counts([way for _, way in ways[kind]]) for kind in ("shown", "expected")]
            cells.append(
                ", ".join(f"{fmean(t.regret(w) for t, w in p):.3f}" for p in ways.values())
            )
            first = list(ways.values())[:3]
            cells.append(", ".join(f"{fmean(t.encoded[w] for t, w in p):.0%}" for p in first))
        else:
            cells += ["–"] * 4
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _counts(ways: Sequence[str]) -> str:
    reindex, stay = (ways.count(kind) for kind in ("reindex", "stay"))
    return f"{reindex}, {stay}, {len(ways) - reindex - stay}"
