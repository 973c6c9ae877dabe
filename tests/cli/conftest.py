"""Fixtures of every test of the command."""

from tests.support.click_shop import shop, vector_files
from tests.support.command import evergram
from tests.support.golden import trained_lineage
from tests.support.growing_shop import compare_recipe, growing_shop

__all__ = ["compare_recipe", "evergram", "growing_shop", "shop", "trained_lineage", "vector_files"]
