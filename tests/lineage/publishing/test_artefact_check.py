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
from evergram.compatibility.transforms import LinearTransform
from evergram.errors import EvergramError
from evergram.lineage.lineage import Lineage


def _twice(ids: pa.Array, z: torch.Tensor) -> Iterator[tuple[pa.Array, torch.Tensor]]:
    yield ids, z
    yield ids[:1], z[:1]


OLD_DIM = exact_version(1, 1).dim


class Inherited(LinearTransform):
    """A class of one's own that would be read back as its parent."""


def _broken() -> LinearTransform:
    transform = LinearTransform(OLD_DIM, exact_version(2, 1).dim)
    with torch.no_grad():
        transform.weight[0, 0] = float("nan")
    return transform


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
        lambda ids, z: {"error": StepError(-torch.eye(OLD_DIM), 60, 1.0)},
        lambda ids, z: {"error": StepError(torch.zeros(OLD_DIM, OLD_DIM), 0, float("nan"))},
        lambda ids, z: {"error": StepError(torch.eye(OLD_DIM), 60, float("inf"))},
        lambda ids, z: {"error": StepError(torch.eye(OLD_DIM), 1e9, 1.0)},  # type: ignore[arg-type]
        lambda ids, z: {"canaries": {SIDE: None}},
        lambda ids, z: {"canaries": {SIDE: (5, z[:1])}},
        lambda ids, z: {"dim": 0},
        lambda ids, z: {"transform": _broken()},
        lambda ids, z: {"transform": Inherited(OLD_DIM, z.shape[1])},
        lambda ids, z: {"encoder": object()},
        lambda ids, z: {"embeddings": {SIDE: None}},
        lambda ids, z: {"embeddings": {"other": (ids, z)}, "canaries": {}},
        lambda ids, z: {"canaries": {"other": (ids[:5], z[:5])}},
        lambda ids, z: {"canaries": {SIDE: (ids[:5], z[:5] * float("nan"))}},
        lambda ids, z: {"canaries": {SIDE: (ids[:5], -z[:5])}},
        lambda ids, z: {"canaries": {SIDE: (["a", "a"], z[:2])}},
        lambda ids, z: {"canaries": {SIDE: (["nobody"], z[:1])}},
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


def test_canaries_may_be_lists_and_numpy_arrays(tmp_path: Path) -> None:
    lineage = exact_lineage(tmp_path / "lineage")
    version = exact_version(2, 1)
    ids, z = version.block(SIDE)
    canaries: Any = {SIDE: (ids[:3].to_pylist(), z[:3].numpy())}
    publish_next(lineage, replace(version, canaries=canaries))
    Lineage.open(lineage.path).check()
