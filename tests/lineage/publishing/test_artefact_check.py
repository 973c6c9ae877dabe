"""An artefact that does not fit is refused before the lineage changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.exact_versions import SIDE, exact_lineage, exact_version
from tests.support.publishing import publish_next

from evergram.compatibility.certificate import StepError
from evergram.errors import EvergramError
from evergram.lineage.lineage import Lineage


def _twice(ids: pa.Array, z: torch.Tensor) -> Iterator[tuple[pa.Array, torch.Tensor]]:
    yield ids, z
    yield ids[:1], z[:1]


@pytest.mark.parametrize(
    "change",
    [
        lambda ids, z: {"embeddings": {}},
        lambda ids, z: {"embeddings": {SIDE: (ids, z[:, :2])}},
        lambda ids, z: {"embeddings": {SIDE: lambda: _twice(ids, z)}},
        lambda ids, z: {"embeddings": {SIDE: lambda: iter(())}},
        lambda ids, z: {"canaries": {SIDE: (ids[:5], z[:5, :2])}},
        lambda ids, z: {"recipe": {"object": object()}},
        lambda ids, z: {"metrics": {"metrics": {"model": {}}, "x": {1, 2}}},
        lambda ids, z: {"transform": object()},
        lambda ids, z: {"error": StepError(torch.eye(2), 60, 1.0)},
        lambda ids, z: {"dim": 0},
    ],
)
def test_a_lineage_stays_as_it_was_where_an_artefact_does_not_fit(
    tmp_path: Path, change: Callable[[pa.Array, torch.Tensor], dict[str, Any]]
) -> None:
    lineage = exact_lineage(tmp_path / "lineage")
    before = {p: p.read_bytes() for p in lineage.path.rglob("*") if p.is_file()}
    version = exact_version(2, 1)
    with pytest.raises(EvergramError):
        publish_next(lineage, replace(version, **change(*version.block(SIDE))))
    after = {p: p.read_bytes() for p in lineage.path.rglob("*") if p.is_file()}
    assert {p for p in after if "lock" not in p.name} == {p for p in before if "lock" not in p.name}
    assert all(after[p] == content for p, content in before.items())
    assert publish_next(Lineage.open(lineage.path), version) == 2
    Lineage.open(lineage.path).check()
