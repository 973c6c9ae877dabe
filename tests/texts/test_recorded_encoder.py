"""The encoder of a record is opened by its addresses, and known again in each batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from numpy.testing import assert_array_equal
from tests.support.text_encoders import ADDRESSES, CALLS, third, word_vectors

from evergram.errors import DataError
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import record_of
from evergram.texts.recorded_encoder import (
    RECORDED,
    MismatchError,
    RecordedEncoder,
    open_recorded,
)
from evergram.texts.text_encoder import Prompts, Vectors

PROMPTS = Prompts("word50 ", "word51 ")


def test_the_recorded_encoder_is_found_among_the_addresses_with_its_prompts() -> None:
    record = record_of(open_text_encoder(ADDRESSES[1], PROMPTS))
    encoder = open_recorded(record, ADDRESSES)
    assert (encoder.address, encoder.prompts) == (ADDRESSES[1], PROMPTS)
    with pytest.raises(MismatchError, match="its vectors have 10 dims, not 12"):
        open_recorded(record, ADDRESSES[:1])


def test_a_recorded_function_is_opened_only_where_it_is_named() -> None:
    record = record_of(open_text_encoder(ADDRESSES[0]))
    opened: list[str] = []

    def opener(address: str, prompts: Prompts) -> Any:
        opened.append(address)
        return open_text_encoder(address, prompts)

    with pytest.raises(MismatchError, match="not among the addresses that may be opened"):
        open_recorded(record, [RECORDED], opener)
    assert not opened
    open_recorded(record, [RECORDED, ADDRESSES[0]], opener)
    assert opened == [ADDRESSES[0]]


def test_a_recorded_model_is_opened_and_one_that_is_gone_is_an_error() -> None:
    record = record_of(open_text_encoder(ADDRESSES[0])).model_copy(
        update={"address": "model2vec:/nowhere"}
    )
    with pytest.raises(DataError):
        open_recorded(record, [RECORDED], lambda address, prompts: _gone(address))


def _gone(address: str) -> Any:
    raise DataError(f"{address} is gone")


def test_each_batch_takes_a_canary_along_and_shows_another_model() -> None:
    encoder: Any = open_text_encoder(ADDRESSES[0], Prompts())
    recorded = RecordedEncoder(encoder, record_of(encoder))
    CALLS.clear()
    for turn in range(2):
        vectors = recorded.encode(["word1 word2"], "query")
        assert_array_equal(vectors, word_vectors(["word1 word2"], 0, 10))
        assert CALLS[-1] == ["word1 word2", recorded.record.texts[turn]]
    recorded.check()
    encoder._encode = lambda texts, prompt: third(list(texts))
    with pytest.raises(MismatchError, match="11 dims, not 10"):
        recorded.encode(["word1"], "document")
    with pytest.raises(MismatchError):
        recorded.check()


def test_a_query_takes_a_canary_along_after_the_prompt_of_a_document() -> None:
    encoder: Any = open_text_encoder(ADDRESSES[0], PROMPTS)
    recorded = RecordedEncoder(encoder, record_of(encoder))
    CALLS.clear()
    vectors = recorded.encode(["word1"], "query")
    assert list(CALLS) == [["word50 word1", f"word51 {recorded.record.texts[0]}"]]
    assert_array_equal(vectors, word_vectors(["word50 word1"], 0, 10))
    # Prompts that are more than words before a text cannot be in one call.
    encoder.plain_prompts = False
    CALLS.clear()
    assert_array_equal(recorded.encode(["word1"], "query"), vectors)
    assert list(CALLS) == [["word50 word1"], [f"word51 {recorded.record.texts[1]}"]]
    encoder._encode = lambda texts, prompt: word_vectors(texts, 0, 10 if len(prompt) < 3 else 9)
    with pytest.raises(MismatchError, match="9 dims, not 10"):
        recorded.encode(["word1"], "query")


def test_a_full_batch_has_its_canary_in_the_same_call() -> None:
    encoder = open_text_encoder(ADDRESSES[0])
    encoder.batch = 3
    recorded = RecordedEncoder(encoder, record_of(encoder))
    CALLS.clear()
    texts = [f"word{i}" for i in range(5)]
    assert_array_equal(recorded.encode(texts), word_vectors(texts, 0, 10))
    canaries = recorded.record.texts
    assert list(CALLS) == [
        [*texts[:2], canaries[0]],
        [*texts[2:4], canaries[1]],
        [texts[4], canaries[2]],
    ]
    encoder.batch = 1
    with pytest.raises(DataError, match=r"encodes 1 text at once.*make it 2 or more"):
        RecordedEncoder(encoder, recorded.record)


def test_a_canary_whose_vector_is_zero_tells_nothing_and_is_not_taken() -> None:
    encoder = open_text_encoder("python:evergram.texts.canaries:letters")
    recorded = RecordedEncoder(encoder, record_of(encoder))
    silent = {"3.14159", "今日は雨が降っています。"}
    sent: list[str] = []
    whole = encoder.encode_with

    def seen(document: str, texts: Sequence[str], prompt: str) -> Vectors:
        sent.append(document)
        return whole(document, texts, prompt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "encode_with", seen)
        for _ in range(len(recorded.record.texts)):
            recorded.encode(["abba"])
    assert len(set(sent)) == len(recorded.record.texts) - len(silent)
    assert not silent & set(sent)
