"""When a checkpoint is due, by the options of a command."""

from __future__ import annotations

from typing import Any

import pytest

from evergram.errors import RecipeError
from evergram.training.checkpoints.settings import PATIENCE, SECONDS, CheckpointSettings


@pytest.mark.parametrize(
    ("every", "seconds", "steps"),
    [
        ("60s", 60.0, None),
        ("0.5m", 30.0, None),
        (" 2h ", 7200.0, None),
        ("1000", None, 1000),
        (None, None, None),
    ],
)
def test_a_time_or_a_number_of_steps_is_read(
    every: str | None, seconds: float | None, steps: int | None
) -> None:
    settings = CheckpointSettings.of(every, 3, "never")
    assert settings == CheckpointSettings(seconds, steps, 3, "never")


@pytest.mark.parametrize("every", ["", "0", "-1", "1.5", "60 s", "60d", "nans", "1e9s", "s"])
def test_anything_else_is_refused_with_what_is_allowed(every: str) -> None:
    with pytest.raises(RecipeError, match="give a time such as 60s, 5m or 1h, or a number of st"):
        CheckpointSettings.of(every)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"keep": 0}, "--keep-checkpoints 0 keeps none; it must be 1 or more"),
        ({"resume": "always"}, "--resume always is not known; it must be auto or never"),
        ({"seconds": 1.0, "steps": 1}, "choose one of them"),
        ({"seconds": float("nan")}, "nan is not understood"),
        ({"steps": 0}, "0 is not understood"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        CheckpointSettings(**values)


def test_by_itself_writing_takes_a_small_share_of_the_time() -> None:
    settings = CheckpointSettings()
    assert not settings.due(SECONDS - 1, 10**9, 0.0)
    assert settings.due(SECONDS, 0, 0.0)
    assert not settings.due(SECONDS, 0, 10.0)
    assert settings.due(10.0 * PATIENCE, 0, 10.0)
    # What is asked for is done, whatever it costs.
    assert CheckpointSettings(seconds=5).due(5, 0, 100.0)
    assert CheckpointSettings(steps=7).due(0.0, 7, 100.0)
    assert not CheckpointSettings(steps=7).due(1e9, 6, 0.0)
