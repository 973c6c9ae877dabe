"""Files and folders of sidecars: which are used, which are refused, and what changes are seen."""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from tests.retrieval.sidecars.conftest import Made
from tests.retrieval.sidecars.test_reading import SIDE, error
from tests.support.embedding_files import file_of, id_names, randn

from evergram.errors import DataError, IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.retrieval.reader import Reader
from evergram.retrieval.sidecars.make_sidecar import make_sidecar
from evergram.retrieval.sidecars.sidecar_files import SidecarFiles


def test_sidecars_of_others_are_refused(made: Made, tmp_path: Path) -> None:
    empty = Lineage.create(tmp_path / "empty", "empty")
    other = Lineage.create(tmp_path / "other", "other")
    files = [file_of(tmp_path / f"{n}.parquet", randn(n, 900, 4)) for n in range(3)]
    for past, new in pairwise(files):
        align(past, new, other, AlignSettings("affine"), max_error=float("inf"))
    second = made.sidecars[2]
    for lineage in (empty, other):
        with pytest.raises(IntegrityError, match="from version 2 to 1 of another lineage than"):
            SidecarFiles(second).read(lineage)
    for paths, message in (
        ([second, second], "Two sidecars are of one side"),
        (made.file(0), "is no sidecar of a version"),
        (tmp_path / "none", "cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            SidecarFiles(paths).read(made.lineage)
    for depth in (0, -3):
        with pytest.raises(DataError, match=f"cannot read {depth} hits"):
            SidecarFiles(second, depth)


def test_a_production_without_a_sidecar_is_logged(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    SidecarFiles(made.sidecars[2]).read(made.lineage)
    assert not caplog.records
    SidecarFiles([made.sidecars[1]]).read(made.lineage)
    assert "Version 2 has no sidecar of side object" in caplog.text


def test_a_folder_has_what_is_in_it_now(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = SidecarFiles(str(tmp_path))
    stamps = [files.stamps()]
    assert not files.read(made.lineage).apply(SIDE, 1, [2])
    shutil.copy(made.sidecars[2], tmp_path / "2.safetensors")
    stamps.append(files.stamps())
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert "2.safetensors: version 2 of side object is read as version 1 by 6 bytes" in caplog.text
    caplog.clear()
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert not caplog.records  # it was not opened again
    # Another file of that name, one that is no sidecar, and one that is none by its name.
    shutil.copy(made.sidecars[1], tmp_path / "2.safetensors")
    shutil.copy(made.file(0), tmp_path / "old.safetensors")
    shutil.copy(made.file(0), tmp_path / "old.parquet")
    stamps.append(files.stamps())
    read = files.read(made.lineage)
    assert read.apply(SIDE, 0, [1])
    assert not read.apply(SIDE, 1, [2])
    assert "old.safetensors is no sidecar" in caplog.text
    (tmp_path / "2.safetensors").unlink()
    stamps.append(files.stamps())
    assert not files.read(made.lineage).apply(SIDE, 0, [1])
    assert len(set(stamps)) == len(stamps)
    # A folder that is gone is not an empty one.
    shutil.rmtree(tmp_path)
    for look in (files.stamps, lambda: files.read(made.lineage)):
        with pytest.raises(DataError, match="cannot be read"):
            look()


def test_a_named_file_that_was_read_may_go(made: Made, tmp_path: Path) -> None:
    path = shutil.copy(made.sidecars[2], tmp_path / "2.sidecar")
    files = SidecarFiles(path)
    files.read(made.lineage)
    stamps = files.stamps()
    Path(path).unlink()
    assert files.stamps() != stamps
    assert files.read(made.lineage).apply(SIDE, 1, [2])


def test_a_withdrawn_version_ends_its_sidecars_and_nothing_else(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "line", "line")
    meaning = randn(0, 900, 6)
    files = [
        file_of(tmp_path / f"{n}.parquet", meaning @ randn(n, 6, 5) + 0.3 * randn(n + 5, 900, 5))
        for n in (1, 2, 3)
    ]
    align(files[0], files[1], lineage, AlignSettings("affine"), promote=False)
    path = tmp_path / "1.sidecar"
    make_sidecar(lineage, files[0], size=4).save(path)
    reader = Reader.open(lineage, sidecars=[path])
    lineage.withdraw(1, "wrong")
    with pytest.raises(IntegrityError, match="withdrawn"):
        Reader.open(Lineage.open(lineage.path), sidecars=[path])
    with closing(reader), closing(reader.carried(Lineage.open(lineage.path))) as after:
        assert len(after.embed(id_names(900), 0).vectors) == 900
    # The version after it follows the one before, and so does its sidecar.
    again = Lineage.open(lineage.path)
    align(files[0], files[2], again, AlignSettings("affine"))
    made = make_sidecar(again, files[0], size=4)
    assert (made.version, made.target) == (2, 0)
    made.save(path)
    old = (meaning @ randn(1, 6, 5) + 0.3 * randn(6, 900, 5)).numpy()
    with closing(Reader.open(again, sidecars=[path])) as reader:
        assert error(reader.embed(id_names(900), 0).vectors, old) == pytest.approx(made.error)
