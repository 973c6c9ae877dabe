"""An encoder in a folder of its own: whole, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.encoders import lineage_with_encoder

from evergram.data.corpus import Vocabulary
from evergram.errors import DataError, FormatError, IntegrityError
from evergram.lineage.disk.manifest import EncoderRecord, sha256
from evergram.lineage.lineage import Lineage
from evergram.retrieval.pretrained.encoder_folder import (
    EncoderFacts,
    EncoderFolder,
    read_encoder_folder,
    write_encoder_folder,
)
from evergram.retrieval.pretrained.pretrained_encoder import PretrainedEncoder


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_with_encoder(tmp_path / "films")


@pytest.fixture
def encoder(lineage: Lineage) -> PretrainedEncoder:
    return lineage.encoder()


def test_a_damaged_folder_is_refused(encoder: PretrainedEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        PretrainedEncoder.from_pretrained(folder)
    encoder.save_pretrained(folder)
    for name in ("model.safetensors", "vocabularies.json", "metrics.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(IntegrityError, match=name):
            PretrainedEncoder.from_pretrained(folder)
        (folder / name).write_bytes(content)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format_version": 2}))
    with pytest.raises(FormatError, match="upgrade Evergram"):
        PretrainedEncoder.from_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**config, "files": {}}))
    with pytest.raises(IntegrityError, match="does not list"):
        PretrainedEncoder.from_pretrained(folder)
    for text in ("{", "[]", json.dumps({**config, "encoder": {"kind": "unheard of"}})):
        (folder / "config.json").write_text(text)
        with pytest.raises(IntegrityError, match=r"config\.json is damaged"):
            PretrainedEncoder.from_pretrained(folder)


RECORD = EncoderRecord(
    kind="factorization",
    options={"dim": 2},
    inputs={"query": {"id": "query.id"}},
    vocabularies={"query.id": "int64"},
)
FACTS = EncoderFacts(name="shop@v3", version=3, fingerprint="sha256:a", dim=2, created="today")


def write(folder: Path, *, overwrite: bool = False) -> None:
    encoder = EncoderFolder(
        RECORD,
        FACTS,
        {"recall": float("nan")},
        {"query.weight": torch.eye(2)},
        {"query.id": Vocabulary(pa.array([7, 5]))},
    )
    write_encoder_folder(folder, encoder, "# shop ü", overwrite=overwrite)


def test_every_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "saved")
    saved = read_encoder_folder(tmp_path / "saved")
    assert (saved.record, saved.facts, saved.metrics) == (RECORD, FACTS, {"recall": None})
    assert torch.equal(saved.state["query.weight"], torch.eye(2))
    assert saved.vocabularies["query.id"].keys.equals(pa.array([7, 5]))
    assert (tmp_path / "saved" / "README.md").read_text(encoding="utf-8") == "# shop ü"


def test_only_a_folder_of_an_encoder_is_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    write(folder)
    with pytest.raises(DataError, match="is there already and is not written over"):
        write(folder)
    (folder / "left.txt").write_text("of an earlier one")
    write(folder, overwrite=True)
    assert not (folder / "left.txt").exists()
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match="holds no encoder, so it is not replaced"):
        write(folder, overwrite=True)


def test_keys_of_another_type_than_recorded_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    write(folder)
    (folder / "vocabularies.json").write_text('{"query.id": ["x"]}')
    config = json.loads((folder / "config.json").read_text())
    config["files"]["vocabularies.json"] = sha256(folder / "vocabularies.json")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(IntegrityError, match="does not hold the encoder's vocabularies"):
        read_encoder_folder(folder)
