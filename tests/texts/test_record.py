"""The record of an encoder: written, read, and compared with an encoder."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.support import text_encoders
from tests.support.text_encoders import ADDRESSES, HERE

from evergram.errors import DataError
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import canary_vectors, parse_record, prompts_of, record_of
from evergram.texts.text_encoder import Prompts

PROMPTS = Prompts("ask ", "tell ")


def test_a_record_is_read_as_it_was_written() -> None:
    encoder = open_text_encoder(ADDRESSES[0], PROMPTS)
    record = record_of(encoder)
    again = parse_record(record.model_dump_json(), "a file")
    assert again == record
    assert prompts_of(again) == PROMPTS
    assert_array_equal(canary_vectors(again), encoder.encode(record.texts))
    assert again.mismatch(encoder) is None


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


def test_half_precision_is_the_same_encoder() -> None:
    encoder = open_text_encoder(f"{HERE}:first")
    record = record_of(encoder)
    half = encoder.encode(record.texts).astype(np.float16).astype(np.float32)
    assert record.canary_mismatch(half) is None
    assert text_encoders.first(["word1"]).shape == (1, 10)


@pytest.mark.parametrize(
    "change",
    [
        {"vectors": ["AAAA"]},
        {"vectors": ["no base64!"] * 8},
        {"prompts": {"query": ""}},
        {"dim": 0},
        {"texts": []},
        {"more": 1},
    ],
)
def test_a_damaged_record_is_refused(change: dict[str, Any]) -> None:
    fields = json.loads(record_of(open_text_encoder(ADDRESSES[0])).model_dump_json())
    with pytest.raises(DataError, match="text encoder in a file is damaged"):
        parse_record(json.dumps(fields | change), "a file")


def test_cuts_are_declared_and_kept() -> None:
    encoder = open_text_encoder(ADDRESSES[0])
    record = record_of(encoder, [8, 4, 8, 10])
    assert record.matryoshka == [4, 8]
    again = parse_record(record.model_dump_json(), "a file")
    assert again == record
    assert again.mismatch(encoder) is None
    for wrong in (0, 11):
        with pytest.raises(DataError, match=f"have 10 coordinates and cannot be cut to {wrong}"):
            record_of(encoder, [wrong])
    for cuts in ([8, 4], [10], [0], [4, 4]):
        damaged = {**json.loads(record.model_dump_json()), "matryoshka": cuts}
        with pytest.raises(DataError, match="ascending numbers"):
            parse_record(json.dumps(damaged), "a file")


def test_an_encoder_that_gives_only_zeros_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are not at hand, and zeros are those of any model that fails."""
    monkeypatch.setattr(text_encoders, "first", lambda texts: np.zeros((len(texts), 10)))
    with pytest.raises(DataError, match="gives vectors of zeros for all canary texts"):
        record_of(open_text_encoder(ADDRESSES[0]))
