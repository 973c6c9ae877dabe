"""Verdicts on queries that did not make them: halves, regret, and what the table counts."""

from __future__ import annotations

import pytest
import torch
from benchmarks.verdicts import CHOICES, Trial, _trial, of_pair, table

from benchmarks import migrations
from evergram.evaluation.judged.judged_metrics import JudgedQueries, judged_metrics
from evergram.releasing.migration.ways import WaySettings, measure_ways


def trial(
    chosen: str | None, best: str = "reindex", *, expected: str | None = None, covers: bool = True
) -> Trial:
    ndcg = {way: 0.5 if way == best else 0.3 for way in CHOICES}
    encoded = dict.fromkeys(CHOICES, 0.0) | {"reindex": 1.0}
    return Trial("c", chosen, expected or chosen, ndcg, encoded, covers)


def test_halves_share_no_query_and_are_all_of_them() -> None:
    pair, judgements = migrations.made_up()
    first, second = of_pair("made up", pair, judgements)
    judged = JudgedQueries.of(judgements, pair.queries, pair.texts)
    ways = measure_ways(pair, WaySettings())
    for way in CHOICES:
        # Equal halves that share nothing: their mean is that of all queries.
        whole = float(judged_metrics(ways[way].ranked, judged)["ndcg@10"].mean())
        assert (first.ndcg[way] + second.ndcg[way]) / 2 == pytest.approx(whole)
    assert first.encoded == second.encoded
    assert first.encoded["stay"] == 0
    assert first.encoded["reindex"] == 1


def test_a_verdict_sees_its_own_half_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    low = 0.2 + 0.05 * torch.rand(80, generator=draw)
    seen, unseen = torch.arange(40), torch.arange(40, 80)
    ndcg = dict.fromkeys([*CHOICES, "naive", "sidecar"], low)
    # Reindexing is better on the first half alone.
    ndcg = ndcg | {"reindex": torch.where(torch.arange(80) < 40, low + 0.3, low - 0.1)}
    made = _trial("c", ndcg, dict.fromkeys(CHOICES, 0.0), seen, unseen)
    assert made.chosen == "reindex"
    assert made.regret("reindex") == pytest.approx(0.1, abs=1e-6)
    assert not made.covers
    assert made.expected == "reindex"
    other = _trial("c", ndcg, dict.fromkeys(CHOICES, 0.0), unseen, seen)
    assert other.chosen == "stay"
    assert other.regret("stay") == pytest.approx(0.3, abs=1e-6)


def test_regret_is_what_the_best_way_has_more() -> None:
    assert trial("stay").regret("stay") == pytest.approx(0.2)
    assert trial("stay").regret("reindex") == 0


def test_the_table_counts_verdicts_that_were_made() -> None:
    trials = [
        trial("reindex"),
        trial("stay", "stay"),
        trial("stay", expected="reindex"),
        trial(None, covers=False),
    ]
    shown = table(trials).splitlines()[-1]
    counts, regrets = "3 of 4 | 3 of 4 | 1, 2, 0 | 2, 1, 0", "0.067, 0.000, 0.067, 0.133"
    assert f"{counts} | {regrets} | 33%, 67%, 100% |" in shown
    assert table([trial(None)]).splitlines()[-1].endswith("| – | – | – | – |")
