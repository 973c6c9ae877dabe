"""Good files and lineages, of which each case of bad input spoils one."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tests.support import onnx_graphs
from tests.support.command import exit_code
from tests.support.golden import TRAINED

from evergram.vector_files.writers import write_vectors

ROWS, DIM = 300, onnx_graphs.DIM
IDS = [f"id{i}" for i in range(ROWS)]
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


def clicks(rows: int = 600) -> pa.Table:
    """Return interactions that train in an instant, in the order of their times."""
    draw = random.Random(0)
    pairs = [(draw.randrange(40), draw.randrange(30)) for _ in range(rows)]
    columns = {"query": [q for q, _ in pairs], "candidate": [f"item{c}" for _, c in pairs]}
    return pa.table({**columns, "time": [1_700_000_000 + 60 * i for i in range(rows)]})


def make_good_files(folder: Path) -> None:
    """Write into the working directory, `folder`, all that commands of the cases read.

    A recipe and its clicks; vectors of two models with ids (`old`, `new`) in Parquet and .npy;
    texts; a consumer's probe; the lineage `l` of two versions of these vectors, with a consumer, a
    filled store `s`, a store `older` with rows of version 0, and a pinned label; and the lineage
    `t` of three trained versions.
    """
    pq.write_table(clicks(), "clicks.parquet")
    (folder / "shop.toml").write_text(RECIPE)
    draw = np.random.default_rng(0)
    old = draw.normal(size=(ROWS, DIM)).astype(np.float32)
    turn, _ = np.linalg.qr(draw.normal(size=(DIM, DIM)))
    for name, values in (("old", old), ("new", (old @ turn).astype(np.float32))):
        write_vectors(Path(f"{name}.parquet"), [(pa.array(IDS), torch.from_numpy(values))])
        np.save(f"{name}.npy", values)
    (folder / "ids.txt").write_text("\n".join(IDS) + "\n")
    pq.write_table(pa.table({"id": IDS, "label": old.sum(axis=1) > 0}), "data.parquet")
    (folder / "plain.onnx").write_bytes(onnx_graphs.plain().SerializeToString())
    (folder / "texts.csv").write_text("id,text\n" + "".join(f"{i},word {i}\n" for i in range(20)))
    for command in (
        "vectors import old.parquet --lineage l",
        "store fill l --store object=older",
        "consumer add l ads --pin v0",
        "vectors align 0 new.parquet --lineage l",
        "store fill l --store object=s",
    ):
        assert exit_code(*command.split()) == 0, command
    shutil.copytree(TRAINED, folder / "t")
