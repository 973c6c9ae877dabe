"""Fixtures of every test of the command."""

from tests.support.click_shop import (
    growing_shop,
    imported_lineage,
    shop,
    vector_files,
)
from tests.support.command import evergram
from tests.support.lineages import trained_lineage
from tests.support.serving_process import two_versions

__all__ = [
    "evergram",
    "growing_shop",
    "imported_lineage",
    "shop",
    "trained_lineage",
    "two_versions",
    "vector_files",
]
