"""An export is what its suffix says, and writes over nothing unasked: promise 6."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from tests.support.command import Command

from evergram.lineage.lineage import Lineage


def read_parquet(path: Path) -> tuple[list[Any], np.ndarray]:
    table = pq.read_table(path)
    return table["id"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)


def read_arrow(path: Path) -> tuple[list[Any], np.ndarray]:
    with pa.OSFile(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    return table["id"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)


def read_npy(path: Path) -> tuple[list[Any], np.ndarray]:
    lines = path.with_suffix(".ids.txt").read_text().splitlines()
    return [int(line) for line in lines], np.load(path, allow_pickle=False)


def read_safetensors(path: Path) -> tuple[list[Any], np.ndarray]:
    tensors = load_file(path)
    return tensors["id"].tolist(), tensors["vector"]


def read_csv(path: Path) -> tuple[list[Any], np.ndarray]:
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    return [int(line[0]) for line in lines], np.array([line[1:] for line in lines], np.float32)


READ = {
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".npy": read_npy,
    ".safetensors": read_safetensors,
    ".csv": read_csv,
}


@pytest.mark.parametrize(
    ("suffix", "command"), [*((suffix, "export") for suffix in READ), (".parquet", "transform")]
)
def test_6_what_is_exported_is_what_the_suffix_says(
    trained_lineage: Path, tmp_path: Path, evergram: Command, suffix: str, command: str
) -> None:
    """By readers that are not ours; and nothing is written over without --force."""
    ids, vectors = Lineage.open(trained_lineage).view(1).embeddings("candidate")
    out = tmp_path / f"out{suffix}"
    arguments: tuple[object, ...] = (
        "vectors",
        "export",
        trained_lineage,
        out,
        "--side",
        "candidate",
        "--as",
        1,
    )
    if command == "transform":
        file = Lineage.open(trained_lineage).stored("candidate")
        arguments = (
            "vectors",
            "transform",
            file,
            "--lineage",
            trained_lineage,
            "--as",
            1,
            "--out",
            out,
        )
    assert evergram(*arguments).code == 0

    def check() -> None:
        written_ids, written_vectors = READ[suffix](out)
        assert written_ids == ids.to_pylist()
        np.testing.assert_array_equal(written_vectors, vectors.numpy())

    check()
    written = {p.name: p.read_bytes() for p in tmp_path.glob("out*")}
    assert "is there already and is not written over; give another name" in evergram.refused(
        *arguments
    )
    assert {p.name: p.read_bytes() for p in tmp_path.glob("out*")} == written
    out.write_text("mine")
    assert f"{out} is there already" in evergram.refused(*arguments)
    assert out.read_text() == "mine"
    assert evergram(*arguments, "--force").code == 0
    check()


def test_6_a_suffix_that_is_not_known_is_refused(
    trained_lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    for name in ("out.txt", "out", "out.pkl"):
        sentence = evergram.refused(
            "vectors", "export", trained_lineage, tmp_path / name, "--side", "candidate"
        )
        assert "the known ones end in .parquet" in sentence
    assert not list(tmp_path.glob("out*"))
