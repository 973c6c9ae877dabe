"""Prepared folders as they are loaded: the record, the mapped corpus, and what is damaged."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.prepared import (
    assert_same,
    generated,
    on_linux,
    prepared,
    resident_bytes,
    write_prepared,
)

from evergram.data import (
    Corpus,
    Split,
    given_split,
    prepare,
    random_split,
    time_split,
    window_split,
)
from evergram.data import corpus as in_memory
from evergram.data import split as rules
from evergram.data.corpus import PairBlock, PairRule
from evergram.data.prepared import mapped_corpus
from evergram.data.prepared.mapped_corpus import MappedCorpus, load_prepared
from evergram.data.prepared.prepare import NAME, release
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import HeldOut, PairHash, TrainedPairs, known_pairs
from evergram.errors import DataError
from evergram.evaluation.ranking import relevance_of
from evergram.evaluation.ranking import test_relevance as relevance_of_test
from evergram.training.resuming import corpus_digest


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_corpus, "PAIRS_AT_ONCE", 100)
    monkeypatch.setattr(mapped_corpus, "BUCKET", 64)
    monkeypatch.setattr(mapped_corpus, "IN_MEMORY", 300)
    monkeypatch.setattr(in_memory, "KEYS_AT_ONCE", 7)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prepared(generated(700), tmp_path_factory.mktemp("whole") / "p")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda v: v.pop("fingerprint"), "fingerprint"),
        (lambda v: v.update(fingerprint="../../../tmp"), "fingerprint is '../../../tmp'"),
        (lambda v: v.update(interactions=6), "60 entities, 700 interactions"),
        (lambda v: v["columns"].pop("query"), "the columns candidate, value"),
        (lambda v: v["sides"].pop("query"), "the sides candidate"),
        # What the files do not have.
        (lambda v: v["sides"]["query"].update(entities=61), "query.arrow has 60 entities"),
        (lambda v: v["sides"]["query"].update(features=["age"]), "query_count, age"),
        (
            lambda v: v["columns"].update(weight="float64"),
            "type float32, but should be a column of",
        ),
    ],
)
def test_a_record_that_cannot_be_used_is_named(
    change: Callable[[dict[str, Any]], Any], named: str, tmp_path: Path, whole: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "p")
    values = json.loads((folder / NAME).read_text())
    change(values)
    (folder / NAME).write_text(json.dumps(values))
    with pytest.raises(DataError, match=re.escape(named)) as caught:
        load_prepared(folder)
    assert str(folder) in str(caught.value)


def test_what_is_no_record(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(DataError, match=r"no prepared\.json.*evergram prepare SOURCE"):
            load_prepared(path)
    for content in (b"[1", b'{"name": "\xff"}', b"[" * 100_000, b"[1]"):
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(DataError, match=r"prepared\.json (is damaged|cannot be read)"):
            load_prepared(tmp_path)
    later = json.loads((whole / NAME).read_text()) | {"format_version": 2, "columns": "other"}
    (tmp_path / NAME).write_text(json.dumps(later))
    with pytest.raises(DataError, match="format_version is 2"):
        load_prepared(tmp_path)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        load_prepared(tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path, place: int = -4) -> None:
    """Change a bit: of the last number, one that is as likely as the one that was there."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def numbers(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Return a function that changes the numbers of a column's file."""
    return lambda path: np.save(path, change(np.load(path)))


def with_one(place: int, value: int) -> Callable[[Path], None]:
    return numbers(lambda rows: np.where(np.arange(len(rows)) == place, value, rows))


other_type = numbers(lambda rows: rows.astype(np.int16))
shorter = numbers(lambda rows: rows[1:])
negative = numbers(lambda rows: -rows - 1)
pickled = numbers(lambda rows: np.array([{}], dtype=object))
huge = with_one(0, 0x7FFFFFFF)


@pytest.mark.parametrize("damage", [cut, shorter, pickled, Path.unlink, Path.touch, "{}"])
def test_a_damaged_column_is_named(
    damage: Callable[[Path], None] | str, tmp_path: Path, whole: Path
) -> None:
    path = shutil.copytree(whole, tmp_path / "p") / "time.npy"
    if damage is Path.touch:
        path.unlink()
    _ = path.write_text(damage) if isinstance(damage, str) else damage(path)
    with pytest.raises(DataError, match=r"time\.npy (cannot be read|has the shape \(699,\))"):
        load_prepared(path.parent)


def test_changed_entities_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    prepare(pa.table({"query": ["ann", "ben"], "candidate": [1, 1]}), folder)
    path = folder / "query.arrow"
    flipped(path, path.read_bytes().index(b"annben") + 2)
    with pytest.raises(
        DataError, match=r"query\.arrow has changed since .* Prepare the data again"
    ):
        load_prepared(folder)


@pytest.mark.parametrize(
    ("name", "place"), [("query", -4), ("time", -4), ("query", 700), ("candidate", 128)]
)
def test_a_changed_byte_is_refused_before_anything_is_written(
    name: str, place: int, tmp_path: Path
) -> None:
    folder = tmp_path / "p"
    prepare(generated(700).interactions, folder)
    path = folder / f"{name}.npy"
    assert len(load_prepared(folder).where(rules.first(400))) == 400
    flipped(path, place)
    mapped = load_prepared(folder)
    for _ in range(2):
        with pytest.raises(DataError, match=rf"{name}\.npy has changed since .*restore the file"):
            mapped.where(rules.first(300))
    assert len(list(mapped.cache.rglob("time.npy"))) == 1
    if name != "time":  # held-out pairs are read from the columns, also where the part is there
        with pytest.raises(DataError, match=rf"{name}\.npy has changed since"):
            load_prepared(folder).where(rules.first(400))
    flipped(path, place)
    assert len(load_prepared(folder).where(rules.first(300))) == 300


def test_a_folder_is_the_corpus_that_was_written(whole: Path) -> None:
    mapped = load_prepared(whole)
    assert_same(generated(700), mapped)
    # The columns are mapped and not copied.
    assert str(whole / "query.npy") in Path("/proc/self/maps").read_text()
    assert mapped.interactions["query"].type == pa.int32()


def test_sides_may_share_their_ids(tmp_path: Path) -> None:
    features = {"id": ["a", "b"], "topic": [["x"], ["x", "y"]]}
    corpus = Corpus.of(
        [("a", "b"), ("b", "c"), ("b", "a")],
        shared_ids=True,
        query_features=features,
        candidate_features=features,
    )
    mapped = prepared(corpus, tmp_path / "p")
    assert_same(corpus, mapped)
    assert mapped.candidates.vocabulary is mapped.queries.vocabulary


def assert_same_split(one: Split, other: Split) -> None:
    assert_same(one.training, other.training)
    for name in ("selection", "test"):
        a, b = getattr(one, name), getattr(other, name)
        assert torch.equal(a.query, b.query)
        assert torch.equal(a.candidate, b.candidate)
    for name in ("unknown_queries", "trained_before", "in_training", "untested"):
        assert getattr(one, name) == getattr(other, name)
    first, second = (
        (relevance_of(s.training, s.selection), relevance_of_test(s)) for s in (one, other)
    )
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.queries, b.queries)
        assert torch.equal(a.targets, b.targets)
        assert torch.equal(a.seen_offsets, b.seen_offsets)
        for start, end in zip(a.seen_offsets[:-1], a.seen_offsets[1:], strict=True):
            assert torch.equal(a.seen[start:end].sort().values, b.seen[start:end].sort().values)


HELD = HeldOut("salt")
TRAINED = HeldOut("salt", TrainedPairs.of_corpus(generated(200, seed=3), "salt"))
PAPER = HeldOut("salt", selection="paper")
TEST = pa.table({"query": [1, 2, 3, 999, 5], "candidate": [4, 5, 6, 7, 999]})
SPLITS: list[Callable[[Corpus], Split]] = [
    lambda c: random_split(c, share=0.2, held_out=HELD),
    lambda c: random_split(c, share=0.3, held_out=TRAINED),
    lambda c: random_split(c, share=0.3, held_out=PAPER),
    lambda c: time_split(c, share=0.7, until=0.9, held_out=HELD),
    lambda c: time_split(c, share=0.5, until=1, held_out=PAPER),
    lambda c: window_split(c, last=RollingWindow.parse("10 %"), held_out=HELD),
    lambda c: given_split(c, TEST, share=0.1, held_out=HELD),
]


@pytest.mark.parametrize("split", SPLITS)
def test_splits_are_those_of_the_corpus_in_memory(
    split: Callable[[Corpus], Split], tmp_path: Path
) -> None:
    corpus = generated(1500)
    one, other = split(corpus), split(prepared(corpus, tmp_path / "p"))
    assert_same_split(one, other)
    assert isinstance(other.training, MappedCorpus)
    assert (one.final is None) == (other.final is None)
    if one.final is not None and other.final is not None:
        assert_same_split(one.final(), other.final())


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("abxy"), st.just(1.0)), min_size=8
    ),
    shared=st.booleans(),
    bucket=st.sampled_from([1, 7, 100]),
    block=st.sampled_from([3, 10, 100]),
    data=st.data(),
)
def test_any_corpus_is_restricted_and_knows_its_pairs_as_in_memory(
    rows: list[tuple[str, str, float]],
    shared: bool,
    bucket: int,
    block: int,
    data: st.DataObject,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setattr(mapped_corpus, "BUCKET", bucket)
    monkeypatch.setattr(mapped_corpus, "PAIRS_AT_ONCE", block)
    corpus = Corpus.of(rows, shared_ids=shared)
    mapped = prepared(corpus, tmp_path_factory.mktemp("p") / "p")
    assert_same(corpus, mapped)
    queries, candidates = (torch.arange(-1, len(s)) for s in (corpus.queries, corpus.candidates))
    every = torch.cartesian_prod(queries, candidates).T
    assert torch.equal(corpus.has_pairs(*every), mapped.has_pairs(*every))
    known = [tuple(p.tolist()) for p in torch.stack(mapped.pairs_of(queries[1::2])).T]
    own = torch.stack([corpus.column("query"), corpus.column("candidate")]).T.tolist()
    assert known == sorted(tuple(p) for p in own if p[0] in queries[1::2])
    number = data.draw(st.integers(0, len(rows)))
    for rule in (rules.first(number), ~rules.first(number)):
        one, other = corpus.where(rule), mapped.where(rule)
        assert_same(one, other)
        if len(one):
            again = rules.first(max(1, len(one) // 2))
            assert_same(one.where(again), other.where(again))


def test_values_and_weights_stay_with_their_pairs(tmp_path: Path) -> None:
    corpus = generated(600)
    index = prepared(corpus, tmp_path / "p").index
    own = torch.repeat_interleave(torch.arange(len(corpus.queries)), index.offsets.diff())
    names = ("candidate", "value", "weight")
    expected = zip(*(corpus.column(n).tolist() for n in ("query", *names)), strict=True)
    read = zip(own.tolist(), *(index.columns[n].tolist() for n in names), strict=True)
    assert set(read) == set(expected)


def test_pairs_sorted_on_disk_are_those_sorted_in_memory(tmp_path: Path) -> None:
    corpus = generated(600)
    mapped = prepared(corpus, tmp_path / "p")
    for side, other in (("query", "candidate"), ("candidate", "query")):
        ours, theirs = (each.sorted_by(side, ["value", "weight"]) for each in (mapped, corpus))
        assert ours.columns.keys() == theirs.columns.keys()
        for name, column in theirs.columns.items():
            assert torch.equal(ours.read(name, slice(0, 600), column.device), column)
        rows = torch.repeat_interleave(torch.arange(len(ours.counts)), ours.counts)
        order = rows * 1000 + theirs.columns["partner"]
        assert torch.equal(order, (corpus.column(side) * 1000 + corpus.column(other)).sort().values)
        huge(next(mapped.cache.glob(f"*-by-{side}/{other}.npy")))
        with pytest.raises(DataError, match=f"'{other}' .*has row numbers .*Remove"):
            ours.read("partner", slice(0, 600), torch.device("cpu"))


def test_what_is_derived_is_written_once_and_may_be_removed(tmp_path: Path) -> None:
    corpus = generated(500)
    mapped = prepared(corpus, tmp_path / "p")
    rule = rules.hashed_below(mapped, PairHash("s"), 0.5)
    part = mapped.where(rule)
    written = {p: p.stat().st_mtime_ns for p in mapped.cache.rglob("*.npy")}
    assert written
    load_prepared(tmp_path / "p").where(rule)
    assert {p: p.stat().st_mtime_ns for p in mapped.cache.rglob("*.npy")} == written
    before = part.column("query")
    shutil.rmtree(tmp_path / "p" / ".splits")
    assert torch.equal(part.column("query"), before)
    assert part.repeats == corpus.where(rule).repeats
    assert_same(corpus.where(rule), load_prepared(tmp_path / "p").where(rule))
    # Those of other data go once that is loaded.
    other = write_prepared(generated(600), tmp_path / "q")
    shutil.copytree(other, tmp_path / "p", dirs_exist_ok=True)
    assert mapped.cache.is_dir()
    assert load_prepared(tmp_path / "p").cache != mapped.cache
    assert not mapped.cache.exists()


def test_of_two_that_need_a_part_one_writes_it(tmp_path: Path) -> None:
    folder, called, start = write_prepared(generated(300), tmp_path / "p"), [], threading.Barrier(4)

    def marks(block: PairBlock) -> torch.Tensor:
        called.append(block.start)
        return block.query > 3

    def need() -> None:
        mapped = load_prepared(folder)
        start.wait()
        mapped.where(PairRule("more than three", marks))

    threads = [threading.Thread(target=need) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert called == [0, 100, 200] * 2  # in two passes


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (DataError("The data is damaged."), "damaged"),
        (OSError(28, "No space left"), "No space left.*free space"),
        (KeyboardInterrupt(), ""),
    ],
)
def test_a_part_that_was_not_finished_is_not_there(
    error: BaseException, why: str, tmp_path: Path
) -> None:
    def dies(block: PairBlock) -> torch.Tensor:
        raise error

    mapped = prepared(generated(300), tmp_path / "p")
    kind = DataError if why else KeyboardInterrupt
    with pytest.raises(kind, match=why or None):
        mapped.where(PairRule("dies", dies))
    assert [path.name for path in mapped.cache.iterdir()] == [".lock"]


def test_an_index_that_is_damaged_while_it_is_open_is_refused(tmp_path: Path) -> None:
    corpus = prepared(generated(600), tmp_path / "p")
    assert len(corpus.index.offsets) == 61
    huge(next(corpus.cache.glob("*-by-query/candidate.npy")))
    with pytest.raises(DataError, match=r"has row numbers .*2147483647, but there are .* Remove"):
        corpus.pairs_of(torch.arange(60))


def test_a_digest_is_that_of_the_content(tmp_path: Path) -> None:
    mapped = prepared(generated(500), tmp_path / "p")
    other = prepared(generated(500, seed=1), tmp_path / "q")
    made = [mapped, other, mapped.where(rules.first(9)), mapped.where(rules.first(8))]
    assert len({corpus_digest(corpus) for corpus in made}) == 4
    assert corpus_digest(mapped) == corpus_digest(load_prepared(tmp_path / "p"))


def test_too_much_for_memory_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = prepared(generated(500), tmp_path / "p")
    monkeypatch.setattr(mapped_corpus, "WHOLE", 499)
    with pytest.raises(DataError, match=r"'query' of all 500 interactions .* load at most 499"):
        mapped.column("query")
    with pytest.raises(DataError, match="load at most 499"):
        mapped.restrict(torch.arange(3))
    # What training needs does not ask for it.
    split = random_split(mapped, share=0.2, held_out=HELD)
    assert len(known_pairs(split)) > 0
    assert split.training.repeats > 0


def test_rows_outside_of_their_side_are_refused(tmp_path: Path) -> None:
    mapped = prepared(generated(500), tmp_path / "p")
    part = mapped.where(rules.first(400))
    assert isinstance(part, MappedCorpus)
    for read in (
        lambda c: c.column("candidate"),
        lambda c: list(c.blocks()),
        lambda c: c.where(rules.first(300)),
        lambda c: c.repeats,
    ):
        again = load_prepared(tmp_path / "p")
        for corpus in (load_prepared(tmp_path / "p"), again.where(rules.first(400))):
            assert isinstance(corpus, MappedCorpus)
            path = corpus.columns["candidate"]
            before = path.read_bytes()
            with_one(7, -1)(path)
            with pytest.raises(
                DataError, match=r"'candidate' .* has row numbers .*-1.*Remove .*splits"
            ):
                read(corpus)
            path.write_bytes(before)


@on_linux
def test_what_was_read_does_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_corpus, "PAIRS_AT_ONCE", 10_000)
    monkeypatch.setattr(mapped_corpus, "BUCKET", 1 << 20)
    mapped = prepared(generated(300_000), tmp_path / "p")
    part = mapped.where(rules.first(240_000))
    size, most = resident_bytes(tmp_path / "p"), 0
    for block in part.blocks():
        assert int(part.interactions.slice(block.start, len(block))["time"][0].as_py()) >= 0
        most = max(most, resident_bytes(tmp_path / "p"))
    # Of 240,000 pairs each has four columns of 4 bytes and one of 8; the kernel maps 16 pages and
    # more around the one that is read.
    assert most - size < 4 << 20 < 240_000 * 24
    part.pairs_of(torch.arange(60))
    part.has_pairs(torch.arange(40), torch.arange(40))
    part.column("query")
    # Tables of the 100 entities stay.
    assert resident_bytes(tmp_path / "p") < size + (1 << 17) < 1 << 20
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1 << 20))
    view = np.load(path, mmap_mode="r")[7:]
    assert (int(view.sum()) > 0, resident_bytes(path) >= 7 << 20) == (True, True)
    release([view])
    assert (resident_bytes(path), int(view[-1])) == (0, (1 << 20) - 1)
