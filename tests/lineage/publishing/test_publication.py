"""A version is published whole or not at all, and only if it can be read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.artefacts import artefact
from tests.support.exact_versions import SIDE, exact_lineage, exact_version
from tests.support.lineages import lineage_of

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import (
    DataError,
    LineageError,
    ShapeError,
)
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 and 1."""
    return exact_lineage(tmp_path / "lineage")


def test_what_is_not_finite_is_not_published(lineage: Lineage) -> None:
    broken = exact_version(2, 1)
    broken.block(SIDE)[1][3, 0] = float("nan")
    with pytest.raises(DataError, match=r"object embedding of id 'id3' has a NaN"):
        lineage.publish(broken)
    wide = exact_version(2, 1)
    ids, vectors = wide.block(SIDE)
    # A number, but none that can be written as float32.
    wide = replace(wide, embeddings={SIDE: (ids, vectors.double() * 1e300)})
    with pytest.raises(DataError, match=r"object embedding of id 'id0' has a NaN or an inf"):
        lineage.publish(wide)
    assert Lineage.open(lineage.path).newest == 1
    assert lineage.publish(exact_version(2, 1)) == 2


def test_a_damaged_predecessor_costs_the_map_forward_alone(lineage: Lineage) -> None:
    path = lineage.stored(SIDE)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    lineage.publish(exact_version(2, 1))
    assert lineage.forward(1, 2) is None
    assert lineage.forward(0, 1) is not None


def test_a_side_that_is_no_name_is_not_published(lineage: Lineage) -> None:
    vectors = lineage.embeddings("object")
    back = lineage.chain.transforms[0]
    wide = Artefact(10, {"../x": vectors}, back, {"metrics": {"model": {}}}, {})
    with pytest.raises(LineageError, match="cannot be the name of a side"):
        lineage.publish(wide)


@pytest.mark.parametrize(
    "metrics",
    [{"metrics": []}, {"metrics": {"model": {"a": "x"}}}, {"probes": [1]}, {"probes": {}}],
)
def test_metrics_that_could_not_be_read_are_not_published(
    lineage: Lineage, metrics: dict[str, Any]
) -> None:
    vectors = lineage.embeddings("object")
    artefact = Artefact(
        8, {"object": vectors}, LinearTransform.from_matrix(torch.eye(8)), metrics, {}
    )
    with pytest.raises(DataError, match="nothing was published"):
        lineage.publish(artefact)
    assert Lineage.open(lineage.path).newest == 1


def test_ids_of_another_type_are_refused_before_training(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "numbers", versions=1)
    lineage.check_ids({"object": pa.array(["7"]), "another": pa.array(["x"])})
    with pytest.raises(DataError, match=r"The object ids in .* are integers"):
        lineage.check_ids({"object": pa.array(["x"])})


def test_a_version_takes_a_transform_from_its_own_dim_to_the_one_before(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "new")
    with pytest.raises(ShapeError, match="Version 0 has no version before it and takes no"):
        lineage.publish(artefact(3, 2))
    assert not lineage.path.exists()
