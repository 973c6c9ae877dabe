"""Fixtures that tests of several rooms use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings
from tests.support.tiny_training import small_recipe

from benchmarks import DATA
from evergram.training.recipe import Recipe

if TYPE_CHECKING:
    from tests.support.running_service import Running

# Without compiled modules on disk, each worker and each command it starts would compile them again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A machine may be slow at times, and no test is of time.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")


@pytest.fixture
def real_data() -> Path:
    """Return the folder of real data that benchmarks use; skip the test if there is none."""
    if not DATA.is_dir():
        pytest.skip(f"real data is not at {DATA}; docs/data-sets.md says how to download it")
    return DATA


@pytest.fixture
def small() -> Recipe:
    return small_recipe()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    """Run a service over three versions, of dims 6, 8 and 10, whose store holds the newest."""
    from tests.support.running_service import running

    with running(tmp_path / "line") as service:
        yield service
