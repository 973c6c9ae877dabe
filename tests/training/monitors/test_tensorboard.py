"""A training's files for TensorBoard, as TensorBoard reads them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from evergram.errors import TrainingError
from evergram.releasing.upgrade import train
from evergram.training.monitors.gramian_tracking import OWN
from evergram.training.monitors.tensorboard import TensorBoard
from evergram.training.recipe import Recipe


@pytest.mark.long
def test_tensorboard_shows_metrics_errors_and_scores(small: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = Recipe.of(small.model_dump(), ["training.epochs=6", "training.batch_size=32"])
    train(recipe, board=tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board" / "version-0"))
    events.Reload()
    tags = events.Tags()
    assert {"objective", "recall@20", f"Gramian error/{OWN}"} <= set(tags["scalars"])
    assert tags["images"] == ["scores"]
    assert len(events.Scalars("recall@20")) == 6


def test_without_tensorboard_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(TrainingError, match=r"pip install 'evergram\[tensorboard\]'"):
        TensorBoard(tmp_path, (torch.arange(2), torch.arange(2)))
    assert list(tmp_path.iterdir()) == []
