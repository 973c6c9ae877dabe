"""A consumer written before three upgrades runs unchanged against the service after each."""

from __future__ import annotations

import pytest

from benchmarks import pinned

GROWING = (
    'split.kind="time"',
    "split.versions=[0.5, 0.6, 0.7, 0.8]",
    "model.dim=[32, 40, 48, 56]",
)


def holds(rows: list[dict[str, float]], least: float) -> None:
    assert [row["version"] for row in rows] == [0, 1, 2, 3]
    first = rows[0]["consumer"]
    assert first > least
    for row in rows[1:]:
        assert row["consumer"] > first - 0.08
        assert row["consumer"] > row["raw"]


@pytest.mark.long
def test_on_synthetic_data() -> None:
    settings = (*GROWING, "training.epochs=8", "upgrade.alone=false")
    holds(pinned.measure("recipes/synthetic.toml", settings), 0.6)
