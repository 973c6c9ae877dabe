"""Thresholds before and after: counts by hand, and what the table says of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.upgraded_scores import METHODS, RANKINGS, SHARES, Cell, above, of_pair, table

from benchmarks import migrations
from evergram.releasing.migration.migration_vectors import MigrationVectors


def test_pairs_above_the_threshold_are_counted() -> None:
    then = np.arange(100.0)
    # The threshold lies at the ten largest, 90 to 99; the map lets 85 to 94 pass.
    mapped = np.where((then >= 85) & (then < 95), 200.0, 0.0)
    ratio, precision, recall = above(mapped, then, 0.1)
    assert (ratio, precision, recall) == pytest.approx((1.0, 0.5, 0.5))
    assert above(np.zeros(100), then, 0.1) == pytest.approx((0.0, 0.1, 0.0))
    assert above(then, then, 0.1) == pytest.approx((1.0, 1.0, 1.0))


def test_a_pair_of_models_has_all_methods_and_calibration_restores_the_count() -> None:
    cell = of_pair(migrations.made_up()[0])
    assert {key[1:] for key in cell.thresholds} == {(s, m) for s in SHARES for m in METHODS}
    raw = cell.thresholds["two texts", 0.01, "raw, cosine"][0]
    calibrated = cell.thresholds["two texts", 0.01, "matched quantiles"][0]
    assert abs(np.log(calibrated)) < abs(np.log(raw))
    assert 0 < cell.lengths < 1
    assert set(cell.kept) == set(RANKINGS)


def test_a_way_back_without_error_keeps_all_hits_by_both_rankings() -> None:
    pair, _ = migrations.made_up()
    new, new_queries = (
        part @ torch.linalg.qr(pair.old.T @ pair.old)[0] for part in (pair.old, pair.old_queries)
    )
    turned = MigrationVectors(
        pair.texts, pair.queries, pair.old, new, pair.old_queries, new_queries
    )
    cell = of_pair(turned)
    assert cell.lengths == pytest.approx(1, abs=1e-3)
    for read_back, own in cell.kept.values():
        assert read_back == pytest.approx(1, abs=0.01)
        assert own == pytest.approx(1, abs=0.01)


def test_the_table_has_medians() -> None:
    cells = [
        Cell(
            {("two texts", 0.01, "raw, cosine"): (x, 0.5, 0.25)},
            {"text": x, "hit": 0.0, "auc": 0.5},
            0.9,
            {"cosine": (x / 4, 0.5)},
        )
        for x in (1.0, 2.0, 3.0)
    ]
    shown = table(cells)
    assert "| by cosine | 0.50 (0.30–0.70) | 0.50 (0.50–0.50) |" in shown
    start = "| two texts | 1.0% | raw, cosine | 2.00 (1.20–2.80) "
    assert start + "| 0.50 (0.50–0.50) | 0.25 (0.25–0.25) |" in shown
    assert "3 migrations" in shown
