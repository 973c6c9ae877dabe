"""`evergram consumer …`, and probes that break with a new version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tests.support.command import Command, exit_code

from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.vector_files.open_embeddings import write_vectors

ROWS, DIM = 400, 5
IDS = [f"id{i}" for i in range(ROWS)]


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("consumers")
    old, weight = draw(0, ROWS, DIM), draw(3, 1, DIM)
    good, bad = old @ draw(1, DIM, 8), draw(2, ROWS, 8)
    for name, vectors in (("old", old), ("good", good), ("bad", bad)):
        write_vectors(folder / f"{name}.npy", [(pa.array(IDS), vectors)])
    save_file({"weight": weight}, folder / "ads.safetensors")
    label = (old @ weight.T)[:, 0] > 0
    pq.write_table(pa.table({"id": IDS, "label": label.tolist()}), folder / "ads.parquet")
    align = ("vectors", "align", folder / "old.npy", folder / "good.npy")
    assert exit_code(*align, "--lineage", folder / "l") == 0
    return folder


@pytest.fixture
def files(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Vectors of three models, a lineage `l` of two, a classifier on the first, and its data."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ADD = ("ads", "--pin", "v0", "--probe", "ads.safetensors", "--data", "ads.parquet")


@pytest.mark.long
def test_from_a_consumer_to_a_refused_version(evergram: Command, files: Path) -> None:
    shutil.rmtree("l")
    assert evergram("vectors", "align", "old.npy", "old.npy", "--lineage", "l").code == 0
    added = evergram("consumer", "add", "l", *ADD, "--limit", 0.9, "--token", "--json")
    assert added.code == 0, added.err
    assert added.json["probe"]["side"] == "object"
    assert added.json["probe"]["baseline"] == {"version": 1, "value": 1.0, "objects": ROWS}
    known = ConsumerRegistry.open("l").authenticate(added.json["token"])
    assert known is not None
    assert known.name == "ads"

    tried = evergram("consumer", "probe", "l", "--json")
    assert (tried.code, tried.json["probes"][0]["value"]) == (0, 1.0)

    before = (files / "l" / "lineage.json").read_bytes()
    bad = ("--lineage", "l", "--max-error", "inf")
    refused = evergram("vectors", "align", "1", "bad.npy", *bad, "--strict-probes")
    assert refused.code == 2
    assert "The probe of ads (v0) has auc 0." in refused.err
    assert refused.err.count("\n") == 1
    assert (files / "l" / "lineage.json").read_bytes() == before
    assert [p.name for p in (files / "l" / "embeddings").iterdir()] == ["1"]

    kept = evergram(
        "vectors", "align", "1", "good.npy", "--lineage", "l", "--strict-probes", "--json"
    )
    assert kept.code == 0, kept.err
    assert kept.json["probes"][0]["value"] > 0.99
    assert Lineage.open("l").metrics(2)["probes"] == kept.json["probes"]

    warned = evergram("vectors", "align", "2", "bad.npy", *bad)
    assert warned.code == 0
    assert warned.err.count("warning: The probe of ads (v0) has auc 0.") == 1
    assert "Consumers' probes" in warned.out
    broken = evergram("consumer", "probe", "l", "ads")
    assert broken.code == 1
    assert "where at least 0.9 is needed" in broken.err

    listed = evergram("consumer", "list", "l", "--json").json["consumers"][0]
    assert (listed["name"], listed["pinned"], listed["token"]) == ("ads", "v0", True)
    assert listed["last"]["value"] < 0.9
    assert listed["probe"]["baseline"]["value"] == 1.0
    assert "token_sha256" not in listed
    assert "ads" in evergram("consumer", "list", "l").out


def test_a_consumer_moves_and_goes(evergram: Command, files: Path) -> None:
    assert evergram("consumer", "add", "l", *ADD, "--allow", "v1", "--contact", "a@x").code == 0
    stays = evergram("consumer", "pin", "l", "ads", "v1")
    assert (stays.code, stays.err.count("\n")) == (2, 1)
    assert "--drop-probe" in stays.err
    moved = evergram("consumer", "pin", "l", "ads", "v1", "--drop-probe", "--json").json
    assert (moved["pinned"], moved["allowed"], moved["probe"]) == ("v1", ["v1"], None)
    missed = evergram(
        "consumer", "pin", "l", "ads", "v0", *ADD[3:], "--metric", "rmse", "--limit", 0
    )
    assert (missed.code, "past its limit already" in missed.err) == (0, True)
    again = evergram("consumer", "pin", "l", "ads", "v0", *ADD[3:], "--json").json
    assert (again["pinned"], again["probe"]["metric"]) == ("v0", "auc")
    token = evergram("consumer", "token", "l", "ads", "--json").json["token"]
    newer = evergram("consumer", "token", "l", "ads", "--json").json["token"]
    assert ConsumerRegistry.open("l").authenticate(newer) is not None
    assert ConsumerRegistry.open("l").authenticate(token) is None
    assert evergram("consumer", "remove", "l", "ads", "--json").json == {"removed": "ads"}
    assert evergram("consumer", "list", "l", "--json").json["consumers"] == []
    assert not list((files / "l" / "probes").glob("*/*"))
