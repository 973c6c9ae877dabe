"""`evergram lineage …`: labels, promotions, withdrawals, lists and checks."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.command import Command, exit_code

from evergram.lineage.lineage import Lineage
from evergram.vector_files.open_embeddings import (
    COMPUTED_FROM,
    FINGERPRINT,
    open_embeddings,
    write_vectors,
)

ROWS = 400


def put(folder: Path, number: int) -> Path:
    """Write one version's vectors, which are linear in the same six numbers; return the file."""
    base = np.random.default_rng(0).normal(size=(ROWS, 6))
    own = np.random.default_rng(number + 1)
    made = torch.from_numpy((base @ own.normal(size=(6, 6 + number))).astype(np.float32))
    path = folder / f"v{number}.parquet"
    write_vectors(path, [(pa.array([f"id{i}" for i in range(ROWS)]), made)])
    return path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("releases") / "lineage"
    files = [put(path.parent, number) for number in (0, 1)]
    assert exit_code("vectors", "import", files[0], "--lineage", path, "--name", "shop") == 0
    assert exit_code("vectors", "align", 0, files[1], "--lineage", path) == 0
    return path.parent


@pytest.fixture
def lineage(published: Path, tmp_path: Path) -> Path:
    """A lineage of an imported version 0, and of version 1."""
    shutil.copytree(published, tmp_path, dirs_exist_ok=True)
    return tmp_path / "lineage"


def test_a_canary_is_tried_promoted_and_rolled_back(
    lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    align = ("vectors", "align", 1, put(tmp_path, 2), "--lineage", lineage, "--no-promote")
    assert evergram(*align).code == 0
    assert Lineage.open(lineage).production == 1
    facts = evergram.json("lineage", "label", lineage, "canary", "newest")
    assert facts["labels"] == {"stable": 1, "canary": 2}
    assert (facts["production"], facts["newest"], facts["held"]) == (1, 2, [1, 2])
    promoted = evergram("lineage", "promote", lineage).out
    assert "\nnewest: 2\nproduction: 2\nlabels: canary: 2, stable: 2\n" in promoted
    assert evergram.json("lineage", "promote", lineage, 1)["production"] == 1
    assert "canary" in evergram.refused("lineage", "withdraw", lineage, "--reason", "worse")
    assert evergram("lineage", "label", lineage, "canary", "--remove").code == 0
    gone = evergram.json("lineage", "withdraw", lineage, "--reason", "worse")["withdrawn"]
    assert gone["2"]["reason"] == "worse"
    # The next number is 3, and reading as version 0 goes over the gap.
    assert evergram("vectors", "align", 1, put(tmp_path, 3), "--lineage", lineage).code == 0
    export = ("vectors", "export", lineage, tmp_path / "as-v0.parquet", "--side", "object")
    assert evergram(*export, "--as", "v0").code == 0
    expected, read = (
        torch.cat([v for _, v in open_embeddings(tmp_path / name).blocks()])
        for name in ("v0.parquet", "as-v0.parquet")
    )
    torch.testing.assert_close(read, expected, rtol=1e-2, atol=1e-2)
    assert evergram("lineage", "retire", lineage, 0).code == 0
    assert "Version 0" in evergram.refused(*export, "--as", 0)
    listed = evergram.json("lineage", "list", lineage)
    rows = {r["version"]: r for r in listed["versions"]}
    assert {n: r["retired"] for n, r in rows.items()} == {0: True, 1: False, 3: False}
    assert (rows[3]["labels"], listed["labels"]) == (["stable"], {"stable": 3})
    assert listed["withdrawn"]["2"]["reason"] == "worse"
    shown = evergram("lineage", "list", lineage).out
    assert [word for word in ("retired", "stable", "Version 2") if word not in shown] == []
    assert evergram("lineage", "check", lineage).code == 0


def test_files_say_what_they_are_and_others_are_refused(
    lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    opened = Lineage.open(lineage)
    first, second = (opened.manifest(n).fingerprint for n in (0, 1))
    files = [tmp_path / f"export{version}.parquet" for version in (0, 1)]
    for version, file in enumerate(files):
        ran = evergram("vectors", "export", lineage, file, "--side", "object", "--as", version)
        assert ran.code == 0
    metadata = pq.read_schema(files[0]).metadata
    assert metadata[FINGERPRINT.encode()].decode() == first
    assert metadata[COMPUTED_FROM.encode()].decode() == second
    back = ("--lineage", lineage, "--as", 0, "--out", tmp_path / "back.npy")
    assert evergram("vectors", "transform", files[1], *back).code == 0
    written = open_embeddings(tmp_path / "back.npy")
    assert (written.fingerprint, written.provenance[COMPUTED_FROM]) == (first, second)
    foreign = tmp_path / "foreign.parquet"
    vectors = torch.cat([v for _, v in open_embeddings(files[1]).blocks()])
    unknown = {FINGERPRINT: "sha256:" + "0" * 64}
    write_vectors(foreign, [(open_embeddings(files[1]).ids(), vectors)], unknown)
    # Vectors of version 0 are not what the chain from version 1 takes, though the dim may be; nor
    # can they follow as version 2, or stand for version 1.
    new = put(tmp_path, 2)
    wrong: list[tuple[tuple[object, ...], str]] = [
        (("transform", files[0], *back, "--from", 1), "is that of version 0"),
        (("transform", tmp_path / "back.npy", *back[:-1], tmp_path / "x.npy"), "version 0"),
        (("align", 1, files[0], "--lineage", lineage), "version 0"),
        (("align", files[0], new, "--lineage", lineage), "version 0"),
        (("transform", foreign, *back), "of no version"),
    ]
    for arguments, named in wrong:
        assert named in evergram.refused("vectors", *arguments)
    # The newest version's own export goes on from it.
    assert evergram("vectors", "align", files[1], new, "--lineage", lineage).code == 0


def test_check_as_json_has_what_it_measured_and_what_is_past_a_limit(
    evergram: Command, trained_lineage: Path
) -> None:
    limits = ("--max-error", 0, "--max-bound", 0)
    code, out, err = evergram("lineage", "check", trained_lineage, *limits, "--json")
    facts = json.loads(out)
    assert (code, facts["version"]) == (1, 2)
    assert [r["version"] for r in facts["readings"]] == [0, 1]
    assert err.splitlines() == facts["past_limits"]
    assert len(facts["past_limits"]) == 4
    reading = facts["readings"][0]
    assert reading["certificate"]["bound"] >= reading["certificate"]["estimate"] > 0
    assert facts["checked"] > 20


def test_versions_fit_80_columns(evergram: Command, trained_lineage: Path) -> None:
    Lineage.open(trained_lineage).promote()
    Lineage.open(trained_lineage).retire(0)
    out = evergram(f"lineage list {trained_lineage}").out
    assert max(len(line) for line in out.splitlines() if line[:1] in "┏┡└│┃") <= 80
    words = [re.sub(r"[│┃ ]+", " ", line).split() for line in out.splitlines()]
    assert ["version", "dim", "created", "recall@5", "fingerprint", "labels"] in words
    rows = {w[0]: w[1:] for w in words if w and w[0] in {"0", "1", "2"}}
    manifests = {str(m.version): m for m in Lineage.open(trained_lineage).versions}
    for number, row in rows.items():
        assert row[:2] == [str(manifests[number].dim), manifests[number].created[:10]]
    assert (rows["0"][4:], rows["2"][4:]) == (["retired"], ["stable,", "production"])
    listed = evergram.json(f"lineage list {trained_lineage}")
    assert [v["production"] for v in listed["versions"]] == [False, False, True]


def test_skew_shows_what_stale_rows_cost_and_holds_it_to_a_limit(
    lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    shown = evergram("lineage", "skew", lineage, "--html", tmp_path / "skew.html")
    assert (shown.code, "0 of 4 mixtures" in shown.err) == (0, True)
    assert [
        w for w in ("80% 1 old", "worst first", "raw", "have 6 dims") if w not in shown.out
    ] == []
    page = (tmp_path / "skew.html").read_text()
    assert (page.count("<svg"), "1 old" in page) == (2, True)  # of chain and worst first
    words = ("lineage", "skew", lineage, "--stale", "1=0.5", "--stale", "1=0.25")
    facts = evergram.json(*words)
    assert [r["stale"] for r in facts["readings"][::4]] == [{"1": 0.5}, {"1": 0.25}]
    assert (facts["past_limits"], facts["readings"][0]["loss"]) == ([], 0)  # exact maps
    for wrong, said in (("1", "AGE=SHARE"), ("x=1", "AGE=SHARE"), ("2=.5", "ages from 1 to 1")):
        assert said in evergram.refused("lineage", "skew", lineage, "--stale", wrong)
    assert "no recipe" in evergram.refused("lineage", "skew", lineage, "--set", "data.path=x")
    noisy = tmp_path / "noisy.parquet"
    blocks = [
        (ids, z + torch.randn(z.shape)) for ids, z in open_embeddings(put(tmp_path, 2)).blocks()
    ]
    write_vectors(noisy, blocks)
    align = ("vectors", "align", 1, noisy, "--lineage", lineage, "--max-loss")
    sentence = "With 50% of rows 1 old, the index loses"
    assert sentence in evergram.refused(*align, 0)
    published = evergram.json(*align, 90)
    assert 0 < published["skew"]["readings"][0]["loss"] < 90
    refused = evergram(*words, "--max-loss", 0)
    assert refused.code == 1
    assert sentence in refused.err
