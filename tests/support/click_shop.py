"""Small shops: tables of clicks with their recipes, and the files of a publisher of vectors."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support import onnx_graphs
from tests.support.command import Command, CommandResult

from evergram.vector_files.open_embeddings import write_vectors

RECIPE = """
name = "shop"
[data]
kind = "table"
path = "clicks.parquet"
[model]
dim = 4
[training]
epochs = 1
batch_size = 64
"""
GROWING = """
name = "shop"
[data]
kind = "table"
path = "clicks.parquet"
[split]
versions = [0.5, 0.7]
kind = "time"
[model]
dim = [4, 6]
[task]
penalty = 2.0
l2 = 0.1
[training]
epochs = 2
batch_size = 64
"""


def click_pairs(rows: int = 600) -> list[tuple[int, int]]:
    draw = random.Random(0)
    return [(draw.randrange(40), draw.randrange(30)) for _ in range(rows)]


def clicks(rows: int = 600) -> pa.Table:
    """Return interactions that train in an instant, in the order of their times."""
    query, candidate = zip(*click_pairs(rows), strict=True)
    names = [f"item{c}" for c in candidate]
    times = [1_700_000_000 + 60 * i for i in range(rows)]
    return pa.table({"query": query, "candidate": names, "time": times})


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and a table of 600 clicks, which is where the command runs."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(clicks(), "clicks.parquet")
    Path("shop.toml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def growing_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe of two versions and 4,000 clicks, by people of four tastes."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    queries = [draw.randrange(200) for _ in range(4000)]
    items = [f"item{4 * draw.randrange(15) + q % 4}" for q in queries]
    table = pa.table({"query": queries, "candidate": items, "time": range(4000)})
    pq.write_table(table, "clicks.parquet")
    Path("shop.toml").write_text(GROWING)
    return tmp_path


ROWS = 300
IDS = [f"id{i}" for i in range(ROWS)]


def put_vector_files(dim: int) -> None:
    """Write vectors of the same objects by two models, the second a turn of the first."""
    draw = np.random.default_rng(0)
    old = draw.normal(size=(ROWS, dim)).astype(np.float32)
    turn, _ = np.linalg.qr(draw.normal(size=(dim, dim)))
    for name, values in (("old", old), ("new", (old @ turn).astype(np.float32))):
        write_vectors(Path(f"{name}.parquet"), [(pa.array(IDS), torch.from_numpy(values))])
        np.save(f"{name}.npy", values)


def put_publisher_files() -> None:
    """Write vectors of two models, and the files of a consumer's probe of the first."""
    put_vector_files(onnx_graphs.DIM)
    label = np.load("old.npy").sum(axis=1) > 0
    pq.write_table(pa.table({"id": IDS, "label": label}), "data.parquet")
    Path("plain.onnx").write_bytes(onnx_graphs.plain().SerializeToString())


@pytest.fixture
def vector_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    put_vector_files(4)
    return tmp_path


@pytest.fixture
def imported_lineage(evergram: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lineage `l` of one version, in a publisher's working directory."""
    monkeypatch.chdir(tmp_path)
    put_publisher_files()
    assert evergram("vectors", "import", "old.parquet", "--lineage", "l").code == 0
    return tmp_path / "l"


def add_probe(evergram: Command, model: str, *more: object) -> CommandResult:
    """Add the consumer "ads", with a model of this file as its probe."""
    probe = ("--pin", "v0", "--probe", model, "--data", "data.parquet")
    return evergram("consumer", "add", "l", "ads", *probe, *more)


def tree_of(folder: Path) -> dict[str, str]:
    """Return all that is below a folder: names, and the sizes and hashes of files."""
    tree = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            tree[name] = f"-> {path.readlink()}"
        elif path.is_file():
            content = path.read_bytes()
            tree[name] = f"{len(content)} {hashlib.sha256(content).hexdigest()}"
        else:
            tree[name] = "folder" if path.is_dir() else "special"
    return tree
