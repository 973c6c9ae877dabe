"""Consumers are added, moved, removed, and known by their tokens."""

from __future__ import annotations

import pytest

from evergram.errors import LineageError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage


def test_consumers_that_differ_in_capitals_alone_are_refused(lineage: Lineage) -> None:
    """Where a disk does not tell them apart, one would remove the other's probe."""
    record = ConsumerRegistry.open(lineage.path)
    record.add("Ads", "v0", lineage.resolve)
    with pytest.raises(LineageError, match="There is a consumer 'Ads' already"):
        record.add("ads", "v1", lineage.resolve)
