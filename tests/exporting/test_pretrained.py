"""A published encoder embeds ids, features and tables, and is saved and loaded."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.encoders import CANDIDATES, DIM, QUERIES, lineage_with_encoder, two_tower

import evergram
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import EntityInputs
from evergram.errors import DataError, FormatError, IntegrityError, LineageError
from evergram.exporting.pretrained_encoder import PretrainedEncoder, _Config
from evergram.lineage.lineage import Lineage
from evergram.lineage.record import sha256


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return lineage_with_encoder(tmp_path_factory.mktemp("pretrained") / "films")


@pytest.fixture(scope="module")
def encoder(films: Lineage) -> PretrainedEncoder:
    return PretrainedEncoder.of_version(films)


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
    containers += [pa.chunked_array([ids[:1], ids[1:]]), np.array(ids, np.int32)]
    for container in containers:
        vectors = encoder.encode(container)
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, truth)
    # And features, with and without an id.
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
    for module in filter(importlib.util.find_spec, ("pandas", "polars")):
        frames = importlib.import_module(module)
        frame = frames.DataFrame({"id": [103, 105], "genre": ["war", "noir"]})
        truth = expected([3, 5], [[2], [1]])
        np.testing.assert_allclose(encoder.encode(frame), truth, atol=1e-6)
        np.testing.assert_array_equal(encoder.encode(frame["id"]), expected([3, 5], [[], []]))


def test_known_ids_without_their_features_are_warned_of_once(
    films: Lineage, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = PretrainedEncoder.of_version(films)
    encoder.encode([{"id": key, "genre": "war"} for key in CANDIDATES])
    encoder.encode(QUERIES, "query")
    encoder.encode([{"id": 999, "genre": "war"}, {"genre": "noir"}])
    genres = pa.table({"id": CANDIDATES, "genre": ["war"] * len(CANDIDATES)})
    pairs = [("ann", key) for key in CANDIDATES]
    encoder.encode(Corpus.of(pairs, candidate_features=genres))
    assert caplog.text == ""
    encoder.encode(CANDIDATES)
    assert "40 of 40 objects of side 'candidate' are known by id" in caplog.text
    assert 'encode([{"id": …, "genre": …}, …])' in caplog.text
    encoder.encode(CANDIDATES)
    assert len(caplog.records) == 1
    PretrainedEncoder.of_version(films).encode(Corpus.of(pairs))
    assert len(caplog.records) == 2


def test_a_corpus_is_embedded_in_its_row_order(encoder: PretrainedEncoder) -> None:
    table = pa.table({"query": ["eve", "ann"], "candidate": [105, 103]})
    corpus = Corpus.of(table)
    np.testing.assert_array_equal(encoder.encode(corpus), expected([5, 3], [[], []]))
    np.testing.assert_array_equal(
        encoder.encode(corpus, "query"), encoder.encode(["eve", "ann"], "query")
    )
    unknown = Corpus.of([("eve", 105), ("eve", 999), ("ann", 998)])
    with pytest.raises(DataError, match=r"no vector for 2 of 3 objects.*number 1 \(id 999\)"):
        encoder.encode(unknown)
    assert len(encoder.encode(unknown, "query")) == 2


REFUSED: list[tuple[Any, str, str]] = [
    ([1], "user", "side 'user' is unknown; give query or candidate"),
    ([999, 103, 998], "candidate", r"no vector for 2 of 3 objects.*number 0 \(id 999\)"),
    ([{"id": 103, "gender": "x"}], "candidate", "no feature 'gender'.*it has id, genre"),
    (["103"], "candidate", "ids of side 'candidate' are string, such as '103', but .* int64"),
    ([7], "query", "ids of side 'query' are int64, such as 7, but .* string"),
    ([{"id": "103", "genre": "war"}], "candidate", "'candidate' are string"),
    (Corpus.of([("eve", "103")]), "candidate", "'candidate' are string"),
    ([1.5], "candidate", "'id' has the type double"),
    ([103, 2**63], "candidate", "'id' cannot be read"),
    (np.array([2**63], np.uint64), "candidate", "9223372036854775808"),
    ("ann", "query", "A single str was given; give a list"),
    ({"id": 103}, "candidate", "A single dict was given; give a list"),
    ([{}], "candidate", "No ids and no features"),
]


def test_an_object_that_cannot_be_embedded_is_named(encoder: PretrainedEncoder) -> None:
    for objects, side, message in REFUSED:
        with pytest.raises(DataError, match=message):
            encoder.encode(objects, side)
    with pytest.raises(DataError, match="batch_size is 0"):
        encoder.encode([103], batch_size=0)


def test_a_version_is_named_as_everywhere_and_batches_change_nothing(
    films: Lineage, encoder: PretrainedEncoder, lineage: Lineage
) -> None:
    films.label("stable", 0)
    assert PretrainedEncoder.of_version(films, "stable").facts == encoder.facts
    assert (encoder.kind, encoder.dim) == ("two_tower", DIM)
    assert encoder.features == {"query": ["id"], "candidate": ["id", "genre"]}
    with pytest.raises(LineageError, match="came from a file"):
        PretrainedEncoder.of_version(lineage)
    whole = encoder.encode(CANDIDATES)
    parts = encoder.encode(CANDIDATES, batch_size=7)
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-5)
    assert encoder.encode([]).shape == (0, DIM)


def test_an_encoder_is_saved_and_loaded_whole(encoder: PretrainedEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    encoder.save_pretrained(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".md"}
    again = evergram.PretrainedEncoder.from_pretrained(folder)
    assert (again.facts, again.record) == (encoder.facts, encoder.record)
    objects = [{"id": 103, "genre": ["war"]}]
    np.testing.assert_array_equal(again.encode(objects), encoder.encode(objects))
    np.testing.assert_array_equal(again.encode(["eve"], "query"), encoder.encode(["eve"], "query"))
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: evergram\n")
    assert "- candidate: `id`, `genre`" in card
    with pytest.raises(DataError, match="already exists"):
        encoder.save_pretrained(folder)


def test_a_damaged_folder_is_refused(encoder: PretrainedEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        PretrainedEncoder.from_pretrained(folder)
    encoder.save_pretrained(folder)
    for name in ("model.safetensors", "vocabularies.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(IntegrityError, match=name):
            PretrainedEncoder.from_pretrained(folder)
        (folder / name).write_bytes(content)
    config = json.loads((folder / "config.json").read_text())
    vocabularies = folder / "vocabularies.json"
    vocabularies.write_text('{"query.id": [{}]}')
    hashes = {**config["files"], vocabularies.name: sha256(vocabularies)}

    def sealed(files: dict[str, str]) -> str:
        return _Config.model_validate({**config, "files": files}).to_json()

    for text, error, named in (
        (json.dumps({**config, "format_version": 2}), FormatError, "upgrade Evergram"),
        (json.dumps({**config, "evergram": "9"}), IntegrityError, "checksum"),
        (sealed({}), IntegrityError, "does not list"),
        (sealed(hashes), IntegrityError, r"vocabularies\.json"),
        ("{", IntegrityError, r"config\.json"),
        ("[]", IntegrityError, r"config\.json"),
        (json.dumps({**config, "encoder": {"kind": "odd"}}), IntegrityError, r"config\.json"),
    ):
        (folder / "config.json").write_text(text)
        with pytest.raises(error, match=named):
            PretrainedEncoder.from_pretrained(folder)
