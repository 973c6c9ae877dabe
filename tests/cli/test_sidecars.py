"""`evergram vectors sidecar`: the file, what is said of it, and refusals."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tests.support.command import Command, exit_code
from tests.support.embedding_files import file_of, id_names, randn

from evergram.retrieval.reader import Reader
from evergram.retrieval.version_sidecar import SidecarFiles
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings

ROWS = 1200


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sidecars")
    meaning = randn(0, ROWS, 4)
    for name, seed, dim in (("old", 1, 6), ("new", 2, 8)):
        vectors = meaning @ randn(seed, 4, dim) + 0.5 * randn(seed + 5, ROWS, dim)
        file_of(folder / f"{name}.parquet", vectors)
    files = (folder / "old.parquet", folder / "new.parquet")
    assert exit_code("vectors", "align", *files, "--lineage", folder / "line") == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files of vectors, and the lineage `line` of both."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_writes_a_file_that_readers_and_the_service_use(folder: Path, evergram: Command) -> None:
    command = ("vectors", "sidecar", "line", "v1.safetensors", "--old", "old.parquet")
    facts = evergram.json(*command, "--error", "0.1")
    assert (facts["version"], facts["side"], facts["objects"]) == (1, "object", ROWS)
    assert facts["error"] <= 0.1 < facts["transform_error"]
    assert (facts["target"], facts["without_codes"]) == (0, 0)
    assert 0 <= facts["worse"] < 0.05
    assert facts["share_of_old_bytes"] == facts["bytes"] / 24
    # The same bytes, when they are asked for.
    told = evergram(*command, "--bytes", facts["bytes"], "--force")
    assert f"\nbytes: {facts['bytes']}\n" in told.out
    assert f"\nerror: {facts['error']:.4g}\n" in told.out
    old = randn(0, ROWS, 4) @ randn(1, 4, 6) + 0.5 * randn(6, ROWS, 6)
    with closing(Reader.open("line", sidecars=["v1.safetensors"])) as reader:
        read = reader.embed(id_names(ROWS), 0).vectors
    assert np.linalg.norm(read - old.numpy()) <= 0.1 * np.linalg.norm(old.numpy())
    settings = ServiceSettings(sidecars=("v1.safetensors",), allowed_hosts=("testserver",))
    service = Service("line", sidecars=SidecarFiles(settings.sidecars))
    with TestClient(create_app(service, settings)) as client:
        body = {"model": "embeddings@v0", "input": ["id3", "id1"]}
        answer = client.post("/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        data = answer.json()["data"]
        np.testing.assert_allclose([d["embedding"] for d in data], read[[3, 1]], rtol=1e-5)
        query = {"version": 0, "vector": old[7].tolist(), "k": 3, "metric": "l2"}
        answer = client.post("/v1/search", json=query).json()
        assert answer["data"][0]["hits"][0]["id"] == "id7"


def test_a_service_takes_up_what_comes_changes_or_goes_in_a_folder(
    folder: Path, evergram: Command
) -> None:
    Path("sidecars").mkdir()
    service = Service("line", sidecars=SidecarFiles("sidecars"))

    def read() -> np.ndarray:
        assert service.problem is None
        with service.entered() as state:
            return state.reader.embed(id_names(ROWS), 0).vectors

    by_way_back = read()
    assert not service.refresh()
    command = ("vectors", "sidecar", "line", "sidecars/v1.safetensors", "--old", "old.parquet")
    old = randn(0, ROWS, 4) @ randn(1, 4, 6) + 0.5 * randn(6, ROWS, 6)
    errors = [np.linalg.norm(by_way_back - old.numpy())]
    for size in (2, 5):
        assert evergram(*command, "--bytes", str(size), "--force").code == 0
        assert service.refresh()
        assert not service.refresh()
        errors.append(np.linalg.norm(read() - old.numpy()))
    assert errors[0] > 1.3 * errors[1] > 1.3 * 1.3 * errors[2]
    # One that is damaged now is left out, and said; so is a folder that is gone.
    problem = "1 sidecar files cannot be used; the log says why."
    whole = Path("sidecars/v1.safetensors").read_bytes()
    Path("sidecars/v1.safetensors").write_bytes(whole[:-1])
    assert service.refresh()
    np.testing.assert_array_equal(read(), by_way_back)
    settings = ServiceSettings(allowed_hosts=("testserver",))
    with TestClient(create_app(service, settings)) as client:
        ready = client.get("/readyz").json()
        assert (ready["ready"], ready["problem"]) == (True, problem)
        assert "evergram_sidecar_problems 1.0" in client.get("/metrics").text
    Path("sidecars/v1.safetensors").write_bytes(whole)
    assert service.refresh()
    assert not service.problems
    Path("sidecars").rename("away")
    assert service.refresh()
    assert service.problems == [problem]
    np.testing.assert_array_equal(read(), by_way_back)
    Path("away").rename("sidecars")
    Path("sidecars/v1.safetensors").unlink()
    assert service.refresh()
    assert not service.problems
    np.testing.assert_array_equal(read(), by_way_back)
    service.close()
