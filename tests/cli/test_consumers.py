"""`evergram consumer …`, probes that break with a new version, and thresholds that are counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tests.support.command import Command, exit_code
from tests.support.text_encoders import ADDRESSES, encoded

from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.vector_files.writers import write_vectors

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


def test_align_and_lineage_check_count_the_pairs_that_pass_a_registered_threshold(
    tmp_path: Path, evergram: Command
) -> None:
    old, new, newest = (encoded(tmp_path, address).path for address in ADDRESSES[:3])
    line = tmp_path / "line"
    options = ["--lineage", line, "--held-out", 0.5, "--transform", "low_rank", "--rank", 4]
    evergram("vectors", "align", old, new, *options)
    added = evergram("consumer", "add", line, "shop", "--pin", "v0", "--threshold", 0.5, "--json")
    assert added.json["threshold"] == {"value": 0.5, "metric": "cosine"}
    [count] = evergram("vectors", "align", 1, newest, *options, "--json").json["thresholds"]
    assert evergram("lineage", "check", line, "--json").json["thresholds"] == [count]

    opened = Lineage.open(line)
    ids, own = opened.canaries(0)["object"]
    new_ids, rows = opened.canaries(2)["object"]
    assert ids.to_pylist() == new_ids.to_pylist()
    scores = []
    for part in (own.double(), opened.chain.apply(rows, 2, 0).double()):
        unit = (part / part.norm(dim=1, keepdim=True)).numpy()
        scores.append((unit @ unit.T)[np.triu_indices(len(unit), 1)])
    then, now = (values >= 0.5 for values in scores)
    assert count["consumer"] == "shop"
    assert (count["pairs"], count["then"], count["now"], count["both"]) == (
        len(then), then.sum(), now.sum(), (then & now).sum()
    )  # fmt: skip
    assert count["calibrated"] == pytest.approx(count["then"], rel=0.1)
    assert count["now"] > 1.2 * count["then"]
    printed = " ".join(evergram("lineage", "check", line).out.split())
    assert f"{count['then']:,} passed, and {count['now']:,} do as read back" in printed


def test_a_threshold_is_of_the_version_that_it_was_set_at(
    tmp_path: Path, evergram: Command
) -> None:
    old, new = (encoded(tmp_path, address).path for address in ADDRESSES[:2])
    line = tmp_path / "line"
    evergram("vectors", "import", old, "--lineage", line)
    evergram("consumer", "add", line, "shop", "--pin", "v0", "--threshold", 0.5)
    evergram("vectors", "align", 0, new, "--lineage", line)
    moved = evergram("consumer", "pin", line, "shop", "v1", "--json").json
    assert moved["threshold"] is None
    pin = "consumer", "pin", line, "shop", "v0", "--threshold"
    for wrong in ("nan", "1.5", "l2:0.5", "hamming:1", "much"):
        assert "threshold" in evergram(*pin, wrong).refusal()
    evergram(*pin, "ip:1e6")
    [count] = evergram("lineage", "check", line, "--json").json["thresholds"]
    assert (count["then"], count["now"]) == (0, 0)
    printed = " ".join(evergram("lineage", "check", line).out.split())
    assert f"none of {count['pairs']:,} pairs of canaries reached it" in printed
    assert "calibrated" not in printed
