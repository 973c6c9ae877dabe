"""`evergram consumer list` and those around it, and what an upgrade does with a broken probe."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import save_file
from tests.support.command import Command

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.vector_files.writers import write_vectors

ROWS, DIM = 400, 5
IDS = [f"id{i}" for i in range(ROWS)]


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Vectors of three models, a classifier on the first, and what to judge it on."""
    monkeypatch.chdir(tmp_path)
    old = draw(0, ROWS, DIM)
    write_vectors(Path("old.npy"), [(pa.array(IDS), old)])
    write_vectors(Path("good.npy"), [(pa.array(IDS), old @ draw(1, DIM, 8))])
    write_vectors(Path("bad.npy"), [(pa.array(IDS), draw(2, ROWS, 8))])
    weight = draw(3, 1, DIM)
    save_file({"weight": weight}, "ads.safetensors")
    label = (old @ weight.T)[:, 0] > 0
    pq.write_table(pa.table({"id": IDS, "label": label.tolist()}), "ads.parquet")
    return tmp_path


ADD = ("ads", "--pin", "v0", "--probe", "ads.safetensors", "--data", "ads.parquet")


@pytest.mark.long
def test_from_a_consumer_to_a_refused_version(evergram: Command, files: Path) -> None:
    assert evergram("vectors", "align", "old.npy", "old.npy", "--lineage", "l").code == 0
    added = evergram("consumer", "add", "l", *ADD, "--min", 0.9, "--token", "--json")
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
    evergram("vectors", "align", "old.npy", "good.npy", "--lineage", "l")
    assert evergram("consumer", "add", "l", *ADD, "--allow", "v1", "--contact", "a@x").code == 0
    stays = evergram("consumer", "pin", "l", "ads", "v1")
    assert (stays.code, stays.err.count("\n")) == (2, 1)
    assert "--drop-probe" in stays.err
    moved = evergram("consumer", "pin", "l", "ads", "v1", "--drop-probe", "--json").json
    assert (moved["pinned"], moved["allowed"], moved["probe"]) == ("v1", ["v1"], None)
    again = evergram("consumer", "pin", "l", "ads", "v0", *ADD[3:], "--json").json
    assert (again["pinned"], again["probe"]["metric"]) == ("v0", "auc")
    token = evergram("consumer", "token", "l", "ads", "--json").json["token"]
    newer = evergram("consumer", "token", "l", "ads", "--json").json["token"]
    assert ConsumerRegistry.open("l").authenticate(newer) is not None
    assert ConsumerRegistry.open("l").authenticate(token) is None
    assert evergram("consumer", "remove", "l", "ads", "--json").json == {"removed": "ads"}
    assert evergram("consumer", "list", "l", "--json").json["consumers"] == []
    assert not list((files / "l" / "probes").glob("*/*"))


def test_a_limit_that_is_missed_already_is_warned_of(evergram: Command, files: Path) -> None:
    evergram("vectors", "align", "old.npy", "good.npy", "--lineage", "l")
    result = evergram("consumer", "add", "l", *ADD, "--metric", "rmse", "--max", "0")
    assert (result.code, "past its limit already" in result.err) == (0, True)
    result = evergram("consumer", "pin", "l", "ads", "v0", *ADD[3:], "--min", "0.5")
    assert (result.code, "past its limit" in result.err) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("consumer", "add", "l", "a", "--pin", "v9"), "no version 9"),
        (("consumer", "add", "l", "A b", "--pin", "v0"), "cannot be the name of a consumer"),
        (("consumer", "add", "l", *ADD[:5]), "give both --probe and --data"),
        (("consumer", "add", "l", "a", "--pin", "v0", "--min", "1"), "without a probe"),
        (("consumer", "add", "l", *ADD, "--metric", "f1"), "The probe cannot be used: metric"),
        (("consumer", "add", "l", *ADD, "--max", "1"), "auc takes min as its limit"),
        (("consumer", "add", "l", *ADD, "--min", "2"), "auc is between 0 and 1"),
        (("consumer", "remove", "l", "a"), "no consumer 'a'; the consumers are: none"),
        (("consumer", "probe", "l", "a"), "no consumer 'a'"),
        (("consumer", "list", "nowhere"), "is not a lineage"),
    ],
)
def test_an_impossible_consumer_is_refused_in_one_sentence(
    evergram: Command, files: Path, arguments: tuple[str, ...], message: str
) -> None:
    evergram("vectors", "align", "old.npy", "good.npy", "--lineage", "l")
    result = evergram(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_lineage_elsewhere_is_written_as_an_address(
    evergram: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERGRAM_CACHE", str(files / "cache"))
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    place = "memory://bucket/l"
    made = evergram("vectors", "align", "old.npy", "good.npy", "--lineage", place, "--json")
    assert made.code == 0, made.err
    assert made.json["lineage"] == place
    assert evergram("consumer", "add", place, *ADD).code == 0
    versions = evergram("lineage", "list", place, "--json")
    assert [v["version"] for v in versions.json["versions"]] == [0, 1]
    assert evergram("consumer", "probe", place).code == 0
    assert evergram("lineage", "check", place).code == 0
    written = evergram(
        "vectors", "export", place, "out.parquet", "--side", "object", "--as", "v0", "--json"
    )
    assert written.json["rows"] == ROWS
    other = evergram("lineage", "list", "memory://bucket/other")
    assert other.code == 2
    assert "memory://bucket/other is not a lineage" in other.err
    assert not (files / "memory:").exists()


RECIPE = """
name = "shop"
[data]
kind = "synthetic"
queries = 150
candidates = 100
interactions = 4000
[split]
kind = "time"
versions = [0.5, 0.7]
[model]
dim = [4, 6]
[task]
penalty = 2.0
l2 = 0.1
[training]
epochs = 2
batch_size = 256
"""


@pytest.mark.long
def test_an_upgrade_is_refused_by_a_probe(evergram: Command, files: Path) -> None:
    Path("r.toml").write_text(RECIPE)
    assert evergram("train", "r.toml", "--lineage", "l").code == 0
    ids, vectors = Lineage.open("l").embeddings("candidate")
    save_file({"weight": vectors[:1].clone()}, "m.safetensors")
    scores = vectors @ vectors[0]
    pq.write_table(pa.table({"id": ids, "label": (scores > scores.median()).tolist()}), "d.parquet")
    probe = ("--probe", "m.safetensors", "--data", "d.parquet", "--min", 1.0)
    added = evergram("consumer", "add", "l", "ads", "--pin", "v0", *probe, "--json")
    assert added.json["probe"]["baseline"]["value"] == 1.0
    upgrade = ("upgrade", "r.toml", "--lineage", "l", "--set", "upgrade.method=non-bc",
               "--set", "upgrade.alone=false")  # fmt: skip
    refused = evergram(*upgrade, "--strict-probes")
    assert refused.code == 2
    assert "The new version was not published: The probe of ads (v0) has auc 0." in refused.err
    assert Lineage.open("l").newest == 0
    warned = evergram(*upgrade, "--json")
    assert warned.code == 0
    assert "warning: The probe of ads (v0) has auc 0." in warned.err
    probes = warned.json["probes"]
    assert (probes[0]["consumer"], probes[0]["broken"], probes[0]["source"]) == ("ads", True, 1)
    assert Lineage.open("l").metrics(1)["probes"] == probes
