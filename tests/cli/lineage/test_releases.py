"""import, label, promote, withdraw, retire, and files that say which version they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.command import Command
from tests.support.publishing import publish_next

from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.provenance import COMPUTED_FROM, FINGERPRINT
from evergram.vector_files.writers import write_vectors

ROWS = 400


def put(folder: Path, number: int) -> Path:
    """Write one version's vectors, which are linear in the same six numbers; return the file."""
    base = np.random.default_rng(0).normal(size=(ROWS, 6))
    own = np.random.default_rng(number + 1)
    made = torch.from_numpy((base @ own.normal(size=(6, 6 + number))).astype(np.float32))
    path = folder / f"v{number}.parquet"
    write_vectors(path, [(pa.array([f"id{i}" for i in range(ROWS)]), made)])
    return path


@pytest.fixture
def lineage(tmp_path: Path, evergram: Command) -> Path:
    """A lineage of an imported version 0, and of version 1."""
    path = tmp_path / "lineage"
    code, out, _ = evergram(
        "vectors", "import", put(tmp_path, 0), "--lineage", path, "--name", "shop", "--json"
    )
    assert code == 0
    facts = json.loads(out)
    opened = Lineage.open(path)
    assert facts == {
        "lineage": str(path),
        "version": 0,
        "rows": ROWS,
        "dim": 6,
        "fingerprint": opened.manifest(0).fingerprint,
    }
    # Its canaries are of it, and are what `align` will not fit to.
    ids, vectors = opened.canaries(0)["object"]
    everything = dict(zip(*(x.tolist() for x in opened.embeddings("object")), strict=True))
    assert len(ids) > 10
    assert vectors.tolist() == [everything[i] for i in ids.to_pylist()]
    code, _, _ = evergram("vectors", "align", 0, put(tmp_path, 1), "--lineage", path)
    assert code == 0
    assert set(Lineage.open(path).canaries(1)["object"][0].to_pylist()) == set(ids.to_pylist())
    return path


def test_a_canary_is_tried_promoted_and_rolled_back(
    lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    assert (
        evergram("vectors", "align", 1, put(tmp_path, 2), "--lineage", lineage, "--no-promote")[0]
        == 0
    )
    assert Lineage.open(lineage).production == 1
    code, out, _ = evergram("lineage", "label", lineage, "canary", "newest", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["labels"] == {"stable": 1, "canary": 2}
    assert (facts["production"], facts["newest"], facts["held"]) == (1, 2, [1, 2])
    code, out, _ = evergram("lineage", "promote", lineage)
    assert out == "Production: version 2; newest: version 2; labels: canary: 2, stable: 2.\n"
    assert json.loads(evergram("lineage", "promote", lineage, 1, "--json")[1])["production"] == 1
    code, out, err = evergram("lineage", "withdraw", lineage, "--reason", "worse")
    assert (code, out) == (2, "")
    assert "labelled canary" in err
    assert evergram("lineage", "label", lineage, "canary", "--remove")[0] == 0
    code, out, _ = evergram("lineage", "withdraw", lineage, "--reason", "worse", "--json")
    assert (code, json.loads(out)["withdrawn"]["2"]["reason"]) == (0, "worse")
    # The next number is 3, and reading as version 0 goes over the gap.
    assert evergram("vectors", "align", 1, put(tmp_path, 3), "--lineage", lineage)[0] == 0
    out_file = tmp_path / "as-v0.parquet"
    assert (
        evergram("vectors", "export", lineage, out_file, "--side", "object", "--as", "v0")[0] == 0
    )
    expected = torch.cat([v for _, v in open_embeddings(tmp_path / "v0.parquet").blocks()])
    read = torch.cat([v for _, v in open_embeddings(out_file).blocks()])
    torch.testing.assert_close(read, expected, rtol=1e-2, atol=1e-2)
    assert evergram("lineage", "retire", lineage, 0)[0] == 0
    code, _, err = evergram("vectors", "export", lineage, out_file, "--side", "object", "--as", 0)
    assert code == 2
    assert "Version 0 of shop is retired" in err
    code, out, _ = evergram("lineage", "list", lineage, "--json")
    listed = json.loads(out)
    rows = {r["version"]: r for r in listed["versions"]}
    assert list(rows) == [0, 1, 3]
    assert [r["retired"] for r in rows.values()] == [True, False, False]
    assert rows[3]["labels"] == ["stable"]
    assert listed["labels"] == {"stable": 3}
    assert rows[3]["fingerprint"] == Lineage.open(lineage).manifest(3).fingerprint
    assert listed["withdrawn"]["2"]["reason"] == "worse"
    code, out, _ = evergram("lineage", "list", lineage)
    assert "retired" in out
    assert "stable" in out
    assert "Version 2 was withdrawn on" in out
    assert evergram("lineage", "check", lineage)[0] == 0


def test_files_say_what_they_are_and_others_are_refused(
    lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    opened = Lineage.open(lineage)
    first, second = (opened.manifest(n).fingerprint for n in (0, 1))
    files = {}
    for version in (0, 1):
        files[version] = tmp_path / f"export{version}.parquet"
        arguments = (lineage, files[version], "--side", "object", "--as", version)
        assert evergram("vectors", "export", *arguments)[0] == 0
    metadata = pq.read_schema(files[0]).metadata
    assert metadata[FINGERPRINT.encode()].decode() == first
    assert metadata[COMPUTED_FROM.encode()].decode() == second
    back = ("--lineage", lineage, "--as", 0, "--out", tmp_path / "back.npy")
    # Vectors of version 0 are not what the chain from version 1 takes, though the dim may be.
    code, out, err = evergram("vectors", "transform", files[0], *back, "--from", 1)
    assert (code, out) == (2, "")
    assert f"not of version 1 of {lineage}, but of its version 0" in err
    assert evergram("vectors", "transform", files[1], *back)[0] == 0
    written = open_embeddings(tmp_path / "back.npy")
    assert (written.fingerprint, written.provenance[COMPUTED_FROM]) == (first, second)
    assert (
        evergram("vectors", "transform", tmp_path / "back.npy", *back[:-1], tmp_path / "x.npy")[0]
        == 2
    )
    # A file that says it is of version 0 cannot follow as version 2, nor stand for version 1.
    code, _, err = evergram("vectors", "align", 1, files[0], "--lineage", lineage)
    assert code == 2
    assert "holds vectors of version 0" in err
    assert "cannot be a new version" in err
    code, _, err = evergram("vectors", "align", files[0], put(tmp_path, 2), "--lineage", lineage)
    assert code == 2
    assert "but of its version 0" in err
    foreign = tmp_path / "foreign.parquet"
    vectors = torch.cat([v for _, v in open_embeddings(files[1]).blocks()])
    ids = open_embeddings(files[1]).ids()
    write_vectors(foreign, [(ids, vectors)], {FINGERPRINT: "sha256:" + "0" * 64})
    code, _, err = evergram("vectors", "transform", foreign, *back)
    assert code == 2
    assert "but of no version of it" in err
    assert err.count("\n") == 1
    # The newest version's own export goes on from it.
    assert evergram("vectors", "align", files[1], put(tmp_path, 2), "--lineage", lineage)[0] == 0


def test_an_impossible_change_is_refused_in_one_sentence(
    lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    before = (lineage / "lineage.json").read_bytes()
    repeated = tmp_path / "repeated.parquet"
    write_vectors(repeated, [(pa.array(["a", "a"]), torch.ones(2, 3))])
    wrong: list[tuple[tuple[object, ...], str]] = [
        (("vectors", "import", put(tmp_path, 0), "--lineage", lineage), "already holds a lineage"),
        (("vectors", "import", repeated, "--lineage", tmp_path / "new"), "'a'"),
        (("vectors", "import", tmp_path / "no.npy", "--lineage", tmp_path / "new"), "is not there"),
        (("lineage", "label", lineage, "canary"), "--remove and no version"),
        (("lineage", "label", lineage, "canary", 0, "--remove"), "--remove and no version"),
        (("lineage", "label", lineage, "canary", "--remove"), "has no label 'canary'"),
        (("lineage", "label", lineage, "v7", 0), "cannot be a label"),
        (("lineage", "label", lineage, "canary", 7), "has no version 7; its versions are: 0, 1"),
        (("lineage", "promote", lineage, 0), "Version 0 of shop cannot be stable"),
        (("lineage", "withdraw", lineage, "--reason", "worse"), "version 0 are no longer stored"),
        (("lineage", "withdraw", lineage, "--reason", " "), "needs a reason"),
        (("lineage", "retire", lineage, "newest"), "cannot be retired"),
        (("lineage", "retire", tmp_path, 0), "is not a lineage"),
    ]
    for arguments, message in wrong:
        code, out, err = evergram(*arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err, err
        assert err.count("\n") == 1
    assert (lineage / "lineage.json").read_bytes() == before
    assert not (tmp_path / "new").exists()


def test_versions_of_a_lineage_whose_publisher_stated_no_metrics(
    tmp_path: Path, evergram: Command
) -> None:
    ids, vectors = pa.array(["a", "b"]), torch.eye(2)
    lineage = Lineage.create(tmp_path / "own")
    publish_next(lineage, Artefact(2, {"object": (ids, vectors)}, None, {}, {}))
    code, out, err = evergram("lineage", "list", lineage.path)
    assert (code, err) == (0, "")
    assert "version" in out
    code, out, _ = evergram("lineage", "list", lineage.path, "--json")
    assert code == 0
    assert json.loads(out)["versions"][0]["metrics"] == {}
