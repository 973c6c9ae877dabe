"""Ids that differ in their Unicode normal form alone are never taken for different objects."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tests.support.command import Command
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus
from evergram.data.prepared.prepare import PrepareSettings, prepare
from evergram.errors import DataError
from evergram.evaluation.judged import JudgedQueries
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.vector_files.open_embeddings import write_vectors

ROWS, DIM = 200, 6
COMPOSED = [unicodedata.normalize("NFC", f"müsli {i}") for i in range(ROWS)]
APART = [unicodedata.normalize("NFD", name) for name in COMPOSED]
# The first half is written alike.
HALF = COMPOSED[: ROWS // 2] + APART[ROWS // 2 :]
VECTORS = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, ids in {"nfc": COMPOSED, "nfd": APART, "half": HALF}.items():
        write_vectors(Path(f"{name}.parquet"), [(pa.array(ids), VECTORS)])
    return tmp_path


@pytest.mark.parametrize("new", ["nfd", "half"])
def test_files_of_vectors_are_refused(new: str, files: Path, evergram: Command) -> None:
    queries = ("--old-queries", "nfc.parquet", "--new-queries", "nfc.parquet")
    doors = [
        ("vectors", "align", "nfc.parquet", f"{new}.parquet", "--lineage", "l"),
        ("vectors", "plan-migration", "nfc.parquet", f"{new}.parquet", *queries),
    ]
    for door in doors:
        count = ROWS if new == "nfd" else ROWS // 2
        assert f"{count} ids of nfc.parquet" in evergram.refused(*door)
    assert not (files / "l").exists()
    assert evergram("vectors", "import", "nfc.parquet", "--lineage", "l").code == 0
    assert "normal form" in evergram.refused(
        "vectors", "align", 0, f"{new}.parquet", "--lineage", "l"
    )


def test_a_probe_and_an_artefact_made_by_hand_are_refused(files: Path, evergram: Command) -> None:
    assert evergram("vectors", "import", "nfc.parquet", "--lineage", "l").code == 0
    save_file({"weight": torch.ones(1, DIM)}, "m.safetensors")
    pq.write_table(pa.table({"id": APART, "label": [i % 2 for i in range(ROWS)]}), "d.parquet")
    probe = ("--probe", "m.safetensors", "--data", "d.parquet")
    assert f"{ROWS} ids of the evaluation file" in evergram.refused(
        "consumer", "add", "l", "ads", "--pin", "v0", *probe
    )
    same = LinearTransform.from_matrix(torch.eye(DIM))
    with pytest.raises(DataError, match="normal form"):
        publish_next(
            Lineage.open("l"),
            Artefact(DIM, {"object": (pa.array(HALF), VECTORS)}, same, {"metrics": {}}, {}),
        )
    assert Lineage.open("l").newest == 0


def test_features_and_judgements_are_refused(tmp_path: Path) -> None:
    pairs = pa.table({"query": range(ROWS), "candidate": COMPOSED})
    features = pa.table({"id": HALF, "colour": ["red"] * ROWS})
    with pytest.raises(DataError, match="normal form"):
        Corpus.of(pairs, candidate_features=features)
    for name, table in {"pairs": pairs, "features": features}.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    settings = PrepareSettings(candidate_features=tmp_path / "features.parquet")
    with pytest.raises(DataError, match=f"{ROWS // 2} ids of candidate features.*normal form"):
        prepare(tmp_path / "pairs.parquet", tmp_path / "prepared", settings)
    with pytest.raises(DataError, match="normal form"):
        JudgedQueries.of({"q": {APART[0]: 1, COMPOSED[1]: 1}}, ["q"], COMPOSED)
