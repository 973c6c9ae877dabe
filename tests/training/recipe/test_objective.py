"""The tables [model], [task] and [gramian]: entries by version, and lists that must agree."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from evergram.gramian.kinds import ESTIMATORS
from evergram.training.recipe import GramianRecipe, ModelRecipe, TaskRecipe


def test_a_list_has_an_entry_a_version_and_its_last_holds_for_all_later() -> None:
    model = ModelRecipe.of({"dim": [4, 8]})
    assert [model.dim_of(version) for version in range(4)] == [4, 8, 8, 8]
    assert ModelRecipe.of({"dim": 16}).dim == [16]


def test_a_model_as_of_a_version_is_that_one_at_every_version() -> None:
    """Every list of one entry a version is cut, and nothing else."""
    model = ModelRecipe.of({"kind": "graphsage", "dim": [4, 8], "scale": 0.3, "layers": [1, 2]})
    first = model.as_of(0)
    assert [first.dim_of(version) for version in (0, 5)] == [4, 4]
    assert first.chosen.options(5)["layers"] == model.chosen.options(0)["layers"] == 1
    assert (first.kind, first.scale) == ("graphsage", 0.3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"penalty": [1.0, 2.0]}, "must be as long as one another, one entry a measure"),
        ({"penalty": [1.0], "query_measure": [0.0, 1.0]}, "must be as long as one another"),
        ({"query_measure": [0.0, 1.0], "candidate_measure": [0.0, 1.0]}, "is one λ for one"),
        ({"candidate_measure": float("inf")}, r"task\.candidate_measure is inf; a power must be 0"),
        ({"query_measure": float("nan")}, r"task\.query_measure is nan; a power must be 0 to 16"),
    ],
)
def test_measures_and_strengths_that_do_not_agree_are_refused(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TaskRecipe.of(values)


def test_pairs_are_drawn_as_the_task_wants_unless_the_recipe_chooses() -> None:
    assert TaskRecipe.of({}).drawn == TaskRecipe.of({}).chosen.draws
    assert TaskRecipe.of({"positives": "queries"}).drawn == "queries"
    assert TaskRecipe.of({"positives": "examples"}).drawn == "examples"


def test_a_kinds_own_settings_are_those_of_its_table() -> None:
    assert GramianRecipe.of({"rate": 0.2}).chosen.model_dump()["rate"] == 0.2
    with pytest.raises(ValidationError, match="batch_size"):
        GramianRecipe.of({"batch_size": 0})


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_adaptive_sampling_is_for_estimators_that_need_no_look_ahead(kind: str) -> None:
    values = {"kind": kind, "batch": "independent", "sampler": "adaptive"}
    if not ESTIMATORS[kind].wants_before:
        assert GramianRecipe.of(values).sampler == "adaptive"
        return
    with pytest.raises(ValidationError, match=f"gramian.kind = '{kind}' must know the entities"):
        GramianRecipe.of(values)
