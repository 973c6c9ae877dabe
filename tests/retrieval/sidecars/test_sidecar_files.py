"""Files and folders of sidecars: which are used, which are refused, and what changes are seen."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

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
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.vector_files.open_embeddings import open_embeddings


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
        (made.file(0), "is no sidecar of a version"),
        (tmp_path / "none", "cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            SidecarFiles(paths).read(made.lineage)
    for depth in (0, -3, True, 1.5, "7"):
        with pytest.raises(DataError, match=f"depth of sidecars is {depth!r}; it must be"):
            SidecarFiles(second, cast(Any, depth))
    with pytest.raises(DataError, match="is empty"):
        SidecarFiles([""])


def test_a_version_without_a_sidecar_is_logged(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    files = SidecarFiles([*made.sidecars.values()])
    files.read(made.lineage)
    assert not caplog.records
    for version, other in ((1, 2), (2, 1)):
        caplog.clear()
        files = SidecarFiles(made.sidecars[version])
        for _ in range(3):
            files.read(made.lineage)
        # Once, and no problem: nobody asked for more.
        (record,) = caplog.records
        assert f"Version {other} has no sidecar of side 'object'" in record.getMessage()
        assert not files.problems


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
    assert "version 2 of side 'object', read as version 1 by 6 bytes" in caplog.text
    caplog.clear()
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert not caplog.records  # nothing is news
    # Another file of that name, one that is no sidecar, and one that is none by its name.
    shutil.copy(made.sidecars[1], tmp_path / "2.safetensors")
    shutil.copy(made.file(0), tmp_path / "old.safetensors")
    shutil.copy(made.file(0), tmp_path / "old.parquet")
    stamps.append(files.stamps())
    read = files.read(made.lineage)
    assert read.apply(SIDE, 0, [1])
    assert not read.apply(SIDE, 1, [2])
    (problem,) = files.problems
    assert "old.safetensors is no sidecar" in problem
    assert caplog.text.count(problem) == 1
    (tmp_path / "2.safetensors").unlink()
    stamps.append(files.stamps())
    assert not files.read(made.lineage).apply(SIDE, 0, [1])
    assert "2.safetensors is gone, and not used any more (version 1 of" in caplog.text
    assert len(set(stamps)) == len(stamps)


def test_a_folder_that_is_gone_is_not_an_empty_one(made: Made, tmp_path: Path) -> None:
    folder, away = tmp_path / "sidecars", tmp_path / "away"
    folder.mkdir()
    shutil.copy(made.sidecars[2], folder / "2.safetensors")
    files = SidecarFiles(folder)
    stamps = [files.stamps()]
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    folder.rename(away)
    stamps.append(files.stamps())
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    (problem,) = files.problems
    assert problem.endswith("What was read of it before is used on.")
    away.rename(folder)
    stamps.append(files.stamps())
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert not files.problems
    assert stamps[0] != stamps[1] != stamps[2]
    with pytest.raises(DataError, match="cannot be read"):
        SidecarFiles(tmp_path / "nowhere").read(made.lineage)


def test_what_cannot_be_read_is_opened_once(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    whole = VersionSidecar.open

    def counted(path: Path) -> VersionSidecar:
        opened.append(path.name)
        return whole(path)

    monkeypatch.setattr(VersionSidecar, "open", counted)
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    shutil.copy(made.sidecars[2], good)
    bad.write_bytes(b"[" * 200_000)
    files = SidecarFiles(tmp_path)
    for _ in range(3):
        assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert sorted(opened) == [bad.name, good.name]
    assert len(files.problems) == 1
    # What was good is used on until it is good again.
    content = good.read_bytes()
    good.write_bytes(content[: len(content) // 2])
    for _ in range(3):
        assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert len(opened) == 3
    assert len(files.problems) == 2
    good.write_bytes(content)
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert len(files.problems) == 1


def test_a_file_of_another_lineage_is_refused_again_and_again(made: Made, tmp_path: Path) -> None:
    files = SidecarFiles(made.sidecars[2])
    empty = Lineage.create(tmp_path / "empty", "empty")
    for _ in range(2):
        with pytest.raises(IntegrityError, match="of another lineage"):
            files.read(empty)


def test_what_is_no_whole_file_is_left_out(made: Made, tmp_path: Path) -> None:
    whole = made.sidecars[2].read_bytes()
    for name, content in (
        ("empty", b""),
        ("start", whole[:5]),
        ("most", whole[:-1]),
        ("text", b"[]" * 40),
    ):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "nowhere")
    files = SidecarFiles([tmp_path])
    assert not files.read(made.lineage).apply(SIDE, 1, [2])
    assert len(files.problems) == 7
    for path in (tmp_path / "pipe.safetensors", tmp_path / "start.safetensors"):
        with pytest.raises(DataError, match="give a file that"):
            SidecarFiles(path).read(made.lineage)
    (tmp_path / "most.safetensors").write_bytes(whole)
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert len(files.problems) == 6


def test_a_file_that_shrinks_after_it_was_read_ends_nothing(made: Made, tmp_path: Path) -> None:
    """Where a file is mapped, reading past its end ends the process."""
    path = Path(shutil.copy(made.sidecars[2], tmp_path / "2.safetensors"))
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from evergram.retrieval.sidecars.version_sidecar import VersionSidecar\n"
        "sidecar = VersionSidecar.open(Path(sys.argv[1]))\n"
        "Path(sys.argv[1]).write_bytes(b'')\n"
        "print(int(sidecar.codes.sum()))\n"
    )
    expected = int(VersionSidecar.open(path).codes.sum())
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, f"{expected}\n"), result.stderr


def test_of_two_files_of_one_step_one_is_used(made: Made, tmp_path: Path) -> None:
    old = made.file(1)
    for name, size in (("first", 2), ("second", 5)):
        path = tmp_path / f"{name}.safetensors"
        make_sidecar(made.lineage, open_embeddings(old), size=size).save(path)
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    os.utime(first, ns=(1, 1))
    true = made.vectors[1].numpy()

    def error_of(files: SidecarFiles) -> float:
        with closing(Reader.open(made.lineage, sidecars=files)) as reader:
            return error(reader.embed(made.ids, 1).vectors, true)

    with_two, with_five = error_of(SidecarFiles(first)), error_of(SidecarFiles(second))
    assert with_five < 0.8 * with_two
    # The later of a folder, and one that is named.
    files = SidecarFiles([tmp_path])
    assert error_of(files) == with_five
    assert f"{first} is of side 'object' and version 2, as {second} is" in files.problems[0]
    files = SidecarFiles([tmp_path, first])
    assert error_of(files) == with_two
    assert files.problems[0].startswith(str(second))
    # One file by several names is one.
    first.unlink()
    (tmp_path / "latest.safetensors").symlink_to(second)
    above = tmp_path / "sub" / ".."
    (tmp_path / "sub").mkdir()
    files = SidecarFiles([f"{tmp_path}/", f"{tmp_path}/./", above, second, above / second.name])
    assert error_of(files) == with_five
    assert not files.problems
    shutil.copy(second, first)
    with pytest.raises(DataError, match=f"{first} and {second} are both of side 'object'"):
        SidecarFiles([first, second]).read(made.lineage)


def test_files_that_are_gone_are_forgotten(made: Made, tmp_path: Path) -> None:
    files = SidecarFiles(tmp_path)
    path = Path(shutil.copy(made.sidecars[2], tmp_path / "0.safetensors"))
    for number in range(1, 5):
        path = path.rename(tmp_path / f"{number}.safetensors")
        assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert list(files._opened) == [path]


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
    named = SidecarFiles(path)
    with pytest.raises(IntegrityError, match=r"version 1 of .* was withdrawn; remove it"):
        named.read(lineage)
    with pytest.raises(IntegrityError, match=r"version 1 of .* was withdrawn; remove it"):
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


def test_what_is_not_required_may_come_later(made: Made, tmp_path: Path) -> None:
    named, folder = tmp_path / "2.sidecar", tmp_path / "more"
    files = SidecarFiles([named, folder], required=False)
    assert not files.read(made.lineage).apply(SIDE, 0, [1, 2])
    for path, problem in zip((named, folder), files.problems, strict=True):
        assert problem.startswith(str(path))
        assert problem.endswith("It is not used.")
    stamps = files.stamps()
    shutil.copy(made.sidecars[2], named)
    folder.mkdir()
    shutil.copy(made.sidecars[1], folder / "1.safetensors")
    assert files.stamps() != stamps
    sidecars = files.read(made.lineage)
    assert not files.problems
    assert sidecars.apply(SIDE, 1, [2])
    assert sidecars.apply(SIDE, 0, [1])
    # What is wrong with it now is a problem, and no error.
    named.write_bytes(b"half")
    files.read(made.lineage)
    assert len(files.problems) == 1
