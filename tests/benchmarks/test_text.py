"""The text benchmark never reads the line of an article that names its category."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import text

ARTICLE = """   #copyright

Áedán

2007 Schools Wikipedia Selection. Related subjects: British History 1500 and
before (including Roman Britain); Historical figures

   Satellite image of northern Britain and Ireland showing the approximate area.
   Enlarge
   Satellite image of northern Britain and Ireland.

   Áedán was king of Dál Riata (c. 574) in modern
   Argyll. He was a contemporary of Columba.

Background
"""


def test_the_first_sentence_is_of_the_first_paragraph_that_is_one() -> None:
    assert text.first_sentence(ARTICLE) == (
        "Áedán was king of Dál Riata (c. 574) in modern Argyll."
    )
    assert text.first_sentence("Title\n\n   A caption\n") == ""


@pytest.mark.long
def test_no_text_names_its_subjects(real_data: Path) -> None:
    names, texts = zip(*text.articles(), strict=True)
    assert len(names) == len(set(names)) == 4598
    assert not any("Related subjects" in t or "#copyright" in t for t in texts)
    assert all(len(t) > len(n) + 2 for n, t in zip(names, texts, strict=True))
    labels = text.categories(list(names))
    assert len(labels) == 10
    assert min(mask.sum() for mask in labels.values()) >= text.LEAST_ARTICLES
    assert labels["Science"][names.index("Nobelium")]


def test_tf_idf_is_of_the_training_texts_alone() -> None:
    words = ["red", "blue", "green", "fish", "bird", "tree"]
    texts = [f"{a} {b} {c}" for a in words for b in words for c in words if a < b < c] * 2
    training = np.arange(len(texts)) % 3 > 0
    vectors = text.tf_idf(texts, training, 3)
    changed = [
        t if used else f"{t} stone stone river" for t, used in zip(texts, training, strict=True)
    ]
    again = text.tf_idf(changed, training, 3)
    assert vectors.shape == (len(texts), 3)
    assert np.array_equal(vectors, again)  # words that no training text has count for nothing


def test_the_encoder_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr("socket.socket.connect", refuse)
    owl, bird, dam = text.sentence_vectors(["The owl.", "A bird of the night.", "Hoover Dam."])
    assert owl.shape == (384,)
    assert owl @ bird > owl @ dam
