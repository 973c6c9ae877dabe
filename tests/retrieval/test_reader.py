"""Rows of several versions in one store, read and searched at any; recommendations, and texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tests.support import text_encoders
from tests.support.agreement import scores_of
from tests.support.dictionary_store import DictionaryStore
from tests.support.encoders import CANDIDATES as FILMS
from tests.support.encoders import DIM, SEEN, lineage_with_encoder, without_recorded_pairs
from tests.support.folding import CANDIDATES, candidates_of, folding_lineage, names
from tests.support.lineages import lineage_of, publish, read_as, vectors_of
from tests.support.pinned_lineages import (
    PROMPTS,
    TEXTS,
    as_version_0,
    pinned_lineage,
    pinned_service,
)
from tests.support.publishing import publish_next
from tests.support.text_encoders import ADDRESSES, word_vectors

from evergram.compatibility.transforms import AffineTransform, LinearTransform
from evergram.data.split import PairHash, TrainedPairs
from evergram.errors import DataError, EvergramError, LineageError, ShapeError, UnknownVersionError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.lineage.view import fold_in
from evergram.retrieval.fill import fill, space_of
from evergram.retrieval.reader import Metric, Reader
from evergram.retrieval.version_maps import VersionMaps, stored_rows
from evergram.serving.client import Client
from evergram.stores.open_store import open_store
from evergram.stores.store import ReadableStore, Store
from evergram.texts.text_encoder import Role


def filled(lineage: Lineage, version: int = 2) -> Reader:
    store = DictionaryStore()
    assert fill(lineage, store, "object", version) == 300
    return Reader(lineage, {"object": store})


def put(lineage: Lineage, store: ReadableStore, version: int, ids: range) -> None:
    """Write the vectors that a version published of ids to a store, as a backfill does."""
    assert isinstance(store, Store)
    store.add_space(space := space_of(lineage, version))
    vectors = vectors_of(version).numpy()[list(ids)]
    store.upsert(stored_rows(VersionMaps(lineage), space, pa.array(ids), vectors))


def check(reader: Reader, ids: range, version: int, sources: list[int]) -> None:
    """Check that ids are read at a version from the versions of their rows, exactly."""
    embedded = reader.embed(ids, version)
    assert embedded.sources.tolist() == sources
    expected = [read_as(source, version)[i] for i, source in zip(ids, sources, strict=True)]
    assert_allclose(embedded.vectors, torch.stack(expected).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_embed_gives_what_each_version_would_read(lineage: Lineage, version: int) -> None:
    reader = filled(lineage)
    embedded = reader.embed([7, 299, 7, 1000, 0], version)
    assert embedded.version == version
    assert embedded.ids.to_pylist() == [7, 299, 7, 1000, 0]
    assert embedded.sources.tolist() == [2, 2, 2, -1, 2]
    assert embedded.missing.to_pylist() == [1000]
    expected = read_as(2, version)[[7, 299, 7, 7, 0]].numpy()
    expected[3] = 0
    assert_allclose(embedded.vectors, expected, rtol=1e-5, atol=1e-6)
    assert reader.embed([7], f"v{version}").version == version
    assert reader.embed([7]).version == lineage.production == 2
    moved = reader.transform(vectors_of(2).numpy(), 2, version)
    assert_allclose(moved, read_as(2, version).numpy(), rtol=1e-5, atol=1e-6)
    # Finite, though the square of its length is not a float32.
    assert np.isfinite(reader.transform(np.full((1, 10), 1e30, np.float32), 2, version)).all()


def test_every_row_is_read_from_its_own_version(lineage: Lineage) -> None:
    """Half of the rows are still of version 1, as a backfill leaves them under way."""
    reader = filled(lineage)
    put(lineage, reader.store(), 1, range(150))
    check(reader, range(300), 0, [1] * 150 + [2] * 150)


def test_a_canary_is_read_only_by_those_who_ask_for_it(tmp_path: Path) -> None:
    """Version 2 is published and not promoted: it is read from its own rows, and nobody who
    reads production or before gets anything that was computed from it."""
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    assert (lineage.production, lineage.newest) == (1, 2)
    with closing(Reader.open(lineage)) as reader:
        for version, source in ((0, 1), (1, 1), (2, 2)):
            check(reader, range(3, 5), version, [source] * 2)
        assert reader.embed([3]).sources.tolist() == [1]
        for version in (1, 2):
            (hits,) = reader.search(vectors_of(version)[3], 1, version, metric="cosine")
            assert hits.versions.tolist() == [version]
    lineage.label("stable", 2)
    with closing(Reader.open(lineage)) as reader:
        check(reader, range(3, 5), 0, [2, 2])
    # Rolled back: the embeddings of version 1 were kept.
    lineage.label("stable", 1)
    with closing(Reader.open(lineage)) as reader:
        check(reader, range(3, 5), 1, [1, 1])
        check(reader, range(3, 5), 2, [2, 2])


def test_a_store_that_has_the_newest_version_answers_before_it_is_promoted(tmp_path: Path) -> None:
    """What is looked at before a version is promoted is the store that will answer then."""
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    store = filled(lineage).store()
    assert isinstance(store, Store)
    store.delete(pa.array([3]))
    # Half migrated: a row that is still of version 1 is read forward.
    put(lineage, store, 1, range(4, 5))
    with closing(Reader.open(lineage, {"object": store})) as reader:
        assert reader.embed([3, 4, 5], 2).sources.tolist() == [-1, 1, 2]
        (hits,) = reader.search(vectors_of(2)[3], 300, 2, metric="cosine")
        assert 3 not in hits.ids.to_pylist()
        assert reader.embed([5], 0).sources.tolist() == [2]
    assert not (lineage.path / "stores").exists()


@pytest.mark.parametrize("unreadable", [True, False])
def test_a_store_without_rows_that_can_be_read_as_the_newest_is_not_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: bool
) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    store = filled(lineage, 1).store()
    if unreadable:
        monkeypatch.setattr(Lineage, "forward", lambda self, source, target: None)
        put(lineage, store, 2, range(4, 5))
    with closing(Reader.open(lineage, {"object": store})) as reader:
        assert reader.embed([4, 5], 2).sources.tolist() == [2, 2]
        with pytest.raises(DataError, match=r"Version 2 is after production \(1\), and .* has no"):
            reader.search(vectors_of(2)[3], 1, 2, filter={"kind": "a"})


@pytest.mark.parametrize("way", ["promoted", "rolled back"])
def test_while_stores_are_brought_to_another_version_every_version_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Without a map forward: a row that were read at a later version than its own would fail."""
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: None)
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    if way == "rolled back":
        lineage.label("stable", 2)
    with closing(Reader.open(lineage)) as before:
        lineage.label("stable", 1 if way == "rolled back" else 2)
        with closing(before.carried(Lineage.open(tmp_path / "line"))) as between:
            put(lineage, between.store(), lineage.production, range(150))
            for version in (0, 1, 2):
                check(
                    between,
                    range(300),
                    version,
                    between.embed(range(300), version).sources.tolist(),
                )


def test_new_queries_are_computed_at_the_version_that_the_rows_are_of(tmp_path: Path) -> None:
    """While stores are filled with a new version, and then no longer."""
    lineage, met = folding_lineage(tmp_path / "films"), [["c1", "c5"], ["c7"]]
    store, maps, ids = DictionaryStore("string"), VersionMaps(lineage), names(CANDIDATES, "c")

    def write(version: int, rows: list[int]) -> None:
        store.add_space(space := space_of(lineage, version))
        chosen, vectors = pa.array([ids[i] for i in rows]), candidates_of(version)[rows].numpy()
        store.upsert(stored_rows(maps, space, chosen, vectors))

    write(0, list(range(CANDIDATES)))
    store.take_side("candidate")
    reader = Reader(lineage, {"candidate": store})
    vectors, source = reader.fold_in_with_source(met, version=0)
    assert source == 0
    form = lineage.reader(0).query_form()
    assert form is not None

    def stored(keys: list[int | str]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [ids.index(str(key)) for key in keys]
        return torch.ones(len(keys), dtype=torch.bool), candidates_of(0)[rows]

    assert_allclose(vectors, fold_in(form, stored, met).numpy(), rtol=1e-4, atol=1e-5)
    # One candidate of the newest version, and one that is not: both are read as the older.
    write(1, [7])
    assert reader.fold_in_with_source(met, version=0)[1] == 0
    folded, source = reader.fold_in_with_source(["c7"], version=0)
    assert source == 1
    expected = reader.transform(lineage.view(1, 1).fold_in(["c7"]).numpy(), 1, 0)
    assert_allclose(folded, expected, rtol=1e-4, atol=1e-5)
    assert reader.fold_in_with_source(met)[1] == 1
    assert_allclose(reader.fold_in(met), reader.fold_in_with_source(met)[0])
    without = folding_lineage(tmp_path / "without", forms=False)
    with (
        closing(Reader.open(without)) as reader,
        pytest.raises(LineageError, match="published without a query form"),
    ):
        reader.fold_in(met, version=0)


def test_requests_that_cannot_be_answered_are_refused(lineage: Lineage) -> None:
    reader = filled(lineage)
    refused: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (np.ones(8), {}, ShapeError, "version 0 have dim 6"),
        (np.full(6, np.nan), {}, DataError, "not finite"),
        (np.ones(6), {"k": 0}, DataError, "k is 0"),
        (np.ones(6), {"metric": "dot"}, DataError, "'dot'"),
        (np.ones(6), {"scores": "nice"}, DataError, "'nice'"),
        (np.zeros(6), {"metric": "cosine"}, DataError, "length 0"),
        (np.ones(6) + 1j, {}, ShapeError, "numbers"),
        ([[1.0], [1.0, 2.0]], {}, ShapeError, "one length"),
        (np.ones(6), {"side": "query"}, LineageError, "'query'"),
    ]
    for queries, options, error, named in refused:
        with pytest.raises(error, match=named):
            reader.search(queries, **{"version": 0} | options)
    for version in (3, True):
        with pytest.raises(UnknownVersionError, match=str(version)):
            reader.embed([5], version)
    with pytest.raises(LineageError, match="was never filled"):
        Reader(lineage, {"object": DictionaryStore()}).search(np.ones(10), 3, 2)


@pytest.mark.parametrize("unit", [True, False])
def test_a_search_without_a_metric_ranks_as_vectors_of_length_1_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: bool
) -> None:
    """Read back they have other lengths, by which the inner product would rank, too."""
    lineage, keys = Lineage.create(tmp_path / "line", "line"), pa.array(range(60))
    draw = torch.Generator().manual_seed(0)
    old, turn = torch.randn(60, 5, generator=draw), torch.randn(5, 7, generator=draw)
    old = old / old.norm(dim=1, keepdim=True) if unit else old
    for version, vectors in enumerate((old, torch.randn(60, 7, generator=draw))):
        # The second is read back by another map than it had.
        back = LinearTransform.from_matrix(turn) if version else None
        kept = {"object": keys.slice(0, 9)}
        sides, none = {"object": (keys, vectors)}, {"metrics": {"model": dict[str, float]()}}
        publish_next(lineage, Artefact(vectors.shape[1], sides, back, none, {}, canaries=kept))
    versions: list[int] = []
    read = Lineage.canaries

    def counted(self: Lineage, version: int) -> Any:
        versions.append(version)
        return read(self, version)

    monkeypatch.setattr(Lineage, "canaries", counted)
    query = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    metrics: list[Metric | None] = [None, "cosine", "ip"]
    with closing(Reader.open(lineage)) as reader:
        assert reader.default_metric(0) == ("cosine" if unit else "ip")
        assert reader.default_metric() == "ip"
        plain, cosine, product = (
            [hits.ids.to_pylist() for hits in reader.search(query, 5, 0, metric=metric)]
            for metric in metrics
        )
        assert plain == (cosine if unit else product)
        assert cosine != product
        one, other = (reader.search(np.ones(7), 5, metric=m)[0].scores for m in (None, "ip"))
        assert one.tolist() == other.tolist()
    assert versions == [0, 1]  # once each


IDS = pa.array(range(200))
OLD = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
# A quarter turn of two planes and a shift: its inverse is far from it.
TURN = torch.tensor([[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, -1], [0, 0, 1, 0]]).float()
NEW = OLD @ TURN.T * 2 + 1


def test_while_rows_are_stale_unit_vectors_are_searched_by_cosine(tmp_path: Path) -> None:
    """At production, too: rows that are read forward have other lengths. Fresh ones do not."""
    lineage, noise = Lineage.create(tmp_path / "line"), torch.Generator().manual_seed(1)
    new = NEW + torch.randn(200, 4, generator=noise)
    with open_store(f"snapshot:{tmp_path / 'store'}", create="int64") as store:
        for vectors in (OLD, new):
            unit = vectors / vectors.norm(dim=1, keepdim=True)
            back = None if vectors is OLD else LinearTransform.from_matrix(TURN.T)
            kept, sides = {"object": IDS.slice(0, 9)}, {"object": (IDS, unit)}
            facts = {"metrics": {"model": dict[str, float]()}}
            publish_next(lineage, Artefact(4, sides, back, facts, {}, canaries=kept))
            if vectors is OLD:
                fill(lineage, store, "object")
        reader = Reader(lineage, {"object": store})
        assert reader.default_metric() == "cosine"
        queries = unit[:20].numpy()
        rows = reader.embed(IDS, 1).vectors.astype(np.float64)
        best = np.argsort(-scores_of("cosine", queries, rows), axis=1)[:, :5]
        assert [hits.ids.to_pylist() for hits in reader.search(queries, 5)] == best.tolist()
        fill(lineage, store, "object")
        assert reader.default_metric() == "ip"


def test_rows_of_an_older_version_are_read_forward(tmp_path: Path) -> None:
    lineage, store = Lineage.create(tmp_path / "line"), f"snapshot:{tmp_path / 'store'}"
    back = AffineTransform.from_matrix(TURN.T / 2, -TURN.T.sum(1) / 2)
    for vectors, transform in ((OLD, None), (NEW, back)):
        sides = {"object": (IDS, vectors)}
        publish_next(lineage, Artefact(4, sides, transform, {"metrics": {"model": {}}}, {}))
        if transform is None:
            with open_store(store, create="int64") as opened:
                fill(lineage, opened, "object")
    assert_allclose(lineage.view(0).embeddings("object")[1], OLD, atol=1e-5)
    with closing(Reader.open(tmp_path / "line", {"object": store})) as reader:
        read = reader.embed([3, 5], version=1)
        assert read.sources.tolist() == [0, 0]
        assert_allclose(read.vectors, NEW[[3, 5]], atol=1e-3)
        (hits,) = reader.search(NEW[3].numpy(), k=1, version=1, metric="l2")
        assert hits.ids.to_pylist() == [3]
        assert hits.scores[0] == pytest.approx(0, abs=1e-3)
        moved = reader.transform(OLD[:5].numpy(), 0, 1)
        assert_allclose(moved, NEW[:5], atol=1e-3)
        assert_allclose(reader.transform(moved, 1, 0), OLD[:5], atol=1e-3)


@pytest.fixture
def films(tmp_path: Path) -> Lineage:
    return lineage_with_encoder(tmp_path / "films")


def ranking(films: Lineage, query: str, seen: bool) -> list[int]:
    """All candidates by score, in float64, with or without those that the query was trained on."""
    ids, queries = films.embeddings("query")
    scores = (
        films.embeddings("candidate")[1].double() @ queries.double()[ids.to_pylist().index(query)]
    )
    ranked = [FILMS[i] for i in np.argsort(-scores.numpy(), kind="stable")]
    return [c for c in ranked if seen or (query, c) not in SEEN]


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_recommendations_are_the_ranking_without_the_training_pairs(
    films: Lineage, exclude_seen: bool
) -> None:
    with closing(Reader.open(films)) as reader:
        for k in (1, 5, 38, 40, 60):
            hits = reader.recommend(["bob", "ann", "bob"], k, exclude_seen=exclude_seen)
            for query, mine in zip(["bob", "ann", "bob"], hits, strict=True):
                assert mine.ids.to_pylist() == ranking(films, query, not exclude_seen)[:k]
                assert len(mine.scores) == len(mine.versions) == len(mine.ids)
            assert reader.recommend([], k) == []


def test_recommendations_that_cannot_be_given_are_refused(films: Lineage, lineage: Lineage) -> None:
    refused: list[tuple[list[str], Any, str]] = [
        (["ann", "joe"], 5, "1 of 2 queries are not stored; the first is 'joe'"),
        *((["ann"], 0, "k is 0"), (["ann"], 2.5, "k is 2.5")),
    ]
    with closing(Reader.open(films)) as reader:
        for queries, k, named in refused:
            with pytest.raises(DataError, match=named):
                reader.recommend(queries, k)
    # Objects of files are not of two sides.
    with closing(Reader.open(lineage)) as reader, pytest.raises(LineageError, match="object"):
        reader.recommend([1])
    # What was trained on is not recorded.
    publish_next(films, without_recorded_pairs(films))
    with closing(Reader.open(films)) as reader:
        with pytest.raises(LineageError, match=r"not recorded.*exclude_seen=False"):
            reader.recommend(["ann"])
        assert len(reader.recommend(["ann"], 3, exclude_seen=False)[0]) == 3


def test_a_version_after_production_has_as_many_candidates_as_it_was_published_with(
    films: Lineage,
) -> None:
    """Those that a query met score best, and are as many as production has in all."""
    ids = pa.array(range(100, 1100))
    vectors = torch.randn(1000, DIM, generator=torch.Generator().manual_seed(1)).abs()
    vectors[:40] += 10
    artefact = without_recorded_pairs(films)
    query_ids = films.embeddings("query")[0]
    queries = torch.ones(3, DIM) - torch.eye(3, DIM) * torch.tensor([0.0, 1.0, 2.0])[:, None]
    queries = queries[[query_ids.to_pylist().index("ann") - i for i in range(3)]]
    sides = {"query": (query_ids, queries), "candidate": (ids, vectors)}
    met = PairHash("films").of_pairs(pa.repeat("ann", 40), ids.slice(0, 40))
    trained = "films", TrainedPairs.of(np.asarray(met))
    publish_next(films, replace(artefact, embeddings=sides, trained=trained), promote=False)
    with closing(Reader.open(films)) as reader:
        hits = reader.recommend(["ann"], 10, version=1)[0]
    best = 140 + np.argsort(-vectors[40:].sum(1).numpy(), kind="stable")[:10]
    assert hits.ids.to_pylist() == best.tolist()


ROLES: tuple[Role, Role] = ("query", "document")


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return pinned_lineage(tmp_path_factory.mktemp("pinned"))


@pytest.fixture
def of_texts(pinned: Lineage) -> Iterator[Reader]:
    with closing(Reader.open(pinned, encoder=ADDRESSES[1])) as opened:
        yield opened


def test_a_search_by_texts_is_that_of_the_service(pinned: Lineage, of_texts: Reader) -> None:
    with pinned_service(pinned) as url, Client(url) as client:
        for version in (0, "v0", None):
            for metric in ("ip", "cosine"):
                ours = of_texts.search_texts(TEXTS, 5, version, metric=metric)
                theirs = client.search_texts(TEXTS, 5, version, metric=metric)
                for mine, other in zip(ours, theirs, strict=True):
                    assert mine.ids.to_pylist() == other.ids.to_pylist()
                    assert_allclose(mine.scores, other.scores, rtol=1e-5)
            for role in ROLES:
                vectors: Any = client.encode(TEXTS, version, role)
                assert_allclose(of_texts.encode(TEXTS, version, role), vectors, rtol=1e-6)


def test_texts_are_read_as_the_version_with_prompts(of_texts: Reader) -> None:
    for role in ROLES:
        whole: Any = as_version_0(of_texts.lineage, TEXTS, PROMPTS.of(role))
        assert_allclose(of_texts.encode(TEXTS, 0, role), whole, rtol=1e-4, atol=1e-3)


def test_options_of_a_search_by_texts_are_those_of_a_search(of_texts: Reader) -> None:
    few, queries = ["text-3", "text-9"], of_texts.encode(TEXTS[:1], 0, "query")
    (hits,) = of_texts.search_texts(TEXTS[:1], 5, 0, ids=few)
    assert sorted(hits.ids.to_pylist()) == few
    assert_array_equal(hits.scores, of_texts.search(queries, 5, 0, ids=few)[0].scores)
    (hits,) = of_texts.search_texts(TEXTS[:1], 5, 0, scores="calibrated")
    (same,) = of_texts.search(queries, 5, 0, scores="calibrated", query_vectors="read_back")
    assert_array_equal(hits.scores, same.scores)
    with pytest.raises(EvergramError, match="metadata"):
        of_texts.search_texts(TEXTS, 5, 0, filter={"topic": "rivers"})


def test_what_is_no_list_of_texts_is_refused(of_texts: Reader) -> None:
    refused: list[tuple[Any, str]] = [
        ("word1", r"\['word1'\]"),
        ([], "no texts to encode"),
        (["word1", " \t"], "text at 1 is empty"),
        (["word1", 7], "text at 1 is empty, or is no string"),
    ]
    for texts, named in refused:
        with pytest.raises(DataError, match=named):
            of_texts.search_texts(texts)
    with pytest.raises(DataError, match="no role 'passage'"):
        of_texts.encode(["word1"], role="passage")  # type: ignore[arg-type]


def test_a_reader_runs_no_code_by_itself_and_no_other_encoder(
    pinned: Lineage, tmp_path: Path
) -> None:
    gone = f"sentence-transformers:{tmp_path / 'gone'}"
    for encoder, named in (
        (None, "name that address in 'encoder'"),
        (ADDRESSES[0], "is not the encoder that version 1 records"),
        (gone, f"Version 1 was encoded by python:.* and {gone} cannot be opened: "),
    ):
        with closing(Reader.open(pinned, encoder=encoder)) as of_texts:
            assert len(of_texts.search(word_vectors(TEXTS, 1, 12))) == 2
            with pytest.raises(EvergramError, match=named):
                of_texts.search_texts(TEXTS)
    with closing(Reader.open(pinned, encoder=ADDRESSES[:2])) as of_texts:
        assert len(of_texts.search_texts(TEXTS, 3, 0)) == 2
    with (
        closing(Reader.open(lineage_of(tmp_path / "l"))) as of_texts,
        pytest.raises(DataError, match="records no encoder of text"),
    ):
        of_texts.encode(TEXTS)


def test_a_model_that_is_replaced_behind_its_address_is_noticed(
    of_texts: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_texts.encode(TEXTS, 0)
    opened = of_texts._encoders[1].encoder
    monkeypatch.setattr(
        opened, "_encode", lambda texts, prompt: text_encoders.third([prompt + t for t in texts])
    )
    with pytest.raises(DataError, match="no longer the encoder that version 1 records"):
        of_texts.encode(TEXTS, 0)
