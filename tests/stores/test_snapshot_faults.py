"""A snapshot under what happens to disks and processes: every answer is right, or an error."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import Id, as_dict

from evergram.errors import EvergramError, IntegrityError, StoreError
from evergram.stores.snapshot import snapshot_folder, snapshot_record
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Floats, Hits, Rows, Space

SPACES = {0: Space(0, 4, "sha256:0"), 1: Space(1, 6, "sha256:1")}
ROOT = Path(__file__).parents[2]


def rows(id_type: str, version: int, numbers: range, seed: int = 0) -> Rows:
    ids = pa.array([n if id_type == "int64" else f"id-{n}" for n in numbers])
    drawn = np.random.default_rng([seed, version, numbers.start])
    values = drawn.standard_normal((len(numbers), SPACES[version].dim)).astype(np.float32)
    return Rows(version, ids, values)


def made(folder: Path, id_type: str) -> SnapshotStore:
    """With a file of every kind: batches and their lookup, an index, deltas, deleted ids."""
    store = SnapshotStore.open(str(folder), id_type)
    store.load(SPACES[0], [rows(id_type, 0, range(n, n + 500)) for n in range(0, 3000, 500)])
    indexed = SnapshotStore(folder, index_from=2000)
    indexed.build_index()
    indexed.close()
    store.add_space(SPACES[1])
    for i in range(3):
        store.upsert(rows(id_type, 1, range(40 * i, 40 * i + 60), seed=i))
    store.delete([n if id_type == "int64" else f"id-{n}" for n in range(50, 70)])
    return store


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_folder, "BATCH_BYTES", 1)


def answers(store: SnapshotStore) -> tuple[dict[Id, tuple[int, bytes]], list[Any]]:
    """All that can be asked for."""
    whole = as_dict(store.scan())
    assert as_dict(store.fetch(pa.array(list(whole), store.id_type))) == whole
    return whole, [as_list(hits) for hits in search_all(store)]


def queries() -> dict[int, Floats]:
    drawn = np.random.default_rng(5)
    return {v: drawn.standard_normal((5, s.dim)).astype(np.float32) for v, s in SPACES.items()}


def search_all(store: SnapshotStore) -> list[Hits]:
    return store.search(queries(), 10)


def as_list(hits: Hits) -> list[tuple[Id, float, int]]:
    return list(
        zip(hits.ids.to_pylist(), hits.scores.tolist(), hits.versions.tolist(), strict=True)
    )


@pytest.mark.long
@pytest.mark.parametrize("id_type", ["int64", "string"])
def test_a_writer_killed_at_100_random_moments_loses_nothing(tmp_path: Path, id_type: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.crashing", str(tmp_path / "store"), id_type, "100"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200


@pytest.mark.long
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("id_type", ["int64", "string"])
def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path, id_type: str) -> None:
    with made(tmp_path / "store", id_type) as store:
        truth = answers(store)
    files = [p for p in (tmp_path / "store").rglob("*") if p.is_file() and p.name != ".lock"]
    assert {p.suffix for p in files} == {".json", ".arrow", ".lookup", ".faiss"}
    draw = random.Random(0)
    noticed = 0
    for path in files:
        content = path.read_bytes()
        for place in draw.sample(range(len(content)), 60):
            flipped = bytearray(content)
            flipped[place] ^= 1 << draw.randrange(8)
            path.write_bytes(flipped)
            try:
                with SnapshotStore.open(str(tmp_path / "store")) as store:
                    assert answers(store) == truth
            except IntegrityError:
                noticed += 1
        path.write_bytes(content)
    # Blanks in store.json alone are of no matter.
    assert noticed >= 60 * (len(files) - 1)
    with SnapshotStore.open(str(tmp_path / "store")) as store:
        assert answers(store) == truth


@pytest.mark.usefixtures("small_batches")
def test_a_bit_flipped_under_an_open_store_gives_no_wrong_row(tmp_path: Path) -> None:
    """Row by row: a vector that is given out is that of its id. Text is left out: offsets that are
    damaged under Arrow can end the process."""
    store = made(tmp_path / "store", "int64")
    whole, _ = answers(store)
    ids = pa.array(list(whole))
    draw = random.Random(0)
    noticed = 0
    for path in sorted((tmp_path / "store" / "segments").glob("*.[al]*")):
        size = path.stat().st_size
        for _ in range(40):
            with flipped_in_place(path, draw.randrange(size), 1 << draw.randrange(8)):
                try:
                    for key, row in as_dict(store.fetch(ids)).items():
                        assert whole[key] == row
                    for query, hits in enumerate(search_all(store)):
                        for key, score, version in as_list(hits):
                            there, raw = whole[key]
                            vector = np.frombuffer(raw, dtype=np.float32)
                            assert there == version
                            wanted = float(vector @ queries()[version][query])
                            assert score == pytest.approx(wanted, abs=1e-5)
                except IntegrityError:
                    noticed += 1
    # Ids that follow each other are not read, so a flip among them changes nothing.
    assert noticed > 60
    assert answers(store)[0] == whole


@contextmanager
def flipped_in_place(path: Path, place: int, bit: int) -> Iterator[None]:
    def flip() -> None:
        with path.open("rb+") as file:
            file.seek(place)
            before = file.read(1)[0]
            file.seek(place)
            file.write(bytes([before ^ bit]))

    flip()
    try:
        yield
    finally:
        flip()


@pytest.mark.parametrize("what", ["remove", "cut", "empty"])
@pytest.mark.usefixtures("small_batches")
def test_a_file_that_is_gone_or_cut_is_noticed(tmp_path: Path, what: str) -> None:
    made(tmp_path / "store", "int64").close()
    for path in (tmp_path / "store" / "segments").iterdir():
        content = path.read_bytes()
        if what == "remove":
            path.unlink()
        else:
            path.write_bytes(content[: len(content) // 2] if what == "cut" else b"")
        with pytest.raises(IntegrityError, match=path.name):
            SnapshotStore.open(str(tmp_path / "store"))
        path.write_bytes(content)
    SnapshotStore.open(str(tmp_path / "store")).close()


def test_no_room_at_any_call_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore.open(str(tmp_path / "store"), "int64")
    for space in SPACES.values():
        store.add_space(space)
    # So many that a merge follows.
    for i in range(7):
        store.upsert(rows("int64", 0, range(10 * i, 10 * i + 10)))
    failing = Failing(monkeypatch)
    refused = 0
    for call in range(60):
        before = answers(store)
        failing.at = call
        reason = refusal(store, rows("int64", 0, range(60, 75), seed=call))
        if failing.at >= 0:
            break
        failing.at = None
        refused += reason is not None
        # The merge that comes after the acknowledgement may find no room; the write did then.
        assert reason is None or "No space left on device" in reason
        assert (answers(store) == before) == (reason is not None and "as it was" in reason)
        with SnapshotStore.open(str(tmp_path / "store")) as again:
            assert answers(again) == answers(store)
    assert refused > 5
    failing.at = None
    store.upsert(rows("int64", 1, range(5)))
    assert store.count()[1] == 5
    assert not list((tmp_path / "store").rglob("*.part"))


def refusal(store: SnapshotStore, given: Rows) -> str | None:
    """What a write is refused with."""
    try:
        store.upsert(given)
    except StoreError as error:
        return str(error)
    return None


class Failing:
    """Every way in which a snapshot writes; the call number `at` finds no room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = None
        for owner, name in (
            (snapshot_record.HashedFile, "write"),
            (snapshot_record.HashedFile, "__init__"),
            (os, "fsync"),
            (Path, "replace"),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.at is not None:
                self.at -= 1
                if self.at == -1:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        return call


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The system itself refuses: `ulimit -f`."""
    store = SnapshotStore.open(str(tmp_path / "store"), "int64")
    for space in SPACES.values():
        store.add_space(space)
    store.upsert(rows("int64", 0, range(10)))
    before = answers(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        with pytest.raises(StoreError, match=r"cannot be written: .*; it is as it was"):
            store.upsert(rows("int64", 0, range(5000)))
        with pytest.raises(StoreError, match="cannot be written"):
            store.load(
                SPACES[0], [rows("int64", 0, range(n, n + 900)) for n in range(0, 9000, 900)]
            )
        assert answers(store) == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.upsert(rows("int64", 0, range(5000)))
    assert store.count() == {0: 5000}


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    done = subprocess.run(
        ["mount", *options, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")
def test_a_disk_that_is_full_and_has_room_again(tmp_path: Path) -> None:
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        ballast = tmp_path / "ballast"
        ballast.write_bytes(bytes(300_000))
        store = SnapshotStore.open(str(tmp_path / "store"), "int64")
        for space in SPACES.values():
            store.add_space(space)
        written = 0
        reason = None
        while reason is None and written < 1_000_000:
            reason = refusal(store, rows("int64", 0, range(written, written + 3000)))
            written += 0 if reason else 3000
        assert reason is not None
        assert "cannot be written: No space left on device; it is as it was. Free" in reason
        assert store.count() == {0: written}
        before = answers(store)
        with SnapshotStore.open(str(tmp_path / "store")) as again:
            assert answers(again) == before
        ballast.unlink()
        store.upsert(rows("int64", 0, range(written, written + 3000)))
        assert store.count() == {0: written + 3000}
        store.close()


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")
def test_a_folder_that_may_only_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    made(folder, "int64").close()
    with mounted(folder, "--bind", str(folder)):
        remount = ["mount", "-o", "remount,ro,bind", str(folder)]
        subprocess.run(remount, check=True, capture_output=True)
        reads_and_refuses(folder, "Read-only file system")
    with SnapshotStore.open(str(folder)) as store:
        store.upsert(rows("int64", 0, range(3)))


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is for who is not root."""
    folder = tmp_path / "store"
    made(folder, "int64").close()
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    reads_and_refuses(folder, "Permission denied")


def reads_and_refuses(folder: Path, reason: str) -> None:
    with SnapshotStore.open(str(folder), "int64") as store:
        before = answers(store)
        for write in (
            lambda: store.upsert(rows("int64", 0, range(3))),
            lambda: store.delete([1]),
            lambda: store.load(SPACES[0], [rows("int64", 0, range(3))]),
            lambda: store.add_space(Space(9, 3, "sha256:9")),
        ):
            with pytest.raises(StoreError, match=f"cannot be written: {reason}"):
                write()
        assert answers(store) == before
    with pytest.raises(EvergramError):
        SnapshotStore.open(str(folder / "other"), "int64")
