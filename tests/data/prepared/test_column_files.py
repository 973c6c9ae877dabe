"""Files of columns: written once, verified when they are read, released when they were used."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.prepared import prepared
from tests.support.resident import on_linux, resident_bytes
from tests.support.streamed import generated

from evergram.data.corpus import Corpus
from evergram.data.holdout import rules
from evergram.data.prepared import mapped_corpus, pair_index
from evergram.data.prepared.cache_folder import derived_folder, read_derived
from evergram.data.prepared.column_file import (
    ColumnFile,
    check_rows,
    check_sha256,
    new_column,
    release,
    sha256_of,
)
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.prepared.pair_index import PairIndex, write_index
from evergram.data.prepared.part_writer import WrittenPart, write_part
from evergram.data.prepared.prepared_corpus import load_prepared
from evergram.errors import DataError


def test_a_column_that_was_written_in_pieces_is_what_numpy_reads(tmp_path: Path) -> None:
    path, values = tmp_path / "a.npy", np.arange(10, dtype="<i4")
    with new_column(path, values.dtype, 10) as file:
        file.write(values[:4].tobytes())
        file.write(values[4:].tobytes())
    assert np.load(path).tolist() == list(range(10))
    column = ColumnFile.open(path, 10)
    assert column.mapped().tolist() == list(range(10))
    assert column.mapped(at_random=True)[5:8].tolist() == [5, 6, 7]


@on_linux
def test_pages_are_released_and_come_back(tmp_path: Path) -> None:
    path, values = tmp_path / "a.npy", np.arange(1 << 20)
    np.save(path, values)
    column = ColumnFile.open(path, len(values)).mapped()
    for view in (column, column[7:], np.load(path, mmap_mode="r")):
        assert np.array_equal(view[-5:], values[-5:])
        assert int(view.sum()) > 0
        assert resident_bytes(path) >= 7 << 20
        release([view])
        assert resident_bytes(path) == 0
    assert np.array_equal(column, values)


def test_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with pytest.raises(DataError, match="cannot be read"):
        ColumnFile.open(path, 4)
    np.save(path, np.zeros(4))
    cut = path.read_bytes()[:-8]
    np.save(path, np.array([{}, 1, 2, 3], dtype=object))
    pickled = path.read_bytes()
    for content in (cut, pickled, b"", b"\x93NUMPY\x01\x00\x04\x00((((", b"{}"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            ColumnFile.open(path, 4)
    for values in (np.zeros(5), np.zeros((4, 1))):
        np.save(path, values)
        with pytest.raises(DataError, match=r"a\.npy has the shape .* 4 numbers"):
            ColumnFile.open(path, 4)
    np.save(path, np.zeros(4))
    with pytest.raises(DataError, match="holds float64, and int32 is expected"):
        ColumnFile.open(path, None, np.dtype("<i4"))


def test_a_changed_byte_is_refused_where_the_sha256_is_known(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1000))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256_of(path) == digest
    column = ColumnFile.open(path, 1000, sha256=digest)
    column.verify("Stop.")
    content = bytearray(path.read_bytes())
    for place in (len(content) - 1, 500, 128):
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=rf"a\.npy is not as it was .*with {digest[:8]} .*Stop."
        ):
            column.verify("Stop.")
        content[place] ^= 1
    ColumnFile.open(path, 1000).verify("Stop.")  # one that was written without it
    path.unlink()
    with pytest.raises(DataError, match=r"a\.npy cannot be read: No such file .* Stop\."):
        column.verify("Stop.")
    check_sha256(path, None, "Stop.")


def test_rows_outside_of_a_side_are_refused() -> None:
    check_rows(torch.tensor([0, 4], dtype=torch.int32), "query", 5, "Stop.")
    check_rows(torch.tensor([], dtype=torch.int32), "query", 5, "Stop.")
    for row in (-1, 5):
        with pytest.raises(DataError, match=f"'query' .*{row}.* there are 5; .* Stop."):
            check_rows(torch.tensor([0, row], dtype=torch.int32), "query", 5, "Stop.")


def test_what_was_not_finished_is_not_there(tmp_path: Path) -> None:
    def dies(part: Path) -> None:
        (part / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        derived_folder(tmp_path / "a", dies)
    assert not (tmp_path / "a").exists()
    derived_folder(tmp_path / "a", lambda part: (part / "x").touch())
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x"]


def test_of_two_that_need_it_one_writes(tmp_path: Path) -> None:
    wrote: list[Path] = []
    start = threading.Barrier(4)

    def need() -> None:
        start.wait()
        derived_folder(tmp_path / "a", wrote.append)

    threads = [threading.Thread(target=need) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrote) == 1


def test_what_is_damaged_is_written_anew_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[Path] = []

    def write(part: Path) -> None:
        written.append(part)
        (part / "x").write_text("whole")

    def read(folder: Path) -> str:
        text = (folder / "x").read_text()
        if text != "whole":
            raise DataError(f"x is {text}; do this.")
        return text

    assert read_derived(tmp_path / "a", write, read) == "whole"
    (tmp_path / "a" / "x").write_text("half")
    assert [read_derived(tmp_path / "a", write, read) for _ in range(2)] == ["whole", "whole"]
    assert len(written) == 2
    assert "written anew: x is half." in caplog.text


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (DataError("The data is damaged."), "damaged"),
        (OSError(28, "No space left"), "No space left"),
    ],
)
def test_what_cannot_be_derived_says_why(error: Exception, why: str, tmp_path: Path) -> None:
    def write(part: Path) -> None:
        raise error

    with pytest.raises(DataError, match=why):
        read_derived(tmp_path / "a", write, lambda folder: folder)
    assert not (tmp_path / "a").exists()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), min_size=2, max_size=80),
    bucket=st.integers(1, 100),
    block=st.integers(1, 100),
)
def test_it_knows_every_pair_and_no_other(
    pairs: list[tuple[int, int]],
    bucket: int,
    block: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setattr(pair_index, "BUCKET", bucket)
    monkeypatch.setattr(mapped_corpus, "PAIRS_AT_ONCE", block)
    corpus = Corpus.of(pairs)
    folder = tmp_path_factory.mktemp("index")
    mapped = prepared(corpus, folder / "p", 0.5)
    (folder / "index").mkdir()
    write_index(mapped, folder / "index")
    index = PairIndex.open(mapped, folder / "index")
    rows = list(
        zip(corpus.column("query").tolist(), corpus.column("candidate").tolist(), strict=True)
    )
    assert index.distinct == len(set(rows))
    queries, candidates = len(corpus.queries), len(corpus.candidates)
    every = torch.cartesian_prod(torch.arange(queries), torch.arange(candidates))
    has = index.has(every[:, 0], every[:, 1]).tolist()
    assert has == [tuple(pair) in set(rows) for pair in every.tolist()]
    some = torch.arange(0, queries, 2)
    query, candidate = index.pairs_of(some)
    assert list(zip(query.tolist(), candidate.tolist(), strict=True)) == sorted(
        r for r in rows if r[0] % 2 == 0
    )
    assert sorted(p.name for p in (folder / "index").iterdir()) == ["candidate.npy", "index.json"]


def test_values_and_weights_stay_with_their_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_index, "BUCKET", 50)
    corpus = generated(600)
    index = prepared(corpus, tmp_path / "p").index
    own = torch.repeat_interleave(torch.arange(len(corpus.queries)), index.offsets.diff())
    columns = (own, *(index.columns[n] for n in ("candidate", "value", "weight")))
    names = ("query", "candidate", "value", "weight")
    there = {tuple(row) for row in zip(*(corpus.column(n).tolist() for n in names), strict=True)}
    assert {tuple(row) for row in zip(*(c.tolist() for c in columns), strict=True)} == there


@pytest.mark.parametrize("summary", ["", "{}", '{"distinct": 0}', '{"distinct": 601}'])
def test_a_damaged_summary_is_written_anew(
    summary: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mapped = prepared(generated(600), tmp_path / "p")
    distinct = mapped.index.distinct
    (mapped.index.folder / "index.json").write_text(summary)
    with pytest.raises(DataError, match=r"index\.json"):
        PairIndex.open(mapped, mapped.index.folder)
    assert load_prepared(tmp_path / "p").index.distinct == distinct
    assert "written anew" in caplog.text


def damage_rows(path: Path) -> None:
    rows = np.load(path)
    rows[0] = 0x7FFFFFFF
    np.save(path, rows)


def test_a_damaged_column_is_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mapped = prepared(generated(600), tmp_path / "p")
    path = mapped.index.folder / "candidate.npy"
    content = path.read_bytes()
    damage_rows(path)
    with pytest.raises(DataError, match=r"candidate\.npy is not as it was written"):
        PairIndex.open(mapped, path.parent)
    assert load_prepared(tmp_path / "p").index.distinct == mapped.index.distinct
    assert path.read_bytes() == content
    assert caplog.text.count("written anew") == 1


def test_an_index_that_is_damaged_while_it_is_open_is_refused(tmp_path: Path) -> None:
    mapped = prepared(generated(600), tmp_path / "p")
    index = mapped.index
    # Damage that is there when the index is opened is noticed then, see below.
    damage_rows(index.folder / "candidate.npy")
    query = torch.nonzero(index.offsets.diff()).flatten()[:1]
    with pytest.raises(DataError, match=r"names the rows .*2147483647 and there are .* Remove"):
        index.pairs_of(query)
    with pytest.raises(DataError, match=r"Remove .*by-query"):
        index.at("candidate", torch.tensor([0]))


def test_a_part_is_written_with_its_rows_and_counts(tmp_path: Path) -> None:
    corpus = generated(400)
    mapped = prepared(corpus, tmp_path / "p", 0.5)
    write_part(mapped, rules.of_at_least(0.8), tmp_path)
    kept = corpus.column("value") >= 0.8
    part = WrittenPart.open(mapped, tmp_path)
    assert part.size == int(kept.sum()) > 0
    for side in ("query", "candidate"):
        rows, counts = part.rows[side], part.counts[side]
        before, own = corpus.column(side)[kept], torch.from_numpy(np.load(tmp_path / f"{side}.npy"))
        assert own.dtype == torch.int32
        assert torch.equal(rows[own.long()], before)
        assert torch.equal(rows, torch.unique(before))
        assert torch.equal(counts, torch.unique(before, return_counts=True)[1])
    for name in ("value", "weight", "time"):
        assert np.load(tmp_path / f"{name}.npy").tolist() == corpus.column(name)[kept].tolist()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def other_type(path: Path) -> None:
    np.save(path, np.load(path).astype(np.int16))


def shorter(path: Path) -> None:
    np.save(path, np.load(path)[1:])


def without_order(path: Path) -> None:
    np.save(path, np.load(path)[::-1])


def negative(path: Path) -> None:
    np.save(path, -np.load(path) - 1)


def one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)


def no_digests(path: Path) -> None:
    path.write_text(path.read_text().replace('"sha256": {', '"sha256": [{').replace("}}", "}]}"))


DAMAGES = [
    ("part.json", truncated),
    ("part.json", no_digests),
    ("candidate.npy", truncated),
    ("candidate.npy", one_byte),
    ("time.npy", other_type),
    ("time.npy", Path.unlink),
    ("query-rows.npy", shorter),
    ("query-rows.npy", without_order),
    ("query-rows.npy", negative),
    ("candidate-counts.npy", negative),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_part_is_written_anew(
    name: str, damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rule = rules.of_at_least(0.5)
    mapped = prepared(generated(400), tmp_path / "p")
    part = mapped.where(rule)
    assert isinstance(part, MappedCorpus)
    before = part.in_memory()
    (folder,) = (path.parent for path in mapped.cache.rglob("part.json"))
    content = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder / name)
    with pytest.raises(DataError):
        WrittenPart.open(mapped, folder)
    again = load_prepared(tmp_path / "p").where(rule)
    assert isinstance(again, MappedCorpus)
    assert again.in_memory().interactions.equals(before.interactions)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == content
    assert caplog.text.count("are written anew") == 1
    load_prepared(tmp_path / "p").where(rule)
    assert caplog.text.count("are written anew") == 1
