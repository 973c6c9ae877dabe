"""An export is what its suffix says and overwrites nothing; lists and checks say what they read."""

from __future__ import annotations

import csv
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from tests.support.command import Command
from tests.support.golden import TRAINED

from evergram.lineage.lineage import Lineage

Read = tuple[list[Any], np.ndarray]


def of_table(table: pa.Table) -> Read:
    return table["id"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)


def read_npy(path: Path) -> Read:
    lines = path.with_suffix(".ids.txt").read_text().splitlines()
    return [int(line) for line in lines], np.load(path, allow_pickle=False)


def read_csv(path: Path) -> Read:
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    return [int(line[0]) for line in lines], np.array([line[1:] for line in lines], np.float32)


# Readers that are not ours.
READ: dict[str, Callable[[Path], Read]] = {
    ".parquet": lambda path: of_table(pq.read_table(path)),
    ".arrow": lambda path: of_table(pa.ipc.open_file(path).read_all()),
    ".npy": read_npy,
    ".safetensors": lambda path: (load_file(path)["id"].tolist(), load_file(path)["vector"]),
    ".csv": read_csv,
}


@pytest.mark.parametrize(
    ("suffix", "command"), [*((suffix, "export") for suffix in READ), (".parquet", "transform")]
)
def test_what_is_exported_is_what_the_suffix_says(
    trained_lineage: Path, tmp_path: Path, evergram: Command, suffix: str, command: str
) -> None:
    ids, vectors = Lineage.open(trained_lineage).view(1).embeddings("candidate")
    out, stored = tmp_path / f"out{suffix}", Lineage.open(trained_lineage).stored("candidate")
    ask = f"vectors export {trained_lineage} {out} --side candidate --as 1"
    if command == "transform":
        ask = f"vectors transform {stored} --lineage {trained_lineage} --as 1 --out {out}"
    assert evergram(ask).code == 0
    written = {p.name: p.read_bytes() for p in tmp_path.glob("out*")}
    for name in list(written):  # is not written over, whatever it is
        assert "is there already" in evergram.refused(ask)
        assert {p.name: p.read_bytes() for p in tmp_path.glob("out*")} == written
        (tmp_path / name).write_text("mine")
        written[name] = b"mine"
    assert evergram(f"{ask} --force").code == 0
    written_ids, written_vectors = READ[suffix](out)
    assert written_ids == ids.to_pylist()
    np.testing.assert_array_equal(written_vectors, vectors.numpy())


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
    assert "versions/2/metrics.json" in listed["checked"]
    assert "versions/2/encoder.safetensors" not in listed["checked"]


def test_check_says_which_files_it_has_compared(evergram: Command, tmp_path: Path) -> None:
    line = tmp_path / "l"
    shutil.copytree(TRAINED, line)
    files = (p for p in line.rglob("*") if p.is_file() and not p.name.startswith("."))
    everything = sorted(p.relative_to(line).as_posix() for p in files)
    assert sorted(evergram.json(f"lineage check {line}")["checked"]) == everything
    # It is true: any of them that is changed is refused.
    victim = line / random.Random(0).choice(everything)
    victim.write_bytes(victim.read_bytes()[:-1] + b"#")
    assert evergram(f"lineage check {line}").code == 2
