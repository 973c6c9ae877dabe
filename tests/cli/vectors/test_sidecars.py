"""`evergram vectors sidecar`: the file, what is said of it, and refusals."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tests.support.command import Command
from tests.support.embedding_files import file_of, id_names, randn

from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings

ROWS = 1200


@pytest.fixture
def folder(tmp_path: Path, evergram: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files of vectors, and the lineage `line` of both."""
    monkeypatch.chdir(tmp_path)
    meaning = randn(0, ROWS, 4)
    for name, seed, dim in (("old", 1, 6), ("new", 2, 8)):
        vectors = meaning @ randn(seed, 4, dim) + 0.5 * randn(seed + 5, ROWS, dim)
        file_of(tmp_path / f"{name}.parquet", vectors)
    aligned = evergram("vectors", "align", "old.parquet", "new.parquet", "--lineage", "line")
    assert aligned.code == 0, aligned.err
    return tmp_path


def test_it_writes_a_file_that_readers_and_the_service_use(folder: Path, evergram: Command) -> None:
    command = ("vectors", "sidecar", "line", "v1.safetensors", "--old", "old.parquet")
    facts = evergram.json(*command, "--error", "0.1")
    assert (facts["version"], facts["side"], facts["objects"]) == (1, "object", ROWS)
    assert facts["error"] <= 0.1 < facts["way_back_error"]
    assert (facts["target"], facts["without_codes"]) == (0, 0)
    assert 0 <= facts["worse"] < 0.05
    assert facts["share_of_old_bytes"] == facts["bytes"] / 24
    # The same bytes, when they are asked for.
    told = evergram(*command, "--bytes", facts["bytes"], "--force")
    assert f"{facts['bytes']} bytes each" in told.out
    assert f"a relative error of {facts['error']:.3f}" in told.out
    old = randn(0, ROWS, 4) @ randn(1, 4, 6) + 0.5 * randn(6, ROWS, 6)
    with closing(Reader.open("line", sidecars=["v1.safetensors"])) as reader:
        read = reader.embed(id_names(ROWS), 0).vectors
    assert np.linalg.norm(read - old.numpy()) <= 0.1 * np.linalg.norm(old.numpy())
    settings = ServiceSettings(sidecars=("v1.safetensors",), allowed_hosts=("testserver",))
    service = Service.open("line", sidecars=settings.sidecars)
    with TestClient(create_app(service, settings)) as client:
        body = {"model": "embeddings@v0", "input": ["id3", "id1"]}
        answer = client.post("/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        data = answer.json()["data"]
        np.testing.assert_allclose([d["embedding"] for d in data], read[[3, 1]], rtol=1e-5)
        query = {"version": 0, "vector": old[7].tolist(), "k": 3, "metric": "l2"}
        answer = client.post("/v1/search", json=query).json()
        assert answer["data"][0]["hits"][0]["id"] == "id7"


def test_a_service_goes_on_when_the_version_is_withdrawn(folder: Path, evergram: Command) -> None:
    more = file_of(folder / "more.parquet", randn(0, ROWS, 4) @ randn(3, 4, 6) + randn(9, ROWS, 6))
    align = ("vectors", "align", "1", more.path, "--lineage", "line", "--no-promote")
    assert evergram(*align).code == 0
    made = evergram("vectors", "sidecar", "line", "v2.safetensors", "--bytes", "4")
    assert "Read as version 1, version 2 has" in made.out
    service = Service.open("line", sidecars=["v2.safetensors"])
    assert evergram("lineage", "withdraw", "line", "--reason", "wrong").code == 0
    assert service.refresh()
    assert service.problem is None
    assert evergram(*align).code == 0
    told = evergram("vectors", "sidecar", "line", "v3.safetensors", "--bytes", "4")
    assert "Read as version 1, version 3 has" in told.out
    assert evergram("lineage", "promote", "line", "3").code == 0
    assert service.refresh()
    assert service.production == 3
    service.close()


def test_what_is_read_by_a_sidecar_counts_for_the_limit(folder: Path, evergram: Command) -> None:
    command = ("vectors", "sidecar", "line", "v1.safetensors", "--old", "old.parquet")
    assert evergram(*command, "--bytes", "3").code == 0
    settings = ServiceSettings(max_hits=1500, allowed_hosts=("testserver",))
    query = {"vectors": [[1.0] * 6] * 2, "k": 3, "version": 0}
    for sidecars, status in (([], 200), (["v1.safetensors"], 413)):
        app = create_app(Service.open("line", sidecars=sidecars), settings)
        with TestClient(app) as client:
            answer = client.post("/v1/search", json=query)
            assert answer.status_code == status, answer.text
    assert "2 queries of 1000 results to read by a sidecar" in answer.text


def test_what_cannot_be_done_is_refused(folder: Path, evergram: Command) -> None:
    command = ("vectors", "sidecar", "line", "v1.safetensors")
    old = ("--old", "old.parquet")
    for arguments, sentence in (
        ((), "give one of the two"),
        (("--bytes", "3", "--error", "0.1", *old), "give one of the two"),
        # Only the newest vectors are stored.
        (("--bytes", "3"), "give the file of them (--old)"),
        (("--bytes", "3", "--old", "new.parquet"), "its dim is 8, not 6"),
        (("--bytes", "7", *old), "it must be 0 to 6"),
        (("--error", "0.00001", *old), "No sidecar leaves a relative error of 1e-05"),
        (("--bytes", "3", "--id-column", "id"), "are of the file --old"),
        (("--bytes", "3", "--side", "query", *old), "no side 'query'"),
        (("--bytes", "3", "--version", "v0", *old), "needs no sidecar"),
    ):
        assert sentence in evergram.refused(*command, *arguments)
    assert "must end in .safetensors" in evergram.refused(
        "vectors", "sidecar", "line", "v1.npy", "--bytes", "3", *old
    )
    assert not (folder / "v1.safetensors").exists()
    (folder / "v1.safetensors").write_text("mine")
    assert "--force" in evergram.refused(*command, "--bytes", "3", *old)
    wrong = evergram.refused("serve", "line", "--port", "0", "--sidecar", "v1.safetensors")
    assert "no sidecar of a version" in wrong
    assert (folder / "v1.safetensors").read_text() == "mine"
