"""The record of an encoder; the encoder of a record is opened, and known again in each batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.support import text_encoders
from tests.support.text_encoders import ADDRESSES, CALLS, third, word_vectors

from evergram.errors import DataError
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import canary_vectors, parse_record, prompts_of, record_of
from evergram.texts.recorded_encoder import RECORDED, MismatchError, RecordedEncoder, open_recorded
from evergram.texts.text_encoder import Prompts, Vectors

PROMPTS = Prompts("word50 ", "word51 ")


def test_a_record_is_read_as_it_was_written() -> None:
    encoder = open_text_encoder(ADDRESSES[0], PROMPTS)
    record = record_of(encoder, [8, 4, 8, 10])
    again = parse_record(record.model_dump_json(), "a file")
    assert again == record
    assert again.matryoshka == [4, 8]
    assert prompts_of(again) == PROMPTS
    assert_array_equal(canary_vectors(again), encoder.encode(record.texts))
    assert again.mismatch(encoder) is None
    for wrong in (0, 11):
        with pytest.raises(DataError, match=f"have 10 coordinates and cannot be cut to {wrong}"):
            record_of(encoder, [wrong])


def test_other_prompts_dims_weights_and_vectors_are_mismatches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = open_text_encoder(ADDRESSES[0], PROMPTS)
    record = record_of(encoder)
    assert "its prompts are" in str(record.mismatch(open_text_encoder(ADDRESSES[0])))
    assert "12 dims, not 10" in str(record.mismatch(open_text_encoder(ADDRESSES[1], PROMPTS)))
    weighed = record.model_copy(update={"fingerprint": "weights:00"})
    assert weighed.mismatch(encoder) is None
    monkeypatch.setattr(encoder, "fingerprint", "weights:11")
    assert weighed.mismatch(encoder) == "its weights are others"
    monkeypatch.undo()
    then = canary_vectors(record)
    assert record.canary_mismatch(then * 1.02) is None
    assert "differ by 0.04" in str(record.canary_mismatch(then * 1.04))
    assert record.canary_mismatch(then[3:4], 3) is None
    assert record.canary_mismatch(then[3:4], 2) is not None


def test_a_damaged_record_is_refused() -> None:
    fields = json.loads(record_of(open_text_encoder(ADDRESSES[0])).model_dump_json())
    damages: list[dict[str, Any]] = [
        {"vectors": ["AAAA"]},
        {"vectors": ["no base64!"] * 8},
        {"prompts": {"query": ""}},
        {"dim": 0},
        {"texts": []},
        {"more": 1},
        *({"matryoshka": cuts} for cuts in ([8, 4], [10], [0], [4, 4])),
    ]
    for change in damages:
        with pytest.raises(DataError, match=r"text encoder in a file is damaged|ascending numbers"):
            parse_record(json.dumps(fields | change), "a file")


def test_an_encoder_that_gives_only_zeros_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are not at hand, and zeros are those of any model that fails."""
    monkeypatch.setattr(text_encoders, "first", lambda texts: np.zeros((len(texts), 10)))
    with pytest.raises(DataError, match="gives vectors of zeros for all canary texts"):
        record_of(open_text_encoder(ADDRESSES[0]))


def test_the_recorded_encoder_is_found_among_the_addresses_with_its_prompts() -> None:
    record = record_of(open_text_encoder(ADDRESSES[1], PROMPTS))
    encoder = open_recorded(record, ADDRESSES)
    assert (encoder.address, encoder.prompts) == (ADDRESSES[1], PROMPTS)
    with pytest.raises(MismatchError, match="its vectors have 10 dims, not 12"):
        open_recorded(record, ADDRESSES[:1])
    # A function is opened only where it is named.
    opened: list[str] = []

    def opener(address: str, prompts: Prompts) -> Any:
        opened.append(address)
        return open_text_encoder(address, prompts)

    with pytest.raises(MismatchError, match="not among the addresses that may be opened"):
        open_recorded(record, [RECORDED], opener)
    assert not opened
    open_recorded(record, [RECORDED, ADDRESSES[1]], opener)
    assert opened == [ADDRESSES[1]]


def test_each_batch_takes_a_canary_along_and_shows_another_model() -> None:
    encoder: Any = open_text_encoder(ADDRESSES[0], Prompts())
    encoder.batch = 3
    recorded = RecordedEncoder(encoder, record_of(encoder))
    canaries, texts = recorded.record.texts, [f"word{i}" for i in range(5)]
    CALLS.clear()
    assert_array_equal(recorded.encode(texts), word_vectors(texts, 0, 10))
    assert list(CALLS) == [
        [*texts[:2], canaries[0]],
        [*texts[2:4], canaries[1]],
        [texts[4], canaries[2]],
    ]
    recorded.check()
    encoder._encode = lambda texts, prompt: third(list(texts))
    with pytest.raises(MismatchError, match="11 dims, not 10"):
        recorded.encode(["word1"], "document")
    with pytest.raises(MismatchError):
        recorded.check()
    encoder.batch = 1
    with pytest.raises(DataError, match=r"encodes 1 text at once"):
        RecordedEncoder(encoder, recorded.record)


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


def test_a_canary_whose_vector_is_zero_tells_nothing_and_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = open_text_encoder("python:evergram.texts.canaries:letters")
    recorded = RecordedEncoder(encoder, record_of(encoder))
    silent, sent = {"3.14159", "今日は雨が降っています。"}, list[str]()
    whole = encoder.encode_with

    def seen(document: str, texts: Sequence[str], prompt: str) -> Vectors:
        sent.append(document)
        return whole(document, texts, prompt)

    monkeypatch.setattr(encoder, "encode_with", seen)
    for _ in recorded.record.texts:
        recorded.encode(["abba"])
    assert set(sent) == set(recorded.record.texts) - silent
