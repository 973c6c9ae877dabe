"""What the table [training] says of a run."""

from __future__ import annotations

from typing import get_args

import pytest

from evergram.training.optimizers.build_optimizers import TABLE_OPTIMIZERS
from evergram.training.recipe.training import TrainingRecipe

OPTIMIZERS = get_args(TrainingRecipe.model_fields["optimizer"].annotation)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_has_no_optimiser_of_tables_sweeps(optimizer: str) -> None:
    recipe = TrainingRecipe.model_validate({"optimizer": optimizer})
    assert recipe.sweeps == (optimizer not in {*TABLE_OPTIMIZERS, "auto"})
