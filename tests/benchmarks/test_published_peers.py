"""A peer's search that was interrupted goes on with the fits that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from benchmarks.published_peers import Tuned, tune
from benchmarks.published_splits import Kept
from tests.support.optional import need

from benchmarks import published_peers
from evergram.data.split import Split

need("optuna")

RANGES = {"alpha": (1.0, 200.0, "log"), "iterations": (2.0, 32.0, "whole")}


def test_a_search_that_was_interrupted_fits_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Judged:
        selection = None

    monkeypatch.setattr(published_peers, "judge", lambda result, *_: {"recall@20": result})
    fits: list[float] = []
    left = [3]

    def fit(split: Any, *, factors: int, alpha: float, iterations: int) -> float:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        fits.append(alpha)
        return -((alpha - 20) ** 2) - iterations

    peer, split = Tuned(cast("Any", fit), RANGES), cast("Split", Judged())
    kept = Kept(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        tune(peer, split, 8, kept.get, 6)
    left[0] = 100
    resumed = tune(peer, split, 8, kept.get, 6)
    assert len(fits) == 6
    fits.clear()
    assert tune(peer, split, 8, Kept(tmp_path / "anew").get, 6) == resumed
    assert len(fits) == 6
