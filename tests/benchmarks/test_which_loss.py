"""The comparison of losses by data: what is drawn, what is kept, and what the tables say."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.defaults import NotKeptError, Runs
from benchmarks.which_loss import DATA, OBJECTIVES, _drawn, _row, table
from benchmarks.which_loss_report import Kind, Row, verdict

from evergram.data.corpus import Corpus
from evergram.training.recipe import Recipe

KIND = Kind(5, 1000, 60, 7, 0.25, 0.5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_draws_other_settings_each_time_and_the_same_again(objective: str) -> None:
    first, second = (list(_drawn(objective, OBJECTIVES[objective], 6)) for _ in range(2))
    assert first == second
    assert len({tuple(settings) for settings in first}) > 1
    for settings in first:
        Recipe.of({"data": {"kind": "synthetic"}, "split": {"kind": "random"}}, settings)


def test_kind_counts_pairs_by_query_and_by_candidate() -> None:
    # One candidate of two hundred has a half of all pairs, and it is the most popular hundredth
    # together with the next.
    query = [n % 50 for n in range(400)]
    candidate = [0] * 200 + list(range(200))
    draw = random.Random(0)
    order = draw.sample(range(400), 400)
    pairs = {"query": [query[n] for n in order], "candidate": [candidate[n] for n in order]}
    kind = Kind.of(Corpus.of(pa.table(pairs)))
    assert (kind.queries, kind.candidates, kind.pairs) == (50, 200, 400)
    assert kind.per_query == 8
    assert kind.top == pytest.approx((201 + 1) / 400)
    distinct = len(set(zip(query, candidate, strict=True)))
    assert kind.repeats == pytest.approx(1 - distinct / 400)
    assert kind.density == pytest.approx(distinct / (50 * 200))


def test_differences_are_paired_by_split() -> None:
    # Each loss alone varies by 0.4 from split to split; their difference does not vary.
    recalls = {"squared": [0.1, 0.5], "other": [0.3, 0.7]}
    shown = table([Row("d", KIND, recalls, 0.05)])
    assert "| minus squared | other |" in shown
    assert "| d | 0.2000 ± 0.0000 |" in shown
    assert "| d | 5 × 1,000 | 60 | 0.60% | 50% | 7 | 25% |" in shown
    assert "over 2 seeds" in shown


def test_the_default_stays_unless_a_loss_is_above_it_on_all_data() -> None:
    def row(data: str, gain: list[float]) -> Row:
        values = [0.5 + one for one in gain]
        return Row(data, KIND, {"squared": [0.5] * 3, "other": values}, 0.05)

    above, within, below = [0.1, 0.11, 0.12], [0.1, -0.1, 0.05], [-0.1, -0.11, -0.12]
    assert "On all data: other." in verdict([row("a", above), row("b", above)], ["other"])
    mixed = verdict([row("a", above), row("b", within), row("c", below)], ["other"])
    assert "Above squared by more than the interval: other (a)." in mixed
    assert "Below it by more than the interval: other (c)." in mixed
    assert "On all data: none, so the default stays." in mixed


def test_what_was_not_measured_is_a_dash_and_counts_for_nothing() -> None:
    rows = [
        Row("a", KIND, {"squared": [0.5] * 3, "other": [0.6, 0.61, 0.62]}, 0.05),
        Row("b", KIND, {"squared": [0.5] * 3}, 0.05),
    ]
    shown = table(rows)
    assert "| b | 0.5000 ± 0.0000 | – | 0.0500 |" in shown
    assert "| b | – |" in shown
    assert "On all data: none" in shown


def test_data_without_a_row_is_named() -> None:
    row = Row(DATA[0], KIND, {"squared": [0.5] * 3}, 0.05)
    assert table([row]).endswith(f"Data that was not measured: {'; '.join(DATA[1:])}.")


def test_nothing_is_trained_where_only_kept_results_are_wanted(tmp_path: Path) -> None:
    values = {
        "data": {"kind": "synthetic", "queries": 40, "candidates": 30, "interactions": 400},
        "split": {"kind": "random", "share": 0.2},
        "model": {"dim": 2},
    }
    short = ["training.epochs=1"]
    assert not _row("d", values, 1, range(2), tmp_path, short, trains=False).recalls
    made = _row("d", values, 1, range(2), tmp_path, short)
    assert set(made.recalls) == set(OBJECTIVES)
    assert _row("d", values, 1, range(2), tmp_path, short, trains=False) == made


def test_results_are_kept_by_what_the_data_is_not_by_where(tmp_path: Path) -> None:
    draw = random.Random(0)
    pairs = pa.table({n: [draw.randrange(30) for _ in range(300)] for n in ("query", "candidate")})

    def values(folder: str) -> dict[str, object]:
        (tmp_path / folder).mkdir()
        pq.write_table(pairs, tmp_path / folder / "pairs.parquet")
        data = {"kind": "table", "path": str(tmp_path / folder / "pairs.parquet")}
        return {"data": data, "split": {"kind": "random", "share": 0.2}, "model": {"dim": 2}}

    kept, settings = tmp_path / "kept.jsonl", ["training.epochs=1"]
    measured = Runs(values("here"), kept).select(settings, 0)
    assert Runs(values("there"), kept, trains=False).select(settings, 0) == measured
    with pytest.raises(NotKeptError):
        Runs(values("elsewhere"), kept, trains=False).select(["training.epochs=2"], 0)
