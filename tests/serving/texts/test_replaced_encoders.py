"""An encoder that no version uses any more is closed after its last call, and never used again."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose
from tests.support.text_encoders import ADDRESSES, word_vectors

from evergram.serving.texts.checked_encoder import TextEncoderError
from evergram.serving.texts.documents import Documents
from evergram.serving.texts.served_texts import ServedTexts
from evergram.texts.addresses import open_text_encoder
from evergram.texts.callable_encoder import CallableEncoder
from evergram.texts.record import TextEncoderRecord, record_of

TEXTS = ["word1 word2", "word3"]
FIRST, SECOND, THIRD = (record_of(open_text_encoder(address)) for address in ADDRESSES)


def lineage_of(production: int, *records: TextEncoderRecord | None) -> Any:
    """A lineage of versions 0, 1, … with these encoders."""
    versions = [
        SimpleNamespace(version=number, text_encoder=record)
        for number, record in enumerate(records)
    ]
    return SimpleNamespace(production=production, versions=versions)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the encoders that were closed."""
    addresses: list[str] = []
    monkeypatch.setattr(CallableEncoder, "close", lambda self: addresses.append(self.address))
    return addresses


def opened(texts: ServedTexts) -> list[str]:
    return [encoder.address for encoder in texts._open.values()]


def test_an_encoder_is_closed_when_no_version_uses_it(closed: list[str]) -> None:
    texts = ServedTexts(ADDRESSES)
    texts.load(lineage_of(0, FIRST))
    model = weakref.ref(next(iter(texts._open.values())))
    texts.load(lineage_of(1, FIRST, SECOND))
    # It may still be asked for by requests under way.
    assert closed == []
    texts.load(lineage_of(2, FIRST, SECOND, THIRD))
    assert closed == ADDRESSES[:1]
    assert model() is None
    assert opened(texts) == ADDRESSES[1:]
    texts.close()
    assert closed == ADDRESSES


def test_versions_of_the_same_encoder_share_it_to_the_last(closed: list[str]) -> None:
    texts = ServedTexts(ADDRESSES)
    for production in range(3):
        texts.load(lineage_of(production, *[FIRST] * (production + 1)))
    assert (opened(texts), closed) == (ADDRESSES[:1], [])
    assert len(texts.encode(2, TEXTS, "document")) == 2


def test_an_encoder_is_closed_after_its_last_call(closed: list[str]) -> None:
    texts = ServedTexts(ADDRESSES)
    texts.load(lineage_of(0, FIRST))
    entered, go = threading.Event(), threading.Event()

    def slowly(asked: list[str]) -> Any:
        entered.set()
        assert go.wait(60)
        return word_vectors(asked, 0, 10)

    next(iter(texts._open.values()))._function = slowly  # type: ignore[attr-defined]
    retired = texts._encoders[0]
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(texts.encode, 0, TEXTS, "document")
        try:
            assert entered.wait(60)
            texts.load(lineage_of(1, FIRST, SECOND))
            texts.load(lineage_of(2, FIRST, SECOND, THIRD))
            texts.look()
            assert closed == []
            with pytest.raises(TextEncoderError, match="was replaced in the meantime"):
                retired.encode(TEXTS, "document")
            assert not retired.check()
        finally:
            go.set()
        assert_allclose(under_way.result(60), word_vectors(TEXTS, 0, 10), rtol=1e-5)
    texts.look()
    assert closed == ADDRESSES[:1]


def test_an_encoder_that_could_not_be_opened_is_tried_again_with_those_that_are_open(
    closed: list[str],
) -> None:
    """Else each try would open anew what turned out to be another before."""
    texts = ServedTexts(ADDRESSES[1:2])
    texts.load(lineage_of(0, FIRST))
    assert texts.problem is not None
    texts.look()
    assert (opened(texts), closed) == (ADDRESSES[1:2], [])


def test_a_number_that_goes_to_another_version_is_encoded_by_its_encoder() -> None:
    """As in a lineage that was restored from a copy, and published to again."""
    texts = ServedTexts(ADDRESSES)
    texts.load(lineage_of(1, FIRST, SECOND))
    texts.encode(1, TEXTS, "document")
    texts.load(lineage_of(0, FIRST))
    texts.load(lineage_of(1, FIRST, THIRD))
    assert texts.cached(1, TEXTS, "document") is None
    assert_allclose(texts.encode(1, TEXTS, "document"), word_vectors(TEXTS, 2, 11), rtol=1e-5)
    # A request under way may be of the lineage before.
    for ask in (texts.encode, texts.cached):
        with pytest.raises(TextEncoderError, match="was replaced in the meantime; try again"):
            ask(1, TEXTS, "document", SECOND)
    texts.load(lineage_of(1, FIRST, None))
    with pytest.raises(TextEncoderError, match="records no encoder"):
        texts.encode(1, TEXTS, "document")


def test_kept_vectors_of_a_replaced_encoder_are_dropped_unless_it_was_checked(
    tmp_path: Path,
) -> None:
    (tmp_path / "texts.csv").write_text("id,text\n1,word1 word2\n2,word3\n")
    documents = Documents(tmp_path / "texts.csv")
    texts = ServedTexts(ADDRESSES, documents=documents)
    texts.load(lineage_of(0, FIRST))

    def encode(some: list[str]) -> np.ndarray:
        return texts.encode(0, some, "document", FIRST)

    kept = documents.kept(0, "space", 10, encode, FIRST)
    kept.of(pa.array([1]))
    texts.check()
    kept.of(pa.array([2]))
    texts.load(lineage_of(0, SECOND))
    assert kept.ids().to_pylist() == [1]
    with pytest.raises(TextEncoderError, match="was replaced"):
        kept.of(pa.array([2]))
