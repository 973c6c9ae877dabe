"""Calibrated scores of a lineage, beside ranks that are counted among the pairs of canaries."""

from __future__ import annotations

from contextlib import closing
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_array_equal
from tests.support.dictionary_store import DictionaryStore
from tests.support.embedding_files import file_of, id_names
from tests.support.text_encoders import ADDRESSES, encoded, sentences, word_vectors

from evergram.errors import DataError, LineageError, UnknownVersionError
from evergram.ids import id_hashes
from evergram.lineage.lineage import Lineage
from evergram.lineage.score_maps import Metric, QueryVectors, ScoredSearch, ScoreMaps
from evergram.releasing.align import AlignSettings, align
from evergram.retrieval.fill import fill, space_of
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import VersionMaps, stored_rows
from evergram.vector_files.open_embeddings import EmbeddingFile

SIDES = "object", "object"
# A way back of few dims, as an exact one would change no score; half is held out as canaries.
LOSSY = AlignSettings(transform="low_rank", rank=4, held_out=0.5)


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """Three versions; half of the texts are held out, and kept as canaries. Only read."""
    folder = tmp_path_factory.mktemp("texts")
    lineage = Lineage.create(folder / "line", "line")
    old: EmbeddingFile | int = encoded(folder, ADDRESSES[0])
    for number, address in enumerate(ADDRESSES[1:]):
        align(old, encoded(folder, address), lineage, LOSSY)
        old = number + 1
    return lineage


@pytest.fixture(scope="module", params=[0.1, 0.4])
def clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Lineage, np.ndarray, list[np.ndarray]]:
    """Three versions of the same 800 objects in clusters, each a different function of their
    meaning plus noise; the mask [N] of the objects that no fit saw, and each version's vectors."""
    draw, folder = np.random.default_rng(5), tmp_path_factory.mktemp("clusters")
    names = id_names(800)
    scale = np.arange(1, 21) ** -0.5
    centres = draw.normal(size=(80, 20))[draw.integers(0, 80, len(names))]
    meaning = scale * (centres + 0.6 * draw.normal(size=(len(names), 20)))
    lineage = Lineage.create(folder / "line", "line")
    made: list[np.ndarray] = []
    old: EmbeddingFile | int | None = None
    for number, dim in enumerate((24, 32, 40)):
        clean = np.tanh(0.5 * meaning @ draw.normal(size=(20, dim)))
        rows = clean + 0.3 * draw.normal(size=clean.shape)
        made.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
        file = file_of(folder / f"{number}.parquet", torch.from_numpy(made[-1]).float())
        if old is not None:
            align(old, file, lineage, AlignSettings(held_out=request.param))
        old = number or file
    unseen = torch.from_numpy(id_hashes(names)) < request.param * 2**32
    return lineage, unseen.numpy(), made


@pytest.mark.parametrize(("target", "query_version"), [(0, 2), (0, 0), (1, 2)])
def test_as_many_pairs_of_fitted_and_of_unseen_objects_pass_a_threshold_as_then(
    clusters: tuple[Lineage, np.ndarray, list[np.ndarray]], target: int, query_version: int
) -> None:
    lineage, unseen, vectors = clusters
    read = lineage.chain.apply(torch.from_numpy(vectors[2]), 2, target).numpy()
    now, own = read / np.linalg.norm(read, axis=1, keepdims=True), vectors[target]
    raw, then = (own if query_version == target else now) @ now.T, own @ own.T
    scored = ScoredSearch(target, SIDES, "cosine", query_version)
    mapped = ScoreMaps(lineage).of(2, scored).apply(raw)
    threshold = float(np.quantile(then, 0.98))
    different = ~np.eye(len(unseen), dtype=bool)
    for one, other in combinations_with_replacement((~unseen, unseen), 2):
        pairs = different & one[:, None] & other
        passed, uncalibrated, passes = (
            int((scores[pairs] >= threshold).sum()) for scores in (then, raw, mapped)
        )
        assert passes == pytest.approx(passed, rel=0.25)
        assert uncalibrated > 1.5 * passed


def calibrated(made: QueryVectors) -> dict[str, Any]:
    return {"scores": "calibrated", "query_vectors": made}


def of_pairs(queries: np.ndarray, rows: np.ndarray, metric: Metric, both: bool) -> np.ndarray:
    """The scores of different objects, in order: of each two once, or of both orders of them."""
    if metric == "cosine":
        queries, rows = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, rows))
    distances = ((queries[:, None] - rows) ** 2).sum(2)
    scores = -distances if metric == "l2" else queries @ rows.T
    different = ~np.eye(len(rows), dtype=bool) if both else np.triu(np.ones_like(scores), 1) > 0
    return np.sort(scores[different])


def pairs(
    lineage: Lineage,
    source: int,
    target: int,
    metric: Metric,
    query_vectors: QueryVectors = "read_back",
) -> tuple[np.ndarray, np.ndarray]:
    """The scores of all pairs of canaries: those of queries with rows that are read back from
    `source`, and of `target`."""
    ids, new = lineage.canaries(source)["object"]
    own_ids, own = lineage.canaries(target)["object"]
    back = (new.double() @ lineage.chain.matrix(source, target).double().T).numpy()
    then = dict(zip(own_ids.to_pylist(), own.double().numpy(), strict=True))
    rows = [(row, then[id_]) for id_, row in zip(ids.to_pylist(), back, strict=True) if id_ in then]
    read, past = (np.stack(side) for side in zip(*rows, strict=True))
    # Of queries that are not read as the rows are, each two objects make two pairs.
    both = query_vectors == "own"
    now = of_pairs(past if both else read, read, metric, both)
    return now, of_pairs(past, past, metric, both)


@pytest.mark.parametrize(
    ("metric", "target", "made"),
    [
        ("ip", 0, "own"),
        ("l2", 1, "own"),
        ("cosine", 1, "own"),
        ("ip", 1, "read_back"),
        ("l2", 0, "read_back"),
        ("cosine", 0, "read_back"),
    ],
)
def test_a_calibrated_score_has_the_rank_of_the_raw_one(
    lineage: Lineage, metric: Metric, target: int, made: QueryVectors
) -> None:
    now, then = pairs(lineage, 2, target, metric, made)
    query = word_vectors(["word1 word2 word3"], target, (10, 12)[target])
    with closing(Reader.open(lineage.path)) as reader:
        if made == "read_back":
            query = reader.transform(word_vectors(["word1 word2 word3"], 2, 11), 2, target)
        raw = reader.search(query, 30, target, metric=metric)[0]
        hits = reader.search(query, 30, target, None, metric, **calibrated(made))[0]
    assert hits.ids == raw.ids
    inside = [i for i, s in enumerate(raw.scores) if now[10] < s < now[-10]]
    assert len(inside) > 5
    for i in inside:
        rank = int(np.searchsorted(now, raw.scores[i]))
        # Quantiles are kept for one pair in eight or so.
        slack = 1 + len(now) // 2048
        low, high = max(0, rank - 1 - slack), min(len(then) - 1, rank + slack)
        assert then[low] - 1e-6 <= hits.scores[i] <= then[high] + 1e-6


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_the_best_of_rows_of_two_versions_are_those_by_calibrated_score(
    lineage: Lineage, metric: Metric
) -> None:
    """As many hits as there are rows, against the first ten alone."""
    store, maps = DictionaryStore("string"), VersionMaps(lineage)
    fill(lineage, store, "object", 2)
    space = space_of(lineage, 0)
    store.add_space(space)
    texts = sentences()
    ids = pa.array([f"text-{i}" for i in range(0, len(texts), 2)])
    store.upsert(stored_rows(maps, space, ids, word_vectors(texts[::2], 0, 10)))
    queries = word_vectors([f"word{i} word{i + 1} word{i + 2}" for i in range(20)], 0, 10)
    with closing(Reader.open(lineage.path, {"object": store})) as reader:
        whole = reader.search(queries, len(texts), 0, None, metric, **calibrated("own"))
        first = reader.search(queries, 10, 0, None, metric, **calibrated("own"))
        raw = reader.search(queries, 10, 0, metric=metric)
    for few, hits in zip(first, whole, strict=True):
        assert len(hits) == len(texts)
        assert set(hits.versions.tolist()) == {0, 2}
        np.testing.assert_allclose(few.scores, hits.scores[:10], rtol=1e-5, atol=1e-5)
    # By raw scores others are the best.
    both = zip(first, raw, strict=True)
    assert any(set(a.ids.to_pylist()) != set(b.ids.to_pylist()) for a, b in both)


def test_rows_of_the_version_itself_keep_their_scores(lineage: Lineage) -> None:
    query = word_vectors(["word1 word2"], 2, 11)
    with closing(Reader.open(lineage.path)) as reader:
        raw = reader.search(query, 5)[0]
        assert_array_equal(reader.search(query, 5, **calibrated("own"))[0].scores, raw.scores)


def test_rows_of_the_version_itself_are_calibrated_for_queries_that_are_read_back(
    lineage: Lineage,
) -> None:
    """In the middle of a migration, against all pairs of canaries one by one."""
    store, maps = DictionaryStore("string"), VersionMaps(lineage)
    space = space_of(lineage, 0)
    store.add_space(space)
    texts = sentences()
    ids = pa.array([f"text-{i}" for i in range(len(texts))])
    store.upsert(stored_rows(maps, space, ids, word_vectors(texts, 0, 10)))
    query = maps.rows(word_vectors(texts[:60], 2, 11), 2, 0)
    with closing(Reader.open(lineage.path, {"object": store})) as reader:
        hits = reader.search(query, len(texts), 0, None, "cosine", **calibrated("read_back"))
        plain = reader.search(query, len(texts), 0, None, "cosine")
    threshold = float(np.quantile(pairs(lineage, 2, 0, "cosine")[1], 0.95))
    above, raw = (
        np.mean(np.concatenate([h.scores for h in found]) > threshold) for found in (hits, plain)
    )
    assert abs(above - 0.05) < 0.015 < abs(raw - 0.05)


def test_queries_of_a_version_between_are_calibrated_as_its_own(lineage: Lineage) -> None:
    """Fetched from a store that is partly refreshed, they were of version 1 and are read as 0."""
    ids = [lineage.canaries(version)["object"][0].to_pylist() for version in (0, 1, 2)]
    common = [i for i in ids[1] if i in ids[0] and i in ids[2]]
    of = []
    for version in (0, 1, 2):
        own_ids, own = lineage.canaries(version)["object"]
        places = [own_ids.to_pylist().index(i) for i in common]
        of.append(lineage.chain.apply(own[places], version, 0).double().numpy())
    now, then = (of_pairs(a, b, "ip", True) for a, b in ((of[1], of[2]), (of[0], of[0])))
    query = of[1][3].astype(np.float32)
    with closing(Reader.open(lineage.path)) as reader:
        raw = reader.search(query, 30, 0)[0]
        hits, again, production = (
            reader.search(query, 30, 0, scores="calibrated", query_vectors=made)[0].scores
            for made in (1, 1, "read_back")
        )
    assert_array_equal(hits, again)
    assert not np.allclose(hits, production, rtol=1e-3)
    inside = [i for i, s in enumerate(raw.scores) if now[10] < s < now[-10]]
    assert len(inside) > 5
    for i in inside:
        rank, slack = int(np.searchsorted(now, raw.scores[i])), 1 + len(now) // 2048
        low, high = max(0, rank - 1 - slack), min(len(then) - 1, rank + slack)
        assert then[low] - 1e-6 <= hits[i] <= then[high] + 1e-6


def test_whose_the_queries_are_must_be_said(lineage: Lineage) -> None:
    query = word_vectors(["word1"], 2, 11)
    with closing(Reader.open(lineage.path)) as reader:
        with pytest.raises(DataError, match="query_vectors is not given, but"):
            reader.search(query, scores="calibrated")
        with pytest.raises(DataError, match="query_vectors is True, but"):
            reader.search(query, scores="calibrated", query_vectors=True)
        with pytest.raises(UnknownVersionError, match="no version 7"):
            reader.search(query, scores="calibrated", query_vectors=7)
        with pytest.raises(DataError, match="from the model of version 2"):
            reader.search(query, scores="calibrated")


def test_too_few_canaries_are_refused(tmp_path: Path) -> None:
    lineage, texts = Lineage.create(tmp_path / "line", "line"), sentences(44)
    old, new = (encoded(tmp_path, address, texts=texts) for address in ADDRESSES[:2])
    align(old, new, lineage, AlignSettings("orthogonal", held_out=0.5, allow_small_overlap=True))
    with closing(Reader.open(lineage.path)) as reader:
        query = word_vectors(["word1"], 0, 10)
        with pytest.raises(LineageError, match="pairs have both scores, but 1000 are needed"):
            reader.search(query, 5, 0, **calibrated("own"))
        with pytest.raises(LineageError, match="canaries of side 'query'"):
            reader.search(query, 5, 0, query_side="query", **calibrated("own"))
        with pytest.raises(LineageError, match="no side"):
            reader.search(query, 5, 0, "query", **calibrated("own"))
        with pytest.raises(DataError, match="no scores 'nice'"):
            reader.search(query, 5, 0, scores="nice")  # type: ignore[arg-type]
        assert len(reader.search(query, 5, 0)[0]) == 5
