"""A lineage of texts, and both ways to it: its folder, and a service of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.pinned_lineages import pinned_lineage, pinned_service
from tests.support.text_encoders import ADDRESSES

from evergram.lineage.lineage import Lineage


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return pinned_lineage(tmp_path_factory.mktemp("pinned"))


@pytest.fixture(scope="module", params=["service", "lineage"])
def place(lineage: Lineage, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The options that say where texts are encoded."""
    if request.param == "lineage":
        yield {"lineage": str(lineage.path), "encoder": ADDRESSES[1]}
        return
    with pinned_service(lineage) as url:
        yield {"url": url}
