"""Making a sidecar: what it is made of, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.retrieval.sidecars.conftest import ROWS, Made
from tests.support.embedding_files import file_of, randn

from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.retrieval.sidecars import make_sidecar as module
from evergram.retrieval.sidecars.make_sidecar import make_sidecar
from evergram.vector_files.open_embeddings import open_embeddings


def test_its_errors_are_those_of_reading_all_objects(made: Made) -> None:
    seen: list[tuple[int, int]] = []
    sidecar = make_sidecar(
        made.lineage,
        open_embeddings(made.file(1)),
        error=0.1,
        progress=lambda *counts: seen.append(counts),
    )
    assert (sidecar.version, sidecar.side, len(sidecar)) == (2, "object", ROWS)
    assert seen[-1] == (ROWS, ROWS)
    assert sidecar.error <= 0.1
    new, old = made.vectors[2].numpy(), made.vectors[1].numpy()
    read = sidecar.read(np.arange(ROWS), new)
    assert sidecar.error == pytest.approx(np.linalg.norm(read - old) / np.linalg.norm(old))
    weight, offset = made.lineage.chain.affine(2, 1)
    back = made.vectors[2].double() @ weight.T + offset
    alone = float((back - made.vectors[1]).norm() / made.vectors[1].norm())
    assert sidecar.way_back_error == pytest.approx(alone)
    fewer = make_sidecar(made.lineage, open_embeddings(made.file(1)), size=sidecar.sidecar.size - 1)
    assert fewer.error > 0.1


def test_few_long_vectors_with_most_of_the_error_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = torch.exp(1.5 * randn(7, 1500, 1))
    meaning = randn(0, 1500, 4)
    old, new = (lengths * (meaning @ randn(n, 4, 8) + randn(n + 2, 1500, 8)) for n in (1, 2))
    lineage = Lineage.create(tmp_path / "line", "line")
    files = [file_of(tmp_path / f"{n}.parquet", v) for n, v in enumerate((old, new))]
    align(files[0], files[1], lineage, AlignSettings("affine"))
    sidecar = make_sidecar(lineage, files[0], size=3)
    weight, offset = lineage.chain.affine(1, 0)
    back = (new.double() @ weight.T + offset - old).norm(dim=1)
    read = sidecar.read(np.arange(1500), new.numpy())
    left = (torch.from_numpy(read).double() - old).norm(dim=1)
    assert sidecar.worse == pytest.approx(float((left > back).double().mean()), abs=0.002)
    assert sidecar.worse > 0.05
    assert "are read worse with codes" in caplog.text


def test_without_bytes_nothing_is_better_or_worse_than_the_way_back(made: Made) -> None:
    sidecar = make_sidecar(made.lineage, open_embeddings(made.file(1)), size=0)
    assert sidecar.worse == 0
    assert sidecar.error == pytest.approx(sidecar.way_back_error, rel=1e-5)


def test_old_vectors_that_are_still_stored_need_no_file(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "line", "line")
    files = [file_of(tmp_path / f"{n}.parquet", randn(n, 900, 4)) for n in (0, 1)]
    # Version 0 stays production, and so stays stored.
    align(
        files[0], files[1], lineage, AlignSettings("affine"), max_error=float("inf"), promote=False
    )
    stored = make_sidecar(lineage, size=3)
    given = make_sidecar(lineage, files[0], size=3)
    assert np.array_equal(stored.codes, given.codes)
    assert stored.ids.equals(given.ids)


def test_a_sample_chooses_the_bits_and_all_objects_are_encoded(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLE", 400 * 10)
    sidecar = make_sidecar(made.lineage, open_embeddings(made.file(1)), size=6)
    assert len(sidecar) == ROWS
    assert sidecar.sidecar.relative_error == pytest.approx(sidecar.error, rel=0.1)
    assert sidecar.sidecar.relative_error != sidecar.error
    again = make_sidecar(made.lineage, open_embeddings(made.file(1)), size=6)
    assert np.array_equal(again.codes, sidecar.codes)


def test_what_cannot_be_made_is_refused(made: Made, tmp_path: Path) -> None:
    old = open_embeddings(made.file(1))
    for sizes in ({}, {"size": 3, "error": 0.1}):
        with pytest.raises(DataError, match="give one of the two"):
            make_sidecar(made.lineage, old, **sizes)  # type: ignore[arg-type]
    with pytest.raises(LineageError, match="no versions"):
        make_sidecar(Lineage.create(tmp_path / "none", "none"), old, size=3)
    with pytest.raises(LineageError, match="needs no sidecar"):
        make_sidecar(made.lineage, old, version=0, size=3)
    with pytest.raises(LineageError, match="no side 'query'"):
        make_sidecar(made.lineage, old, side="query", size=3)
    with pytest.raises(LineageError, match="stored"):
        make_sidecar(made.lineage, open_embeddings(made.file(0)), version=1, size=3)
    with pytest.raises(LineageError, match=r"its dim is 8, not 10"):
        make_sidecar(made.lineage, open_embeddings(made.file(0)), size=3)
    changed = file_of(tmp_path / "changed.parquet", made.vectors[1] + 1, made.ids)
    with pytest.raises(LineageError, match=r"the vector of id '.*' is another"):
        make_sidecar(made.lineage, changed, size=3)
    # Each vector under its neighbour's id, but for those that are compared.
    kept = set(made.lineage.canaries(1)["object"][0].to_pylist())
    moved = [n for n, i in enumerate(made.ids.cast(pa.string()).to_pylist()) if i not in kept]
    rolled = made.vectors[1].clone()
    rolled[moved] = rolled[moved[1:] + moved[:1]]
    with pytest.raises(LineageError, match="the others are other vectors"):
        make_sidecar(made.lineage, file_of(tmp_path / "rolled.parquet", rolled, made.ids), size=3)
    few = [n for n, i in enumerate(made.ids.cast(pa.string()).to_pylist()) if i not in kept]
    few += [n for n in range(ROWS) if n not in few][:19]
    part = file_of(tmp_path / "part.parquet", made.vectors[1][few], made.ids.take(pa.array(few)))
    with pytest.raises(LineageError, match="has 19 of the objects"):
        make_sidecar(made.lineage, part, size=3)
    canaries = set(made.lineage.canaries(1)["object"][0].to_pylist())
    rest = [n for n, i in enumerate(made.ids.cast(pa.string()).to_pylist()) if i not in canaries]
    without = file_of(
        tmp_path / "few.parquet", made.vectors[1][rest], made.ids.take(pa.array(rest))
    )
    with pytest.raises(LineageError, match="none of the"):
        make_sidecar(made.lineage, without, size=3)
