"""`evergram vectors align, transform, import, export`: between files and a lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.command import Command
from tests.support.lineages import lineage_of, read_as
from torch import Tensor

from evergram.data.corpus import Side, Vocabulary
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import AlignSettings, align
from evergram.releasing.past_file import SIDE
from evergram.training.checkpoint import held_out
from evergram.vector_files.open_embeddings import open_embeddings, write_vectors

FORMATS = ("parquet", "arrow", "arrows", "npy")
ROWS, OLD_DIM, NEW_DIM = 600, 6, 9


def planted(seed: int, dim: int, other: Tensor, noise: float = 0.0) -> Tensor:
    """Return vectors [n, dim] that are a linear map of `other`, and noise."""
    draw = torch.Generator().manual_seed(seed)
    matrix = torch.randn(other.shape[1], dim, generator=draw)
    return other @ matrix + noise * torch.randn(len(other), dim, generator=draw)


def new_vectors() -> Tensor:
    return torch.randn(ROWS, NEW_DIM, generator=torch.Generator().manual_seed(1))


def put(path: Path, vectors: Tensor, ids: list[Any] | None = None) -> Path:
    names = [f"id{i}" for i in range(len(vectors))] if ids is None else ids
    half = len(names) // 2
    parts = [(pa.array(names[:half]), vectors[:half]), (pa.array(names[half:]), vectors[half:])]
    write_vectors(path, parts)
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_is_read_as_the_old_one_was(tmp_path: Path, evergram: Command, suffix: str) -> None:
    new = new_vectors()
    old = planted(2, OLD_DIM, new)
    order = torch.randperm(ROWS).tolist()
    first = put(tmp_path / f"old.{suffix}", old[order], [f"id{i}" for i in order])
    second = put(tmp_path / f"new.{suffix}", new)
    result = evergram("vectors", "align", first, second, "--lineage", tmp_path / "l", "--json")
    assert result.code == 0, result.err
    report = result.json["alignment"]
    assert report["pairs"]["common"] == ROWS
    assert report["pairs"]["fitted"] + report["pairs"]["held_out"] == ROWS
    kept = report["held_out"]
    assert kept["transformed"]["cosine"] > 0.999999
    assert kept["transformed"]["relative_error"] < 1e-5
    assert kept["transformed"]["overlap@10"] > 0.999
    assert kept["as_is"]["cosine"] < 0.6
    out = tmp_path / f"back.{suffix}"
    back = ("--lineage", tmp_path / "l", "--as", 0, "--out", out)
    done = evergram("vectors", "transform", second, *back, "--json")
    assert done.json == {"file": str(out), "rows": ROWS, "dim": OLD_DIM, "from": 1, "as": 0}
    again = open_embeddings(out)
    assert again.ids().to_pylist() == [f"id{i}" for i in range(ROWS)]
    read = torch.cat([v for _, v in again.blocks()])
    torch.testing.assert_close(read, old, rtol=0, atol=1e-4)
    assert evergram("lineage", "check", tmp_path / "l", "--max-error", 1e-4).code == 0


@pytest.mark.parametrize("kind", ["linear", "affine", "orthogonal", "low_rank"])
def test_the_report_measures_the_published_transform(tmp_path: Path, kind: str) -> None:
    new = new_vectors()
    old = planted(2, OLD_DIM, new, noise=1.0) + 1
    files = [
        open_embeddings(put(tmp_path / f"{name}.parquet", vectors))
        for name, vectors in (("old", old), ("new", new))
    ]
    lineage = Lineage.create(tmp_path / "l")
    settings = AlignSettings(kind, rank=3 if kind == "low_rank" else None, held_out=0.2)
    facts = align(files[0], files[1], lineage, settings)
    report = facts["alignment"]
    assert report["transform"]["kind"] == kind
    past, now = (lineage.canaries(v)[SIDE] for v in (0, 1))
    assert past[0].equals(now[0])
    assert len(past[0]) == ROWS
    unseen = held_out(Side(Vocabulary(past[0])), 0.2)
    assert int(unseen.sum()) == report["pairs"]["held_out"] < 0.3 * ROWS
    then, back = past[1][unseen], lineage.chain.apply(now[1][unseen], 1, 0)
    cosine = torch.nn.functional.cosine_similarity(back, then).mean()
    relative = ((back - then).square().sum() / then.square().sum()).sqrt()
    kept = report["held_out"]
    assert kept["transformed"]["cosine"] == pytest.approx(float(cosine), abs=1e-5)
    assert kept["transformed"]["relative_error"] == pytest.approx(float(relative), rel=1e-4)
    assert report["certificate"]["0"]["relative"] == pytest.approx(float(relative), rel=1e-4)
    assert kept["as_is"]["relative_error"] > kept["transformed"]["relative_error"]
    # Held-out objects were not fitted to: fitting to them too does not do worse.
    assert kept["in_sample"]["relative_error"] <= kept["transformed"]["relative_error"] + 1e-3
    assert lineage.metrics(1)["alignment"]["pairs"] == report["pairs"]


def test_a_chain_of_three_files(tmp_path: Path, evergram: Command) -> None:
    new = new_vectors()
    middle = planted(2, 7, new)
    old = planted(3, OLD_DIM, middle)
    # Version 2 lost some objects and has some of its own.
    newest = torch.cat([new[80:], torch.randn(40, NEW_DIM)])
    files = [
        put(tmp_path / "old.npy", old),
        put(tmp_path / "middle.parquet", middle),
        put(tmp_path / "new.arrow", newest, [f"id{i}" for i in range(80, ROWS + 40)]),
    ]
    lineage = tmp_path / "l"
    first = ("vectors", "align", files[0], files[1], "--lineage", lineage, "--name", "shop")
    assert evergram(*first).code == 0
    second = evergram("vectors", "align", 1, files[2], "--lineage", lineage, "--json")
    assert second.code == 0, second.err
    pairs = second.json["alignment"]["pairs"]
    assert (pairs["common"], pairs["only_old"], pairs["only_new"]) == (ROWS - 80, 80, 40)
    assert second.json["alignment"]["certificate"].keys() == {"0", "1"}
    assert [m.name for m in Lineage.open(lineage).versions] == ["shop@v0", "shop@v1", "shop@v2"]
    for version, past in ((0, old), (1, middle)):
        out = tmp_path / f"as{version}.npy"
        arguments = ("--lineage", lineage, "--as", version, "--out", out)
        assert evergram("vectors", "transform", files[2], *arguments).code == 0
        np.testing.assert_allclose(np.load(out)[: ROWS - 80], past[80:].numpy(), atol=2e-3)
    # A file of an older version, from where it is.
    out = tmp_path / "middle-as0.arrow"
    earlier = ("--lineage", lineage, "--from", 1, "--as", 0, "--out", out)
    assert evergram("vectors", "transform", files[1], *earlier).code == 0
    assert evergram("lineage", "check", lineage, "--max-error", 1e-3).code == 0
    # The stored vectors are those of the newest file, block by block.
    ids, vectors = Lineage.open(lineage).embeddings(SIDE)
    assert torch.equal(vectors, newest)
    assert ids[0].as_py() == "id80"
    # Going on from the file itself needs it to be what is stored.
    assert evergram("vectors", "align", files[2], files[1], "--lineage", lineage).code == 0


def test_export_writes_a_version_as_the_readers_see_it(evergram: Command, tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    out = tmp_path / "out.parquet"
    export = ("vectors", "export", tmp_path / "line", out, "--as", "v0")
    assert "it has object" in evergram.refused(*export, "--side", "candidate")
    assert evergram.json(*export) == {
        "file": str(out), "rows": 300, "dim": 6, "side": "object", "version": 2, "as": 0,
    }  # fmt: skip
    table = pq.read_table(out)
    assert table["id"].to_pylist() == list(range(300))
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy()), read_as(2, 0), atol=1e-5)
    assert f"{out} already exists" in evergram.refused(*export)
    again = evergram(*export, "--force").out
    assert again == f"file: {out}\nrows: 300\ndim: 6\nside: object\nversion: 2\nas: 0\n"


def test_an_exported_file_is_imported_as_version_0(evergram: Command, tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    out = tmp_path / "out.parquet"
    evergram.json("vectors", "export", tmp_path / "line", out, "--side", "object", "--as", "v0")
    facts = evergram.json("vectors", "import", out, "--lineage", tmp_path / "new")
    assert (facts["version"], facts["rows"], facts["dim"]) == (0, 300, 6)
    assert "already holds a lineage" in evergram.refused(
        "vectors", "import", out, "--lineage", tmp_path / "new"
    )
