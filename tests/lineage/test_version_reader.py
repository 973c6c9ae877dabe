"""Published files with the right hash and contents that do not fit are an error."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.artefacts import shop_of_three
from tests.support.forging import forge
from tests.support.lineages import vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.data.pair_hash import TrainedPairs
from evergram.errors import EvergramError, IntegrityError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage


def rewritten(lineage: Lineage, name: str, content: Callable[[Path], object]) -> Path:
    """A file of version 1 changed, and its hash in the manifest with it."""
    path = lineage.path / "versions/1" / name
    content(path)

    def change(facts: dict[str, Any]) -> None:
        facts["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()

    forge(lineage.path / "versions/1/manifest.json", change)
    return lineage.path


def tensors(**changed: torch.Tensor | None) -> Callable[[Path], None]:
    """A file of tensors with some others in their place, or without them."""

    def write(path: Path) -> None:
        changed_tensors = {**load_file(path), **changed}
        save_file({k: v for k, v in changed_tensors.items() if v is not None}, path)

    return write


def column(name: str, values: list[Any] | None) -> Callable[[Path], None]:
    """A Parquet file with another column in its place, or without it."""

    def write(path: Path) -> None:
        table = pq.read_table(path)
        place = table.column_names.index(name)
        table = table.remove_column(place)
        if values is not None:
            values_of_all = pa.array(values * len(table))
            table = table.add_column(place, name, values_of_all)
        pq.write_table(table, path)

    return write


NAN = torch.full((6, 8), torch.nan)


FORGED: list[tuple[str, Callable[[Path], object], Callable[[Lineage], Any]]] = [
    ("transform.safetensors", tensors(weight=NAN), lambda line: line.chain),
    ("transform.safetensors", tensors(weight=None), lambda line: line.chain),
    ("transform.safetensors", lambda path: path.write_bytes(b"x"), lambda line: line.chain),
    ("forward.safetensors", tensors(offset=None), lambda line: line.forward(0, 1)),
    ("forward.safetensors", tensors(weight=torch.ones(3)), lambda line: line.forward(0, 1)),
    (
        "moments.safetensors",
        tensors(**{"object.count": torch.ones(2)}),
        lambda line: line.moments(1),
    ),
    ("moments.safetensors", tensors(**{"object.mean": None}), lambda line: line.moments(1)),
    ("canary.parquet", column("side", None), lambda line: line.canaries(1)),
    ("canary.parquet", column("side", [[1]]), lambda line: line.canaries(1)),
    ("canary.parquet", column("id", [[1]]), lambda line: line.canaries(1)),
    ("canary.parquet", column("vector", [[1.0]]), lambda line: line.canaries(1)),
    ("canary.parquet", lambda path: path.write_bytes(b"x"), lambda line: line.canaries(1)),
    ("trained_pairs.parquet", column("pair", None), lambda line: line.pair_history),
    ("trained_pairs.parquet", column("pair", [[1]]), lambda line: line.pair_history),
    ("trained_pairs.parquet", column("pair", ["5"]), lambda line: line.pair_history),
    ("metrics.json", lambda path: path.write_text("[]"), lambda line: line.metrics(1)),
    ("metrics.json", lambda path: path.write_text("{"), lambda line: line.metrics(1)),
    ("metrics.json", lambda path: path.write_bytes(b"\xff"), lambda line: line.metrics(1)),
    (
        "metrics.json",
        lambda path: path.write_text('{"metrics": {"model": {"a": []}}}'),
        lambda line: line.metrics(1),
    ),
    ("metrics.json", lambda path: path.write_text('{"probes": [1]}'), lambda line: line.metrics(1)),
]


@pytest.mark.parametrize(
    ("name", "content", "read"), FORGED, ids=[f"{n} {i}" for i, (n, *_) in enumerate(FORGED)]
)
def test_contents_that_do_not_fit_are_an_error(
    tmp_path: Path,
    name: str,
    content: Callable[[Path], object],
    read: Callable[[Lineage], Any],
) -> None:
    lineage = Lineage.create(tmp_path / "line")
    ids = pa.array(range(300))
    for version in range(2):
        back = None if not version else LinearTransform.from_matrix(torch.eye(6, 8))
        vectors = vectors_of(version)
        artefact = Artefact(
            dim=vectors.shape[1],
            embeddings={"object": (ids, vectors)},
            transform=back,
            metrics={"metrics": {"model": {}}},
            recipe={},
            canaries={"object": (ids[:20], vectors[:20])},
            trained=("line", TrainedPairs(np.array([7 + version], np.uint32))),
        )
        publish_next(lineage, artefact)
    read(Lineage.open(lineage.path))
    path = rewritten(lineage, name, content)
    with pytest.raises(EvergramError, match=name):
        read(Lineage.open(path))


FILES = [
    "versions/1/encoder.safetensors",
    "versions/1/vocabularies.parquet",
    "versions/2/transform.safetensors",
    "versions/1/metrics.json",
    "embeddings/2/query.parquet",
]


def read_everything(path: Path) -> None:
    lineage = Lineage.open(path)
    for n in range(3):
        lineage.encoder_parts(n)
        lineage.metrics(n)
        lineage.view(n).embeddings("query")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_noticed(lineage: Lineage, name: str, damage: str) -> None:
    path = lineage.path / name
    content = bytearray(path.read_bytes())
    read_everything(lineage.path)
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(IntegrityError, match=path.name):
        read_everything(lineage.path)


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")
