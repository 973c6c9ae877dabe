"""Fixtures of every test of the command."""

from tests.support.click_shop import growing_shop, shop, vector_files
from tests.support.command import evergram
from tests.support.lineages import trained_lineage

__all__ = ["evergram", "growing_shop", "shop", "trained_lineage", "vector_files"]
