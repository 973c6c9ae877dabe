"""Past versions read without Evergram: by DuckDB, PostgreSQL and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.real_text_encoders import need

from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.formats import FORMATS, MATRIX_FILES, export_transform


def test_what_is_there_is_not_written_over(lineage: Lineage, tmp_path: Path) -> None:
    path = tmp_path / "way.sql"
    path.write_text("mine")
    with pytest.raises(DataError, match="is there already"):
        export_transform(lineage, path, "duckdb")
    assert path.read_text() == "mine"
    export_transform(lineage, path, "duckdb", overwrite=True)
    assert "MACRO" in path.read_text()
    with pytest.raises(DataError, match="make the folder first"):
        export_transform(lineage, tmp_path / "none" / "way.sql", "duckdb")
    with pytest.raises(DataError, match="onnx, pgvector, duckdb, sentence-transformers"):
        export_transform(lineage, tmp_path / "way", "tensorflow")
    assert set(FORMATS) - {"sentence-transformers", "onnx"} == set(MATRIX_FILES)


def test_a_version_without_an_encoder_makes_no_folder(lineage: Lineage, tmp_path: Path) -> None:
    need("sentence_transformers")
    with pytest.raises(DataError, match="records no encoder of text"):
        export_transform(lineage, tmp_path / "model", "sentence-transformers", 0)
    assert not (tmp_path / "model").exists()


def test_no_version_of_that_number(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(LineageError):
        export_transform(lineage, tmp_path / "way.sql", "duckdb", 7)
