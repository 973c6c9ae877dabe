"""The way as a matrix: its name in SQL, and ways that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.lineages import DIMS, read_as, vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import ResidualMLPTransform, Transform
from evergram.errors import DataError, ShapeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.affine_map import LONGEST_NAME, affine_map
from evergram.retrieval.portable.formats import export_transform


def test_the_map_is_the_chain_step_by_step(lineage: Lineage) -> None:
    way = affine_map(lineage.view(0), "line")
    assert (way.source_dim, way.dim) == (DIMS[2], DIMS[0])
    read = vectors_of(2).numpy() @ way.weight.T + way.offset
    np.testing.assert_allclose(read, read_as(2, 0).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["", "1st", "Upper", "a b", "a;drop table x", "a" * 51])
def test_names_that_sql_would_not_take_as_they_are_are_refused(
    lineage: Lineage, tmp_path: Path, name: str
) -> None:
    with pytest.raises(DataError, match="cannot be that of a function in SQL"):
        export_transform(lineage, tmp_path / "way.sql", "pgvector", 0, name=name)
    assert not (tmp_path / "way.sql").exists()


def test_default_names_are_of_sql_whatever_the_lineage_is_called(lineage: Lineage) -> None:
    view = lineage.view(0)
    assert affine_map(view, "line").name == "evergram_line_as_v0"
    assert affine_map(view, "Ünïcode shop; v2").name == "evergram_n_code_shop_v2_56bd18_as_v0"
    assert len(affine_map(view, "x" * 300).name) == LONGEST_NAME
    assert affine_map(view, "____").name == "evergram______as_v0"
    assert affine_map(view, "é").name == "evergram_4a9955_as_v0"


def test_default_names_differ_where_lineages_names_do(lineage: Lineage) -> None:
    names = ["shop-eu", "shop.eu", "shop_eu", "Shop_eu", "x" * 299, "x" * 300, "é", "è"]
    assert len({affine_map(lineage.view(0), name).name for name in names}) == len(names)


def test_a_way_that_is_no_matrix_is_refused(lineage: Lineage, tmp_path: Path) -> None:
    back: Transform = ResidualMLPTransform(DIMS[2], DIMS[2], hidden=4)
    vectors = {"object": (lineage.embeddings("object")[0], torch.randn(300, DIMS[2]))}
    publish_next(lineage, Artefact(DIMS[2], vectors, back, {"metrics": {"model": {}}}, {}))
    with pytest.raises(ShapeError, match="not affine"):
        export_transform(lineage, tmp_path / "way.sql", "duckdb", 0)
    assert not (tmp_path / "way.sql").exists()
