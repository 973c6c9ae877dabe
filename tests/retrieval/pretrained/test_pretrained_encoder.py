"""A published encoder embeds ids, features and tables, and is saved and loaded whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.artefacts import artefact
from tests.support.encoders import (
    CANDIDATES,
    DIM,
    GENRES,
    QUERIES,
    lineage_with_encoder,
    two_tower,
)
from tests.support.lineages import lineage_of

import evergram
from evergram.data.corpus import Corpus
from evergram.encoders.features import EntityInputs
from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.pretrained.pretrained_encoder import PretrainedEncoder


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_with_encoder(tmp_path / "films")


@pytest.fixture
def encoder(lineage: Lineage) -> PretrainedEncoder:
    return lineage.encoder()


def expected(rows: list[int], genres: list[list[int]]) -> np.ndarray:
    """Vectors of candidates by rows of the vocabularies, straight from the module."""
    flat = torch.tensor([g for bag in genres for g in bag], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in genres])], dtype=torch.int64)
    inputs = EntityInputs(torch.tensor(rows, dtype=torch.int64), {"genre": (flat, offsets)})
    with torch.no_grad():
        return two_tower().embed("candidate", inputs).numpy()


def test_ids_are_embedded_in_any_container(encoder: PretrainedEncoder) -> None:
    truth = expected([3, 0, 3], [[], [], []])
    ids = [103, 100, 103]
    containers: list[Any] = [ids, tuple(ids), np.array(ids), pa.array(ids), torch.tensor(ids)]
    containers += [
        pa.chunked_array([ids[:1], ids[1:]]),
        np.array(ids, np.int32),
    ]
    for container in containers:
        vectors = encoder.encode(container)
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, truth)


def test_features_are_embedded_with_and_without_an_id(encoder: PretrainedEncoder) -> None:
    objects = [
        {"id": 103, "genre": ["war", "drama"]},
        {"genre": "noir"},
        {"id": 105, "genre": []},
        {"id": 999, "genre": ["drama", "unheard of"]},
        {"id": None, "genre": ("noir",)},
    ]
    truth = expected([3, -1, 5, -1, -1], [[2, 0], [1], [], [0], [1]])
    np.testing.assert_allclose(encoder.encode(objects), truth, atol=1e-6)
    table = pa.table(
        {
            "id": pa.array([103, None, 105, 999, None]),
            "genre": [["war", "drama"], ["noir"], None, ["drama", "unheard of"], ["noir"]],
        }
    )
    np.testing.assert_allclose(encoder.encode(table), truth, atol=1e-6)
    batch = table.combine_chunks().to_batches()[0]
    np.testing.assert_allclose(encoder.encode(batch), truth, atol=1e-6)


def test_known_ids_without_their_features_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    genres = {100 + i: GENRES[i % 3] for i in range(12)}
    people = [*QUERIES, *(f"person {n}" for n in range(20))]
    pairs = [(q, 100 + (3 * i + j) % 12) for i, q in enumerate(people) for j in range(5)]
    features = pa.table({"id": list(genres), "genre": list(genres.values())})
    corpus = Corpus.of(pairs, candidate_features=features)
    values = {
        "data": {"kind": "python"},
        "split": {"kind": "random", "share": 0.2},
        "model": {"kind": "two_tower", "dim": [4], "hidden": [4]},
        "training": {"epochs": 2, "batch_size": 16, "feature_rate": 0.5},
    }
    artefact = evergram.train(evergram.Recipe.of(values), corpus, progress=False)
    lineage = Lineage.create(tmp_path / "l")
    lineage.publish(artefact)
    ids, published = lineage.embeddings("candidate")
    encoder = lineage.encoder()
    caplog.clear()
    objects = [{"id": key, "genre": genres[key]} for key in ids.to_pylist()]
    np.testing.assert_allclose(encoder.encode(objects), published.numpy(), atol=1e-5)
    encoder.encode(QUERIES, "query")
    encoder.encode([{"id": 999, "genre": "war"}, {"genre": "noir"}])
    encoder.encode(corpus)
    assert caplog.text == ""
    assert np.abs(encoder.encode(ids) - published.numpy()).max() > 0.01
    assert f"{len(ids)} of {len(ids)} objects of side 'candidate' are known by id" in caplog.text
    assert 'pass the features too, as encode([{"id": …, "genre": …}, …])' in caplog.text
    encoder.encode(ids)
    assert len(caplog.records) == 1
    lineage.encoder().encode(Corpus.of(pairs))
    assert len(caplog.records) == 2


def test_frames_are_embedded(encoder: PretrainedEncoder) -> None:
    truth = expected([3, 5], [[2], [1]])
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [103, 105], "genre": ["war", "noir"]}, index=[7, 9])
    np.testing.assert_allclose(encoder.encode(frame), truth, atol=1e-6)
    np.testing.assert_array_equal(encoder.encode(frame["id"]), expected([3, 5], [[], []]))
    frame["genre"] = frame["genre"].astype("category")
    np.testing.assert_allclose(encoder.encode(frame), truth, atol=1e-6)


def test_polars_frames_are_embedded(encoder: PretrainedEncoder) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"id": [103, 105], "genre": [["war"], ["noir"]]})
    truth = expected([3, 5], [[2], [1]])
    np.testing.assert_allclose(encoder.encode(frame), truth, atol=1e-6)


def test_a_corpus_is_embedded_in_its_row_order(encoder: PretrainedEncoder) -> None:
    table = pa.table({"query": ["eve", "ann"], "candidate": [105, 103]})
    corpus = Corpus.from_tables(table)
    np.testing.assert_array_equal(encoder.encode(corpus), expected([5, 3], [[], []]))
    np.testing.assert_array_equal(
        encoder.encode(corpus, "query"), encoder.encode(["eve", "ann"], "query")
    )
    unknown = Corpus.of([("eve", 105), ("eve", 999), ("ann", 998)])
    with pytest.raises(DataError, match=r"no vector for 2 of 3 objects.*number 1 \(id 999\)"):
        encoder.encode(unknown)
    assert len(encoder.encode(unknown, "query")) == 2


def test_batches_and_the_bar_change_nothing(
    encoder: PretrainedEncoder, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = encoder.encode(CANDIDATES)
    parts = encoder.encode(CANDIDATES, batch_size=7, show_progress_bar=True, convert_to_numpy=False)
    assert isinstance(parts, torch.Tensor)
    np.testing.assert_allclose(parts.numpy(), whole, rtol=1e-4, atol=1e-5)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Encoding" in captured.err
    assert encoder.encode([]).shape == (0, DIM)


@pytest.mark.parametrize(
    ("objects", "side", "message"),
    [
        ([1], "user", "no side 'user'; there is query and candidate"),
        ([999, 103, 998], "candidate", r"no vector for 2 of 3 objects.*number 0 \(id 999\)"),
        ([{"id": 103, "gender": "x"}], "candidate", "no feature 'gender'.*it has id, genre"),
        (["103"], "candidate", "ids of side 'candidate' are string, such as '103'; .* are int64"),
        ([7], "query", "ids of side 'query' are int64, such as 7; .* are string"),
        ([{"id": "103", "genre": "war"}], "candidate", "'candidate' are string"),
        (Corpus.of([("eve", "103")]), "candidate", "'candidate' are string"),
        ([1.5], "candidate", "'id' holds double; keys are integers or texts"),
        ([103, 2**63], "candidate", "'id' cannot be read"),
        (np.array([2**63], np.uint64), "candidate", "'id' holds 9223372036854775808; .* below 2⁶³"),
        ([103, "a"], "candidate", "'id' cannot be read"),
        ("ann", "query", "One str was given; give a list"),
        ({"id": 103}, "candidate", "One dict was given; give a list"),
        ([{}], "candidate", "No ids and no features"),
    ],
)
def test_an_object_that_cannot_be_embedded_is_named(
    encoder: PretrainedEncoder, objects: Any, side: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        encoder.encode(objects, side)
    with pytest.raises(DataError, match="batch_size is 0"):
        encoder.encode([103], batch_size=0)


def test_versions_are_named_as_everywhere(lineage: Lineage, tmp_path: Path) -> None:
    lineage.label("stable", 0)
    assert lineage.encoder("stable").facts == lineage.encoder("v0").facts
    assert (lineage.encoder().kind, lineage.encoder().dim) == ("two_tower", DIM)
    assert PretrainedEncoder.of_version(lineage, 0).features == {
        "query": ["id"],
        "candidate": ["id", "genre"],
    }
    with pytest.raises(LineageError, match="came from a file"):
        lineage_of(tmp_path / "files", 1).encoder()


def test_an_encoder_is_saved_and_loaded_whole(encoder: PretrainedEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    encoder.save_pretrained(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["films", "saved"]
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".md"}
    again = evergram.PretrainedEncoder.from_pretrained(folder)
    assert (again.facts, again.record, again.metrics) == (
        encoder.facts,
        encoder.record,
        encoder.metrics,
    )
    objects = [{"id": 103, "genre": ["war"]}]
    np.testing.assert_array_equal(again.encode(objects), encoder.encode(objects))
    np.testing.assert_array_equal(again.encode(["eve"], "query"), encoder.encode(["eve"], "query"))
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: evergram\n")
    assert "| recall@20 | 0.25 |\n| map@10 | not measured |" in card
    assert "| candidate | `id`, `genre` |" in card
    with pytest.raises(DataError, match="is there already"):
        encoder.save_pretrained(folder)
    encoder.save_pretrained(folder, overwrite=True)
    with pytest.raises(DataError, match="holds no encoder"):
        encoder.save_pretrained(tmp_path / "films", overwrite=True)


def test_a_model_without_features_is_embedded_too(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "l")
    published = artefact(3)
    lineage.publish(published)
    vectors = lineage.encoder().encode(["c", "a"], "query")
    np.testing.assert_array_equal(vectors, published.block("query")[1][[2, 0]].numpy())
