"""Prepared folders as they are loaded: the record, the mapped corpus, and what is damaged."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.prepared import prepared, write_arrow, write_prepared
from tests.support.resident import on_linux, resident_bytes
from tests.support.streamed import generated

from evergram.data.corpus import Corpus
from evergram.data.holdout import rules
from evergram.data.pair_hash import PairHash, TrainedPairs
from evergram.data.prepared import mapped_corpus, pair_index
from evergram.data.prepared.column_file import sha256_of
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.prepared.prepared_corpus import load_prepared
from evergram.data.prepared.prepared_record import NAME, PreparedRecord
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import (
    HeldOut,
    Split,
    given_split,
    known_pairs,
    random_split,
    time_split,
    window_split,
)
from evergram.errors import DataError, FormatError
from evergram.evaluation.relevance import relevance_of
from evergram.evaluation.relevance import test_relevance as relevance_of_test
from evergram.training.checkpoints.run_identity import corpus_digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare(pa.table({"query": [1, 2], "candidate": ["a", "b"]}), tmp_path / "out")
    return tmp_path / "out"


def written(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda _: None) -> Path:
    """Write a record of five interactions in two parts, changed."""
    side = {"entities": 2, "ids": "string", "features": ["brand"]}
    after = {"query": 2, "candidate": 2}
    values: dict[str, Any] = {
        "format_version": 1,
        "name": "shop",
        "shared_ids": False,
        "interactions": 5,
        "sides": {"query": side, "candidate": dict(side)},
        "columns": {"query": "int32", "candidate": "int32", "time": "int64"},
        "parts": [
            {"folder": "parts/00000", "interactions": 2, "entities": after, "sources": ["a.csv"]},
            {"folder": "parts/00001", "interactions": 3, "entities": after, "sources": ["b.csv"]},
        ],
        "fingerprint": "0123456789abcdef",
    }
    change(values)
    (folder / NAME).write_text(json.dumps(values))
    return folder


def test_a_record_is_read_back(folder: Path) -> None:
    record = PreparedRecord.load(folder)
    assert record.to_json() == (folder / NAME).read_text().rstrip("\n")
    sha256 = {n: sha256_of(folder / "parts/00000" / f"{n}.npy") for n in ("query", "candidate")}
    assert record.parts[0].sha256 == sha256
    assert record.entity_files == {
        name: sha256_of(folder / name) for name in ("query.arrow", "candidate.arrow")
    }
    assert (record.sides["query"].ids, record.sides["candidate"].ids) == ("int64", "string")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda v: v.update(format_version="1"), "format_version is '1'"),
        (lambda v: v.pop("fingerprint"), "fingerprint"),
        (lambda v: v.update(fingerprint="../../../tmp"), "fingerprint is '../../../tmp'"),
        (lambda v: v.update(interactions=6), "6 interactions, 5 in its parts"),
        (lambda v: v.update(interactions="many"), "interactions is 'many'"),
        (lambda v: v["parts"][1].update(interactions=0), "parts[1].interactions is 0"),
        (lambda v: v["parts"][1].update(folder="/tmp"), "parts[1].folder is '/tmp'"),
        (lambda v: v["parts"][1].update(folder="parts/../../x"), "parts[1].folder"),
        (lambda v: v["parts"][1].update(folder="a\\b"), "parts[1].folder"),
        (lambda v: v["parts"][0].pop("entities"), "parts[0].entities"),
        (lambda v: v["columns"].pop("query"), "the columns candidate, time"),
        (lambda v: v["columns"].update(query="int16"), "columns.query is 'int16'"),
        (lambda v: v["sides"].pop("query"), "the sides candidate"),
        (lambda v: v["sides"]["query"].update(ids="float"), "sides.query.ids is 'float'"),
        (lambda v: v["sides"]["query"].update(entities=0), "sides.query.entities is 0"),
    ],
)
def test_what_cannot_be_used_is_named(
    change: Callable[[dict[str, Any]], Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=re.escape(named)) as caught:
        PreparedRecord.load(written(tmp_path, change))
    assert str(tmp_path / NAME) in str(caught.value)


def test_what_is_no_json_is_damaged(tmp_path: Path) -> None:
    for content in (b"[1", b'{"name": "\xff"}', b"[" * 100_000, b"[1]"):
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(DataError, match="damaged"):
            PreparedRecord.load(tmp_path)


def test_a_later_format_is_named_whatever_else_it_says(tmp_path: Path) -> None:
    written(tmp_path, lambda v: v.update(format_version=2, parts={"other": "things"}))
    with pytest.raises(FormatError, match="format_version 2"):
        PreparedRecord.load(tmp_path)


def test_a_folder_without_a_record_is_not_prepared(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(DataError, match=r"no prepared\.json.*evergram prepare SOURCE"):
            PreparedRecord.load(path)
    (tmp_path / NAME).mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        PreparedRecord.load(tmp_path)


def test_a_folder_is_the_corpus_that_was_written(tmp_path: Path) -> None:
    corpus = generated(700)
    mapped = prepared(corpus, tmp_path / "p", 0.1, 0.2, 0.9)
    assert mapped.in_memory().interactions.equals(corpus.interactions)
    assert len(mapped.columns) == 4
    assert torch.equal(mapped.counts("candidate"), corpus.counts("candidate"))
    # The columns are mapped and not copied.
    maps = Path("/proc/self/maps").read_text()
    assert str(tmp_path / "p" / "parts" / "00000" / "query.npy") in maps
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
    assert mapped.shared_ids
    assert mapped.candidates.vocabulary is mapped.queries.vocabulary
    for side in (mapped.queries, mapped.candidates):
        assert side.features["topic"].vocabulary.keys.to_pylist() == ["x", "y"]
    assert torch.equal(mapped.counts("query"), corpus.counts("query"))
    assert torch.equal(mapped.counts("candidate"), corpus.counts("candidate"))


def test_an_append_that_was_not_finished_is_not_seen(tmp_path: Path) -> None:
    corpus = generated(700)
    folder = write_prepared(corpus, tmp_path / "p")
    with ipc.open_file(folder / "query.arrow") as source:
        table = source.read_all()
    # The table has a new entity, and counts with the part that prepared.json does not name yet.
    longer = pa.concat_tables([table, table.slice(0, 1).set_column(0, "id", pa.array([10**6]))])
    counts = pa.array(longer["count"].to_numpy() + 5)
    write_arrow(folder / "query.arrow", {"id": longer["id"].combine_chunks(), "count": counts})
    mapped = load_prepared(folder)
    assert mapped.queries.vocabulary.same_keys(corpus.queries.vocabulary)
    assert torch.equal(mapped.counts("query"), corpus.counts("query"))
    assert torch.equal(mapped.counts("candidate"), corpus.counts("candidate"))


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    folder = write_prepared(generated(700), tmp_path / "p")
    whole = json.loads((folder / "prepared.json").read_text())

    def refuses(message: str) -> None:
        with pytest.raises(DataError, match=message):
            load_prepared(folder)

    whole["sides"]["query"]["entities"] += 1
    (folder / "prepared.json").write_text(json.dumps(whole))
    refuses(r"query\.arrow has 60 entities")
    whole["sides"]["query"]["entities"] -= 1
    whole["sides"]["query"]["features"] = ["age"]
    (folder / "prepared.json").write_text(json.dumps(whole))
    refuses("expects 60 and age")
    whole["sides"]["query"]["features"] = []
    whole["columns"]["weight"] = "float64"
    (folder / "prepared.json").write_text(json.dumps(whole))
    refuses(r"weight\.npy holds float32, and .* says float64")
    whole["columns"]["weight"] = "float32"
    (folder / "prepared.json").write_text(json.dumps(whole))
    np.save(folder / "parts" / "00000" / "time.npy", np.arange(3))
    refuses(r"time\.npy has the shape \(3,\)")
    (folder / "parts" / "00000" / "time.npy").unlink()
    refuses(r"time\.npy cannot be read")


def test_ids_of_another_kind_are_refused(tmp_path: Path) -> None:
    folder = write_prepared(Corpus.of([("a", 1), ("b", 1)]), tmp_path / "p")
    for ids in (pa.array([1.5, 2.5]), pa.array(["a", None])):
        write_arrow(folder / "query.arrow", {"id": ids, "count": [1, 1]})
        with pytest.raises(DataError, match="int64 or string"):
            load_prepared(folder)


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("name", "append"), [("query", False), ("time", True)])
def test_a_changed_byte_is_refused_before_anything_is_written(
    name: str, append: bool, tmp_path: Path
) -> None:
    corpus, folder = generated(700), tmp_path / "p"
    prepare(corpus, folder)
    if append:
        last = {"query": [1, 2], "candidate": [1, 1], "time": [999, 999]}
        prepare(pa.table(last | {"value": [0.5, 0.5], "weight": [1, 2]}), folder, append=True)
    path = folder / "parts" / ("00001" if append else "00000") / f"{name}.npy"
    assert len(load_prepared(folder).where(rules.first(400))) == 400
    flipped(path, path.stat().st_size - 4)  # a row or a number as likely as the one that was there
    mapped = load_prepared(folder)
    for _ in range(2):
        with pytest.raises(DataError, match=rf"{name}\.npy is not as it was .*bring the file back"):
            mapped.where(rules.first(300))
    assert len(list(mapped.cache.rglob("part.json"))) == 1
    flipped(path, path.stat().st_size - 4)
    assert len(load_prepared(folder).where(rules.first(300))) == 300


def test_a_part_that_is_written_already_is_not_tested_by_other_data(tmp_path: Path) -> None:
    """Held-out pairs are read from the columns each time, so these are verified each time."""
    folder = tmp_path / "p"
    prepare(generated(700), folder)
    rule = rules.first(400)
    assert isinstance(load_prepared(folder).where(rule), MappedCorpus)
    path = folder / "parts" / "00000" / "candidate.npy"
    content = path.read_bytes()
    path.write_bytes(content[:1000] + bytes(400) + content[1400:])
    with pytest.raises(DataError, match=r"candidate\.npy is not as it was written"):
        load_prepared(folder).where(rule)


def test_a_changed_file_of_entities_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    prepare(Corpus.of([("ann", 1), ("ben", 1)]), folder)
    path = folder / "query.arrow"
    flipped(path, path.read_bytes().index(b"annben") + 2)
    with pytest.raises(DataError, match=r"query\.arrow is not as it was .* Prepare the data again"):
        load_prepared(folder)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_corpus, "PAIRS_AT_ONCE", 100)
    monkeypatch.setattr(pair_index, "BUCKET", 64)


def assert_same(one: Corpus, other: Corpus) -> None:
    if isinstance(other, MappedCorpus):
        assert torch.equal(one.counts("query"), other.counts("query"))
        assert torch.equal(one.counts("candidate"), other.counts("candidate"))
        assert one.repeats == other.repeats
        other = other.in_memory()
    assert one.interactions.equals(other.interactions)
    for a, b in ((one.queries, other.queries), (one.candidates, other.candidates)):
        assert a.vocabulary.same_keys(b.vocabulary)
        assert list(a.features) == list(b.features)
        for name, feature in a.features.items():
            assert feature.vocabulary.same_keys(b.features[name].vocabulary)
            assert torch.equal(feature.offsets, b.features[name].offsets)
            assert torch.equal(feature.indices, b.features[name].indices)


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
    one, other = split(corpus), split(prepared(corpus, tmp_path / "p", 0.31, 0.72))
    assert_same_split(one, other)
    assert isinstance(other.training, MappedCorpus)
    assert (one.final is None) == (other.final is None)
    if one.final is not None and other.final is not None:
        assert_same_split(one.final(), other.final())


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("abxy"), st.just(1.0)), min_size=8
    ),
    shared=st.booleans(),
    data=st.data(),
)
def test_any_corpus_is_restricted_as_in_memory(
    rows: list[tuple[str, str, float]],
    shared: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    corpus = Corpus.of(rows, shared_ids=shared)
    mapped = prepared(corpus, tmp_path_factory.mktemp("p") / "p", 0.5)
    assert_same(corpus, mapped)
    query, candidate = torch.randint(-1, 4, (2, 50), generator=torch.Generator().manual_seed(1))
    query = query.clamp(max=len(corpus.queries) - 1)
    candidate = candidate.clamp(max=len(corpus.candidates) - 1)
    assert torch.equal(corpus.has_pairs(query, candidate), mapped.has_pairs(query, candidate))
    number = data.draw(st.integers(0, len(rows)))
    for rule in (rules.first(number), ~rules.first(number)):
        one, other = corpus.where(rule), mapped.where(rule)
        assert_same(one, other)
        assert other.shared_ids == shared
        if len(one):
            assert one.repeats == other.repeats
            again = rules.first(max(1, len(one) // 2))
            assert_same(one.where(again), other.where(again))


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


def test_derived_files_of_older_data_are_removed(tmp_path: Path) -> None:
    first = prepared(generated(500), tmp_path / "p")
    first.where(rules.first(9))
    shutil.rmtree(tmp_path / "p" / "parts")
    write_prepared(generated(600), tmp_path / "p")
    assert first.cache.is_dir()
    assert load_prepared(tmp_path / "p").cache != first.cache
    assert not first.cache.exists()


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
    with pytest.raises(DataError, match="'query' of all 500 interactions in memory"):
        mapped.column("query")
    with pytest.raises(DataError, match="prepared data give it up to 499"):
        mapped.restrict(torch.arange(3))
    # What training needs does not ask for it.
    split = random_split(mapped, share=0.2, held_out=HELD)
    assert len(known_pairs(split)) > 0
    assert split.training.repeats > 0


def test_rows_outside_of_their_side_are_refused(tmp_path: Path) -> None:
    mapped = prepared(generated(500), tmp_path / "p")
    part = mapped.where(rules.first(400))
    assert isinstance(part, MappedCorpus)
    damaged = [mapped.columns[0]["candidate"].path, part.columns[0]["candidate"].path]
    for path, remedy in zip(damaged, ("Prepare the data again", "Remove .*splits"), strict=True):
        corpus: Corpus = load_prepared(tmp_path / "p")
        corpus = corpus if path == damaged[0] else corpus.where(rules.first(400))
        before = np.load(path)
        rows = before.copy()
        rows[7] = -1
        np.save(path, rows)
        reads: list[Callable[[Corpus], object]] = [
            lambda c: c.column("candidate"),
            lambda c: list(c.blocks()),
            lambda c: c.where(rules.first(300)),
            lambda c: c.repeats,
        ]
        for read in reads:
            with pytest.raises(DataError, match=f"'candidate' .* names the rows .*-1.*{remedy}"):
                read(corpus)
        np.save(path, before)


@on_linux
def test_what_was_read_does_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_corpus, "PAIRS_AT_ONCE", 10_000)
    monkeypatch.setattr(pair_index, "BUCKET", 1 << 20)
    mapped = prepared(generated(400_000), tmp_path / "p", 0.4)
    split = random_split(mapped, share=0.2, held_out=HELD)
    part = split.training
    size = resident_bytes(tmp_path / "p")
    most = 0
    for block in part.blocks():
        assert int(part.interactions.slice(block.start, len(block))["time"][0].as_py()) >= 0
        most = max(most, resident_bytes(tmp_path / "p"))
    # Of 320,000 pairs each has four columns of 4 bytes and one of 8; the kernel maps 16 pages and
    # more around the one that is read.
    assert most - size < 4 << 20 < 320_000 * 24
    part.pairs_of(torch.arange(60))
    part.has_pairs(torch.arange(40), torch.arange(40))
    part.column("query")
    assert resident_bytes(tmp_path / "p") <= size < 1 << 20
