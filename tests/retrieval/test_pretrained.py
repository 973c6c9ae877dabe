"""A published encoder embeds ids, features and tables, and is saved, loaded and pushed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.encoders import CANDIDATES, DIM, GENRES, QUERIES, lineage_with_encoder, two_tower
from tests.support.hub_folder import HubFolder, refusal
from tests.support.lineages import lineage_of
from tests.support.optional import need

import evergram
from evergram.data.corpus import Corpus
from evergram.encoders.features import EntityInputs
from evergram.errors import DataError, FormatError, IntegrityError, LineageError, ServiceError
from evergram.lineage.disk.manifest import EncoderRecord, sha256
from evergram.lineage.lineage import Lineage
from evergram.retrieval.pretrained.encoder_folder import (
    EncoderFacts,
)
from evergram.retrieval.pretrained.hub import is_repository
from evergram.retrieval.pretrained.model_card import CardPlace, model_card
from evergram.retrieval.pretrained.pretrained_encoder import PretrainedEncoder


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return lineage_with_encoder(tmp_path_factory.mktemp("pretrained") / "films")


@pytest.fixture(scope="module")
def encoder(films: Lineage) -> PretrainedEncoder:
    return films.encoder()


def optional(module: str) -> Any:
    return importlib.import_module(module) if importlib.util.find_spec(module) else None


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
    for module in ("pandas", "polars"):
        if (frames := optional(module)) is not None:
            frame = frames.DataFrame({"id": [103, 105], "genre": ["war", "noir"]})
            truth = expected([3, 5], [[2], [1]])
            np.testing.assert_allclose(encoder.encode(frame), truth, atol=1e-6)
            np.testing.assert_array_equal(encoder.encode(frame["id"]), expected([3, 5], [[], []]))


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


def test_versions_are_named_as_everywhere(films: Lineage, tmp_path: Path) -> None:
    films.label("stable", 0)
    assert films.encoder("stable").facts == films.encoder("v0").facts
    assert (films.encoder().kind, films.encoder().dim) == ("two_tower", DIM)
    assert PretrainedEncoder.of_version(films, 0).features == {
        "query": ["id"],
        "candidate": ["id", "genre"],
    }
    with pytest.raises(LineageError, match="came from a file"):
        lineage_of(tmp_path / "files", 1).encoder()


def test_batches_change_nothing_and_the_bar_is_not_on_stdout(
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


def test_an_encoder_is_saved_and_loaded_whole(encoder: PretrainedEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    encoder.save_pretrained(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
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
        encoder.save_pretrained(tmp_path, overwrite=True)


def test_a_damaged_folder_is_refused(encoder: PretrainedEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        PretrainedEncoder.from_pretrained(folder)
    encoder.save_pretrained(folder)
    for name in ("model.safetensors", "vocabularies.json", "metrics.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(IntegrityError, match=name):
            PretrainedEncoder.from_pretrained(folder)
        (folder / name).write_bytes(content)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format_version": 2}))
    with pytest.raises(FormatError, match="upgrade Evergram"):
        PretrainedEncoder.from_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**config, "files": {}}))
    with pytest.raises(IntegrityError, match="does not list"):
        PretrainedEncoder.from_pretrained(folder)
    vocabularies = (folder / "vocabularies.json").read_bytes()
    (folder / "vocabularies.json").write_text('{"query.id": [{}]}')
    hashes = {**config["files"], "vocabularies.json": sha256(folder / "vocabularies.json")}
    (folder / "config.json").write_text(json.dumps({**config, "files": hashes}))
    with pytest.raises(IntegrityError, match=r"vocabularies\.json does not hold"):
        PretrainedEncoder.from_pretrained(folder)
    (folder / "vocabularies.json").write_bytes(vocabularies)
    for text in ("{", "[]", json.dumps({**config, "encoder": {"kind": "unheard of"}})):
        (folder / "config.json").write_text(text)
        with pytest.raises(IntegrityError, match=r"config\.json is damaged"):
            PretrainedEncoder.from_pretrained(folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubFolder:
    need("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    return HubFolder(tmp_path / "hub").install(monkeypatch)


def test_an_encoder_comes_back_as_it_was_pushed(hub: HubFolder, encoder: PretrainedEncoder) -> None:
    commit = encoder.push_to_hub("me/films", license="mit", private=True, token="t")
    pushed = {path.name for path in (hub.root / commit).iterdir()}
    assert {Path(name).suffix for name in pushed} == {".json", ".safetensors", ".md"}
    assert ("create_repo", {"repo_id": "me/films", "private": True, "exist_ok": True}) in hub.calls
    assert hub.calls[0][1]["token"] == "t"
    message = f"{encoder.facts.name}, {encoder.facts.fingerprint}"
    assert ("upload_folder", {"commit_message": message}) in hub.calls
    card = (hub.root / commit / "README.md").read_text()
    assert "\nlicense: mit\n" in card
    assert 'PretrainedEncoder.from_pretrained("me/films")' in card
    again = PretrainedEncoder.from_pretrained("me/films")
    assert (again.facts, again.metrics) == (encoder.facts, encoder.metrics)
    objects = [{"id": 103, "genre": ["war"]}]
    np.testing.assert_array_equal(again.encode(objects), encoder.encode(objects))


def test_a_revision_is_a_branch_or_a_commit(hub: HubFolder, encoder: PretrainedEncoder) -> None:
    first = encoder.push_to_hub("me/films")
    second = encoder.push_to_hub("me/films", revision="next", license="mit")
    assert first != second
    assert hub.branches["me/films", "main"] == first
    for revision in (first, "main", "next", None):
        again = PretrainedEncoder.from_pretrained("me/films", revision=revision)
        assert again.facts == encoder.facts
    encoder.save_pretrained("folder")
    with pytest.raises(DataError, match="no revisions"):
        PretrainedEncoder.from_pretrained("folder", revision="main")
    with pytest.raises(DataError, match="no such revision of me/films"):
        PretrainedEncoder.from_pretrained("me/films", revision="v9")


def test_other_files_of_a_repository_are_not_fetched(
    hub: HubFolder, encoder: PretrainedEncoder, tmp_path: Path
) -> None:
    commit = encoder.push_to_hub("me/films")
    (hub.root / commit / "weights.pkl").write_bytes(b"x")
    (hub.root / commit / "modeling.py").write_text("raise SystemExit")
    PretrainedEncoder.from_pretrained("me/films")
    fetched = {path.name for path in (tmp_path / "cache" / commit).iterdir()}
    assert fetched == {"config.json", "metrics.json", "model.safetensors", "vocabularies.json"}


def test_what_is_no_name_of_a_repository_asks_no_hub(
    hub: HubFolder, encoder: PretrainedEncoder
) -> None:
    for name in ("films", "me/films/x", "../films", "me/..", "me/a--b", "", "/x"):
        assert not is_repository(name)
        with pytest.raises(DataError, match="OWNER/NAME"):
            encoder.push_to_hub(name)
    assert hub.calls == []


def test_refusals_of_the_hub_are_sentences(
    hub: HubFolder, encoder: PretrainedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="no such repository of me/nothing"):
        PretrainedEncoder.from_pretrained("me/nothing")

    def refuse(*_: Any, **__: Any) -> None:
        raise refusal("HfHubHTTPError", 403)

    monkeypatch.setattr(hub, "create_repo", refuse)
    with pytest.raises(ServiceError, match="cannot be used for me/films: 403 from the Hub"):
        encoder.push_to_hub("me/films")


def test_without_the_library_the_sentence_names_the_extra(
    encoder: PretrainedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"pip install 'evergram\[hub\]'"):
        encoder.push_to_hub("me/films")


HERE = CardPlace("models/shop")


def card(metrics: dict[str, Any], kind: str = "two_tower", place: CardPlace = HERE) -> str:
    record = EncoderRecord(
        kind=kind,
        options={},
        inputs={"query": {"id": "q"}, "candidate": {"id": "c", "genre": "g"}},
        vocabularies={},
    )
    facts = EncoderFacts(
        name="shop@v3", version=3, fingerprint="sha256:abc", dim=64, created="2024-05-01"
    )
    return model_card(record, facts, metrics, place)


def test_a_card_calls_the_encoder_with_all_that_it_reads() -> None:
    text = card({})
    assert 'encoder.encode([ID, ...], side="query")\n' in text
    assert 'encoder.encode([{"id": ID, "genre": [KEYS]}, ...], side="candidate")\n' in text
    graph = card({}, "graphsage")
    assert 'encoder.encode(corpus, side="candidate")  # an evergram.Corpus\n' in graph
    assert "ID" not in graph
    assert "\nNo test figure: of thirty.\n" in card({"untested": "No test figure: of thirty."})


def test_a_sampled_metric_has_its_error_and_the_samples_size() -> None:
    ranking = {"past": {"recall@20": 0.5}, "chain": {"recall@20": 0.4}}
    errors = {"chain": {"recall@20": 0.01}}
    text = card(
        {
            "metrics": {"model": {"recall@20": 0.25}},
            "sampled": {"queries": 5000, "of": 60_000, "errors": {"model": {"recall@20": 0.0123}}},
            "compatibility": {"0": {"ranking": ranking, "sampled": {"errors": errors}}},
        }
    )
    assert "| recall@20 | 0.25 ±0.0123 |" in text
    assert "Measured on 5,000 of 60,000 test queries" in text
    assert "| 0 | recall@20 | 0.5 | 0.4 ±0.0100 |" in text


def test_a_licence_that_is_no_word_of_the_hub_is_refused() -> None:
    for text in ("", "MIT License", "mit\ntags: x", "mit: x", "-", "a" * 65):
        with pytest.raises(DataError):
            CardPlace("me/shop", text)
