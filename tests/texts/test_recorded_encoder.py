"""The encoder of a record is opened by its addresses, and known again in each batch."""

from __future__ import annotations

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
from evergram.texts.text_encoder import Prompts

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


def test_a_query_with_a_prompt_of_its_own_takes_no_canary() -> None:
    encoder = open_text_encoder(ADDRESSES[0], PROMPTS)
    recorded = RecordedEncoder(encoder, record_of(encoder))
    CALLS.clear()
    recorded.encode(["word1"], "query")
    assert CALLS == [["word50 word1"]]
