"""The README.md of an encoder: its facts, and its metrics as they were published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evergram.errors import DataError
from evergram.lineage.disk.manifest import EncoderRecord
from evergram.retrieval.pretrained.encoder_folder import EncoderFacts
from evergram.retrieval.pretrained.model_card import CardPlace, model_card

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


def test_a_card_says_what_the_encoder_is_and_reads() -> None:
    text = card({})
    assert text.startswith("---\nlibrary_name: evergram\ntags:\n- embeddings\n- two_tower\n---\n")
    assert "# shop@v3\n" in text
    assert "with 64 dimensions, published on\n2024-05-01. Its vectors are in the" in text
    assert "| query | `id` |\n| candidate | `id`, `genre` |" in text
    assert "Nothing was measured when it was published." in text


def test_a_card_calls_the_encoder_with_all_that_it_reads() -> None:
    text = card({})
    assert 'encoder.encode([ID, ...], side="query")\n' in text
    assert 'encoder.encode([{"id": ID, "genre": [KEYS]}, ...], side="candidate")\n' in text
    graph = card({}, "graphsage")
    assert 'encoder.encode(corpus, side="candidate")  # an evergram.Corpus\n' in graph
    assert "ID" not in graph


def test_metrics_are_rounded_and_what_is_not_known_is_not_measured() -> None:
    text = card({"metrics": {"model": {"recall@20": 0.123456, "map@10": None}}})
    assert (
        "| metric | value |\n|---|---|\n| recall@20 | 0.1235 |\n| map@10 | not measured |" in text
    )
    assert "Nothing was measured" not in text


def test_a_version_that_was_not_tested_says_why() -> None:
    assert "\nNo test figure: of thirty.\n" in card({"untested": "No test figure: of thirty."})


def test_each_past_version_is_beside_its_own_vectors() -> None:
    ranking = {"past": {"recall@20": 0.5}, "chain": {"recall@20": 0.25, "ndcg@20": 0.125}}
    text = card({"compatibility": {"0": {"ranking": ranking}}})
    assert "| 0 | recall@20 | 0.5 | 0.25 |\n| 0 | ndcg@20 | not measured | 0.125 |" in text


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


def test_the_licence_is_the_owners_and_the_hub_reads_the_front_matter(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    path = tmp_path / "README.md"
    path.write_text(card({}, place=CardPlace("me/shop", "apache-2.0")), encoding="utf-8")
    data = hub.ModelCard.load(path).data
    assert (data.license, data.library_name) == ("apache-2.0", "evergram")
    assert data.tags == ["embeddings", "two_tower"]
    assert 'from_pretrained("me/shop")' in path.read_text()
    path.write_text(card({}), encoding="utf-8")
    assert hub.ModelCard.load(path).data.license is None


@pytest.mark.parametrize("text", ["", "MIT License", "mit\ntags: x", "mit: x", "-", "a" * 65])
def test_a_licence_that_is_no_word_of_the_hub_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="cannot stand in a model card"):
        CardPlace("me/shop", text)
