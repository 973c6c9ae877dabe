"""The encoder of text of a file becomes that of the version that is made from it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.text_encoders import ADDRESSES, encoded, text_lineage

from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.first_version import text_encoder_of
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.provenance import TEXT_ENCODER
from evergram.vector_files.writers import write_vectors


def plain(path: Path, provenance: dict[str, str] | None = None) -> Path:
    ids = pa.array([f"text-{i}" for i in range(400)])
    draw = torch.Generator().manual_seed(0)
    write_vectors(path, [(ids, torch.randn(400, 12, generator=draw))], provenance)
    return path


def test_each_version_records_its_encoder_in_its_manifest(tmp_path: Path) -> None:
    text_lineage(tmp_path)
    lineage = Lineage.open(tmp_path / "line")
    records = [manifest.text_encoder for manifest in lineage.versions]
    assert [record and (record.address, record.dim) for record in records] == [
        (ADDRESSES[0], 10),
        (ADDRESSES[1], 12),
    ]
    lineage.check()


def test_a_file_of_no_known_encoder_does_not_follow_one_of_a_known(tmp_path: Path) -> None:
    old = encoded(tmp_path, ADDRESSES[0])
    new = open_embeddings(plain(tmp_path / "plain.parquet"))
    lineage = Lineage.create(tmp_path / "line", "line")
    with pytest.raises(LineageError, match="Make the file by 'evergram vectors encode'"):
        align(old, new, lineage)
    align(new, old, lineage, max_error=float("inf"))
    assert [m.text_encoder is None for m in lineage.versions] == [True, False]
    # A version of no known encoder is written as it ever was.
    assert "text_encoder" not in (lineage.path / "versions/0/manifest.json").read_text()
    with pytest.raises(LineageError, match="strings could not be encoded"):
        align(1, open_embeddings(plain(tmp_path / "again.parquet")), lineage)


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    damaged = plain(tmp_path / "v.parquet", {TEXT_ENCODER: '{"address": "x"}'})
    with pytest.raises(DataError, match=r"v\.parquet is damaged"):
        text_encoder_of(open_embeddings(damaged))
