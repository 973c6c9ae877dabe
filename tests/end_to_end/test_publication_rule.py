"""What may be published is the same at every door: files, hand-made artefacts and trained ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.tiny_training import tiny_recipe

import evergram
from evergram.errors import DataError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import align
from evergram.vector_files.open_embeddings import open_embeddings, write_vectors

ROWS, DIM = 300, 8
IDS = pa.array(range(ROWS))
GOOD = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))


def changed(row: slice, factor: float) -> torch.Tensor:
    vectors = GOOD.clone()
    vectors[row] *= factor
    return vectors


# Vectors that nobody could search, and what the refusal names.
BAD = {
    "denormal": (GOOD * 1e-42, f"{ROWS} of {ROWS} are zero"),
    "huge": ((GOOD * 1e37).clamp(-3e38, 3e38), "id 0 has the length"),
    "one is huge": (changed(slice(7, 8), 1e16), "id 7 has the length"),
    "a tenth is zero": (changed(slice(0, 30), 0.0), f"30 of {ROWS} are zero"),
    "all the same": (torch.ones(ROWS, DIM), "all of them are the same"),
    "a line": (torch.arange(ROWS)[:, None] * torch.ones(DIM), "all of them lie on one line"),
}


def published_by_hand(vectors: torch.Tensor, folder: Path) -> None:
    lineage = Lineage.create(folder / "l")
    lineage.publish(Artefact(DIM, {"object": (IDS, vectors)}, None, {"metrics": {}}, {}))


def imported(vectors: torch.Tensor, folder: Path) -> None:
    (folder / "bad.parquet").unlink(missing_ok=True)
    write_vectors(folder / "bad.parquet", [(IDS, vectors)])
    evergram.releasing.import_embeddings(
        open_embeddings(folder / "bad.parquet"), Lineage.create(folder / "l")
    )


def aligned(vectors: torch.Tensor, folder: Path, *, old: bool = False) -> None:
    (folder / "bad.parquet").unlink(missing_ok=True)
    write_vectors(folder / "bad.parquet", [(IDS, vectors)])
    (folder / "good.parquet").unlink(missing_ok=True)
    write_vectors(folder / "good.parquet", [(IDS, GOOD)])
    files = [open_embeddings(folder / name) for name in ("good.parquet", "bad.parquet")]
    first, second = reversed(files) if old else files
    align(first, second, Lineage.create(folder / "l"), max_error=np.inf)


def aligned_to(vectors: torch.Tensor, folder: Path) -> None:
    aligned(vectors, folder, old=True)


DOORS: list[Callable[[torch.Tensor, Path], None]]
DOORS = [published_by_hand, imported, aligned, aligned_to]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_vectors_that_cannot_be_searched_are_published_at_no_door(
    door: Callable[[torch.Tensor, Path], None], tmp_path: Path
) -> None:
    for vectors, named in BAD.values():
        with pytest.raises(DataError) as refused:
            door(vectors, tmp_path)
        # An alignment looks at the objects in common first, and names the file.
        assert named in str(refused.value) or "bad.parquet" in str(refused.value)
        assert not Lineage.exists(tmp_path / "l")


def test_a_trained_version_is_held_to_the_same(tmp_path: Path) -> None:
    trained = evergram.train(tiny_recipe(), progress=False)
    ids, own = trained.block("candidate")
    lineage = Lineage.create(tmp_path / "l")
    for vectors, _ in BAD.values():
        sides = {**trained.embeddings, "candidate": (ids, vectors[: len(ids), : own.shape[1]])}
        with pytest.raises(DataError):
            evergram.publish(lineage, replace(trained, embeddings=sides))
        assert not Lineage.exists(tmp_path / "l")


def test_a_few_zeros_are_published(tmp_path: Path) -> None:
    imported(changed(slice(0, 15), 0.0), tmp_path)
    assert Lineage.open(tmp_path / "l").versions
