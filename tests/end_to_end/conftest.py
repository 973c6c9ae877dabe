"""Fixtures of every test of the command."""

from tests.support.click_shop import shop, vector_files
from tests.support.command import evergram
from tests.support.golden import trained_lineage
from tests.support.growing_shop import compare_recipe, growing_shop
from tests.support.published_vectors import imported_lineage, publisher_folder
from tests.support.serving_process import two_versions

__all__ = [
    "compare_recipe",
    "evergram",
    "growing_shop",
    "imported_lineage",
    "publisher_folder",
    "shop",
    "trained_lineage",
    "two_versions",
    "vector_files",
]
