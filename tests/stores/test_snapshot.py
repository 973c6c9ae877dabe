"""A snapshot: files that one process writes and all read whole, an index that is nearly exact, and
what happens to disks and processes: every answer is right, or an error."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from filelock import FileLock
from hypothesis import given, settings
from tests.support.agreement import Id, as_dict, same_hits, same_rows
from tests.support.dictionary_store import DictionaryStore
from tests.support.planted import planted, recall

from evergram.errors import DataError, EvergramError, FormatError, IntegrityError, StoreError
from evergram.stores import snapshot_store
from evergram.stores import store as store_rows
from evergram.stores.snapshot_store import SnapshotStore, write_record
from evergram.stores.store import ID_TYPES, Floats, Hits, Rows, Space

SPACES = {0: Space(0, 8, "sha256:0"), 1: Space(1, 6, "sha256:1")}
ROOT = Path(__file__).parents[2]


def names(numbers: Sequence[int], id_type: str) -> list[Id]:
    return [n if id_type == "int64" else f"id-{n}" for n in numbers]


def rows(numbers: Sequence[int], version: int = 0, seed: int = 0, id_type: str = "int64") -> Rows:
    draw = np.random.default_rng([seed, version, len(numbers)])
    vectors = draw.standard_normal((len(numbers), SPACES[version].dim)).astype(np.float32)
    return Rows(version, pa.array(names(numbers, id_type), ID_TYPES[id_type]), vectors)


def queries(count: int = 5) -> dict[int, Floats]:
    draw = np.random.default_rng(5)
    return {v: draw.standard_normal((count, s.dim)).astype(np.float32) for v, s in SPACES.items()}


def files(store: SnapshotStore, kind: str = "") -> list[str]:
    folder = Path(store.address.removeprefix("snapshot:")) / "segments"
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(kind))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    with SnapshotStore.open(str(tmp_path / "store"), "int64") as made:
        for space in SPACES.values():
            made.add_space(space)
        yield made


def test_another_reader_sees_each_write(store: SnapshotStore, tmp_path: Path) -> None:
    with SnapshotStore.open(str(tmp_path / "store")) as other:
        for i in range(10):
            assert (other.count(), other.fetch([i])) == ({0: i} if i else {}, [])
            store.upsert(rows([i]))
            assert (other.count(), len(other.fetch([i]))) == ({0: i + 1}, 1)


@pytest.mark.parametrize("ids", ["dense", "sparse", "texts", "texts of two hashes"])
def test_ids_in_any_order_and_again_are_read_as_by_the_oracle(
    ids: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_type, count = ("int64", 4000) if "texts" not in ids else ("string", 4000)
    if ids == "texts of two hashes":
        monkeypatch.setattr(store_rows, "text_key", lambda text: len(text) % 2)
        count = 200
    # Rows are compared and merged a few at a time.
    monkeypatch.setattr(snapshot_store, "LEAST_ROWS", 1)
    monkeypatch.setattr(snapshot_store, "MOST_ROWS", 32)
    monkeypatch.setattr(snapshot_store, "BLOCK", 100)
    order = np.random.default_rng(0).permutation(count) * (10**15 if ids == "sparse" else 1)
    parts = [order[: count // 2], order[count // 3 :], order[:9]]
    blocks = [rows(part.tolist(), 0, i, id_type) for i, part in enumerate(parts)]
    oracle = DictionaryStore(id_type)
    with SnapshotStore.open(str(tmp_path / "store"), id_type) as store:
        for each in (store, oracle):
            assert each.load(SPACES[0], blocks) == sum(map(len, blocks))
            each.add_space(SPACES[1])
            each.upsert(rows(order[20:30].tolist(), 1, 0, id_type))
            each.delete(names(order[::3].tolist(), id_type))
        same_rows(store, oracle)
        among = names([*order[:400].tolist(), -7], id_type)
        assert as_dict(store.fetch(among)) == as_dict(oracle.fetch(among))
        for k in (1, 20, 3000):
            same_hits(store, oracle, queries(2), k)
        same_hits(store, oracle, queries(1), 20, ids=among)


def test_keys_stay_as_they_are_in_files() -> None:
    """They are stored, so a later Evergram must compute the same."""
    assert store_rows.keys_of(pa.array(["", "id-7"])).tolist() == [
        13020603013274838756,
        5555235785907067145,
    ]


def test_files_stay_few_and_rows_that_were_written_again_leave_the_disk(
    store: SnapshotStore,
) -> None:
    oracle, draw, most = DictionaryStore(), np.random.default_rng(0), 0
    oracle.add_space(SPACES[0])
    for seed in range(70):
        written = rows(draw.choice(2000, 5, replace=False).tolist(), 0, seed)
        store.upsert(written)
        oracle.upsert(written)
        most = max(most, len(files(store, ".vectors")))
    assert 4 <= most <= 16  # three of each of five sizes, and the one that was just written
    same_hits(store, oracle, {0: queries()[0]}, 50)
    for seed in range(3):
        store.load(SPACES[0], [rows(range(2000), 0, seed)])
        assert len(files(store)) == 2
    store.upsert(rows(range(1200)))
    store.delete(range(1500))
    assert store.count() == {0: 500}
    stored = sum(path.stat().st_size for path in Path(store.absolute_address[9:]).rglob("*.*"))
    assert stored < 2 * 2000 * 4 * SPACES[0].dim
    store.delete(range(2000))
    assert (store.count(), len(files(store))) == ({}, 0)


@pytest.mark.parametrize("indexed", [False, True])
def test_deleted_rows_are_compared_only_while_they_are_few(
    store: SnapshotStore, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or, where there is an index, which a rewritten segment has no more, while they are half."""
    store.upsert(rows(range(320)))
    if indexed:
        monkeypatch.setitem(sys.modules, "faiss", None)  # it is not read
        monkeypatch.setattr(snapshot_store, "INDEXED_FROM", 300)
        monkeypatch.setattr(snapshot_store, "build", index_of_one_list)
        assert store.build_index() == [0]
    most = 160 if indexed else 20
    store.delete(range(most))
    assert len(files(store, "dead")) == 1
    store.delete([most])
    assert files(store, "dead") == []
    assert store.count() == {0: 319 - most}


def index_of_one_list(folder: Path, segment: snapshot_store.Segment) -> snapshot_store.IndexRecord:
    (folder / "new").write_bytes(b"an index")
    return snapshot_store.IndexRecord(snapshot_store.named_by_digest(folder / "new", "faiss"), 1, 1)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**31),
    st.lists(st.integers(0, 9_000), min_size=1, max_size=3),
    st.sampled_from([1, 3, 40]),
    st.sampled_from(["normal", "few values", "ascending"]),
    st.floats(0, 1),
)
def test_the_best_rows_are_those_of_a_sort(
    seed: int, sizes: list[int], k: int, kind: str, gone: float
) -> None:
    draw, blocks = np.random.default_rng(seed), []
    for size in sizes:
        scores = draw.standard_normal((2, size)).astype(np.float32)
        if kind == "few values":
            scores = np.round(scores)
        if kind == "ascending":
            scores.sort(axis=1)
        scores[draw.random((2, size)) < gone] = -np.inf
        blocks.append(scores)
    everything = np.concatenate(blocks, axis=1)
    starts = np.cumsum([0, *sizes])
    scored = [(b, np.arange(len(b[0])) + at) for b, at in zip(blocks, starts, strict=False)]
    found = snapshot_store.best_rows(2, k, scored)
    for best, scores in zip(found, everything, strict=True):
        ranked = np.sort(scores[scores > -np.inf])[::-1][:k]
        assert len(set(best.tolist())) == len(best)
        np.testing.assert_array_equal(np.sort(scores[best])[::-1], ranked)


def test_files_that_are_not_listed_leave_before_more_are_written(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in SPACES:
        for start in (100 * version, 100 * version + 50):
            store.upsert(rows(range(start, start + 50), version, start))
    (tmp_path / "store" / "segments" / f"{'0' * 64}.vectors").write_bytes(b"of a killed load")
    seen, write = [], snapshot_store.write_segment

    def look_and_write(*args: Any) -> Any:
        seen.append(len(files(store, ".vectors")))
        return write(*args)

    monkeypatch.setattr(snapshot_store, "write_segment", look_and_write)
    monkeypatch.setattr("evergram.stores.snapshot_store.INDEXED_FROM", 1)
    store.build_index()
    assert seen == [4, 3], "two of each version, and then one of the first"


def test_a_row_whose_products_pass_float32_takes_no_place(store: SnapshotStore) -> None:
    """It was among the best, with a score of NaN."""
    query = np.full((1, 8), 3, np.float32)
    store.upsert(rows(range(100)))
    (before,) = store.search({0: query}, 5)
    assert before.scores.min() > 0
    huge = np.zeros((1, 8), np.float32)
    huge[0, :2] = 3e38, -3e38
    store.upsert(Rows(0, pa.array([100]), huge))
    for among in (None, range(101)):
        assert store.search({0: query}, 5, ids=among)[0].ids.equals(before.ids)
    # Nor does one hide the others from a query that is as long.
    for hits in store.search({0: np.concatenate([huge, -huge])}, 5):
        assert len(hits) == 5
        assert not np.isnan(hits.scores).any()
    (all_hits,) = store.search({0: query}, 101)
    assert all_hits.scores[all_hits.ids.to_pylist().index(100)] == 0


def test_rows_of_a_version_that_comes_meanwhile_are_counted_or_not(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.upsert(rows(range(5)))
    current = SnapshotStore._current
    with SnapshotStore(tmp_path / "store") as other, monkeypatch.context() as during:

        def look_and_load(self: SnapshotStore) -> Any:
            held = current(self)
            if self is store:
                block = Rows(7, pa.array([70, 71]), np.ones((2, 8), np.float32))
                other.load(Space(7, 8, "sha256:7"), [block])
            return held

        during.setattr(SnapshotStore, "_current", look_and_load)
        assert store.count() == {0: 5}
    assert store.count() == {0: 5, 7: 2}


def test_a_second_writer_is_refused(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "WAIT", 0.05)
    with closing(SnapshotStore(tmp_path / "store")) as impatient:
        with FileLock(tmp_path / "store" / ".lock"):
            assert impatient.count() == {}
            with pytest.raises(StoreError, match="Another process is writing"):
                impatient.upsert(rows([0]))
        impatient.upsert(rows([0]))
    assert store.count() == {0: 1}


def test_the_blocks_of_a_load_cannot_write_to_the_store(store: SnapshotStore) -> None:
    def blocks() -> Iterator[Rows]:
        yield rows(range(4000))
        store.upsert(rows([9]))

    with pytest.raises(StoreError, match="is being loaded"):
        store.load(SPACES[0], blocks())
    with pytest.raises(DataError, match="version 1"):
        store.load(SPACES[0], [rows([1], 1)])
    assert (store.count(), files(store)) == ({}, [])


@pytest.mark.parametrize("renamed", [False, True], ids=["before", "after"])
def test_an_interrupt_leaves_no_record_without_its_files(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    def interrupted(path: Path, record: Any) -> None:
        if renamed:
            write_record(path, record)
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(snapshot_store, "write_record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.upsert(rows([1, 2]))
    with SnapshotStore.open(str(tmp_path / "store")) as again:
        assert again.count() == ({0: 2} if renamed else {})
        assert len(files(again)) == 2 * renamed
        # What a killed writer left is removed by the next writer, and by no reader.
        (tmp_path / "store" / "segments" / "left.vectors").write_text("half")
        again.count()
        assert "left.vectors" in files(again)
        again.upsert(rows([3]))
        assert "left.vectors" not in files(again)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"store": {}, "sha256": "x"}', '{"sha256": "x", "store": []}']
)
def test_a_damaged_record_and_one_of_a_later_format_are_refused(
    store: SnapshotStore, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "FORMAT_VERSION", 9)
    store.upsert(rows([0]))
    monkeypatch.undo()
    with pytest.raises(FormatError, match="format_version 9; this Evergram reads 1;"):
        SnapshotStore.open(str(tmp_path / "store"))
    (tmp_path / "store" / "store.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"store\.json is damaged"):
        SnapshotStore.open(str(tmp_path / "store"))


# The index, which is not needed.


def filled(folder: Path, vectors: Floats) -> SnapshotStore:
    space = Space(0, vectors.shape[1], "sha256:0")
    with SnapshotStore.open(str(folder), "int64") as made:
        made.load(space, [Rows(0, pa.array(range(len(vectors))), vectors)])
    return SnapshotStore(folder)


def test_an_index_is_built_once_and_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, asked = planted(1_500, 32)
    with filled(tmp_path / "store", vectors) as store:
        assert store.build_index() == []  # too few rows
        monkeypatch.setattr("evergram.stores.snapshot_store.INDEXED_FROM", 1_000)
        # Without faiss search is exact, and building says what is missing.
        with monkeypatch.context() as during:
            during.setitem(sys.modules, "faiss", None)
            with pytest.raises(DataError, match=r"pip install 'evergram\[faiss\]'"):
                store.build_index()
        assert store.build_index() == [0]
        assert len(files(store, ".faiss")) == 1
        stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
        assert store.build_index() == [0]
        assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
        store.close()
        monkeypatch.setitem(sys.modules, "faiss", None)
        assert recall(store, 0, vectors, asked, 10) == 1.0


def test_no_index_is_built_that_would_not_be_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.snapshot_store.INDEXED_FROM", 1_000)
    # Without clusters the best are in all lists.
    vectors = np.random.default_rng(0).standard_normal((1_000, 32)).astype(np.float32)
    with filled(tmp_path / "store", vectors) as store:
        assert store.build_index() == []
        assert not files(store, ".faiss")
        assert recall(store, 0, vectors, vectors[:50], 10) == 1.0


# Disks and processes.


def made(folder: Path, id_type: str) -> SnapshotStore:
    """With a file of every kind: of a load, an index, writes after it, deleted ids."""
    store = SnapshotStore.open(str(folder), id_type)
    blocks = [rows(range(n, n + 500), 0, n, id_type) for n in range(0, 3000, 500)]
    store.load(SPACES[0], blocks)
    with pytest.MonkeyPatch.context() as during:
        during.setattr("evergram.stores.snapshot_store.INDEXED_FROM", 2_000)
        store.build_index()
    store.add_space(SPACES[1])
    for i in range(3):
        store.upsert(rows(range(40 * i, 40 * i + 60), 1, i, id_type))
    store.delete(names(range(50, 70), id_type))
    return store


def answers(store: SnapshotStore) -> tuple[dict[Id, tuple[int, bytes]], list[Any]]:
    """All that can be asked for."""
    whole = as_dict(store.scan())
    assert as_dict(store.fetch(pa.array(list(whole), store.id_type))) == whole
    return whole, [as_list(hits) for hits in store.search(queries(), 10)]


def as_list(hits: Hits) -> list[tuple[Id, float, int]]:
    return list(
        zip(hits.ids.to_pylist(), hits.scores.tolist(), hits.versions.tolist(), strict=True)
    )


@pytest.mark.long
@pytest.mark.parametrize("id_type", ID_TYPES)
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
@pytest.mark.parametrize("id_type", ID_TYPES)
def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path, id_type: str) -> None:
    with made(tmp_path / "store", id_type) as store:
        truth = answers(store)
    paths = [p for p in (tmp_path / "store").rglob("*") if p.is_file() and p.name != ".lock"]
    draw, noticed, tried = random.Random(0), 0, 0
    for path in paths:
        content = path.read_bytes()
        for place in draw.sample(range(len(content)), min(60, len(content))):
            tried += 1
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
    assert noticed >= tried - 60
    with SnapshotStore.open(str(tmp_path / "store")) as store:
        assert answers(store) == truth


def test_a_bit_flipped_under_an_open_store_gives_no_wrong_row(tmp_path: Path) -> None:
    """Row by row: a vector that is given out is that of its id. Text is left out: offsets that are
    damaged under Arrow can end the process."""
    store = made(tmp_path / "store", "int64")
    whole, _ = answers(store)
    ids = pa.array(list(whole))
    draw, noticed = random.Random(0), 0
    for path in sorted((tmp_path / "store" / "segments").glob("*.[va]*")):
        size = path.stat().st_size
        for _ in range(40):
            with flipped_in_place(path, draw.randrange(size), 1 << draw.randrange(8)):
                try:
                    for key, row in as_dict(store.fetch(ids)).items():
                        assert whole[key] == row
                    for query, hits in enumerate(store.search(queries(), 10)):
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


def test_a_file_that_is_gone_or_cut_is_noticed(tmp_path: Path) -> None:
    made(tmp_path / "store", "int64").close()
    for path in (tmp_path / "store" / "segments").iterdir():
        content = path.read_bytes()
        for left in (None, len(content) // 2, 0):
            path.unlink()
            if left is not None:
                path.write_bytes(content[:left])
            with pytest.raises(IntegrityError, match=path.name):
                SnapshotStore.open(str(tmp_path / "store"))
            path.write_bytes(content)
    SnapshotStore.open(str(tmp_path / "store")).close()


def test_no_room_at_any_call_leaves_the_store_as_it_was(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many that a merge follows.
    for i in range(7):
        store.upsert(rows(range(10 * i, 10 * i + 10)))
    failing = Failing(monkeypatch)
    refused = 0
    for call in range(60):
        before, reason = answers(store), ""
        failing.at = call
        try:
            store.upsert(rows(range(60, 75), 0, call))
        except StoreError as error:
            reason = str(error)
        if failing.at >= 0:
            break
        failing.at = None
        refused += bool(reason)
        # The merge that comes after the acknowledgement may find no room; the write did then.
        assert not reason or "No space left on device" in reason
        assert (answers(store) == before) == ("as it was" in reason)
        with SnapshotStore.open(str(tmp_path / "store")) as again:
            assert answers(again) == answers(store)
    assert refused > 5
    failing.at = None
    store.upsert(rows(range(5), 1))
    assert store.count()[1] == 5
    assert not list((tmp_path / "store").rglob("*.part"))


class Failing:
    """Every way in which a snapshot writes; the call number `at` finds no room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = None
        for owner, name in (
            (snapshot_store, "write_segment"),
            (snapshot_store, "_reordered"),
            (snapshot_store, "digest_of"),
            (pa.ipc, "new_file"),
            (Path, "write_bytes"),
            (snapshot_store, "write_bytes"),
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


def test_a_folder_without_permission_is_read_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is for who is not root."""
    folder = tmp_path / "store"
    made(folder, "int64").close()
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with SnapshotStore.open(str(folder), "int64") as store:
        before = answers(store)
        for write in (
            lambda: store.upsert(rows(range(3))),
            lambda: store.delete([1]),
            lambda: store.load(SPACES[0], [rows(range(3))]),
            lambda: store.add_space(Space(9, 3, "sha256:9")),
        ):
            with pytest.raises(StoreError, match="cannot be written: Permission denied"):
                write()
        assert answers(store) == before
    with pytest.raises(EvergramError):
        SnapshotStore.open(str(folder / "other"), "int64")
