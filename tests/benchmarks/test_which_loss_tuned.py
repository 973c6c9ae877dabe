"""The searches that confirm a loss: what they vary, and what their table says."""

from __future__ import annotations

import pytest
from benchmarks.which_loss import DATA as CHOSEN_ON
from benchmarks.which_loss import OBJECTIVES
from benchmarks.which_loss_tuned import DATA, SEARCHES, Row, Tuned, table

from evergram.training.recipe import Recipe
from evergram.training.tuning.search_space import SearchSpace


def test_the_data_chose_nothing() -> None:
    assert not any(name.startswith(DATA) for name in CHOSEN_ON)
    assert set(SEARCHES) <= set(OBJECTIVES)


@pytest.mark.parametrize("objective", SEARCHES)
def test_both_ends_of_every_range_are_allowed(objective: str) -> None:
    search = SEARCHES[objective]
    data = {"data": {"kind": "synthetic"}, "split": {"kind": "random"}}
    recipe = Recipe.of(data, search.fixed)
    space = SearchSpace.parse(search.over).checked(recipe.model_dump())
    assert len(space.ranges) == len(search.over)


def test_table_orders_by_selection_and_subtracts_squared_by_split() -> None:
    rows = [
        Row("squared", 0.3, {"task.l2": 0.01234}, [0.1, 0.5]),
        Row("other", 0.4, {"task.temperature": "0.1"}, [0.2, 0.6]),
    ]
    lines = table(Tuned("d", 4, rows, [0.05, 0.05])).splitlines()
    assert lines[2].startswith("| other | temperature 0.1 | 0.4000 |")
    assert lines[2].endswith("| 0.1000 ± 0.0000 |")
    assert lines[3].startswith("| squared | l2 0.0123 | 0.3000 |")
    assert lines[3].endswith("| – |")
    assert "On d; 4 trials each." in lines[-1]
