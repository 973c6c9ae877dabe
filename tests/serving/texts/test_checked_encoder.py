"""An encoder is used only while its canaries are those of the record."""

from __future__ import annotations

from typing import Any

import pytest
from numpy.testing import assert_array_equal
from tests.support.text_encoders import ADDRESSES, CALLS, HERE, word_vectors

from evergram.errors import ServiceError
from evergram.serving.texts.checked_encoder import CheckedEncoder, TextEncoderError
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import record_of
from evergram.texts.recorded_encoder import MismatchError
from evergram.texts.text_encoder import Prompts, TextEncoder


def checked(prompts: Prompts | None = None) -> tuple[CheckedEncoder, Any, list[int]]:
    """Return a checked encoder, the encoder in it, and a list that grows with each failure."""
    encoder: Any = open_text_encoder(ADDRESSES[0], prompts)
    failures: list[int] = []
    made = CheckedEncoder(3, record_of(encoder), lambda _: encoder, lambda: failures.append(1))
    made.check()
    return made, encoder, failures


def test_each_batch_takes_a_canary_along_and_gives_only_its_own_texts() -> None:
    encoder, _, failures = checked()
    assert encoder.problem is None
    CALLS.clear()
    for _ in range(2):
        vectors = encoder.encode(["word1", "word2"], "query")
        assert_array_equal(vectors, word_vectors(["word1", "word2"], 0, 10))
    canaries = [call[2] for call in CALLS]
    assert canaries == list(encoder.record.texts[:2])
    assert failures == []


def test_with_other_prompts_for_queries_the_canary_keeps_that_of_a_document() -> None:
    encoder, _, _ = checked(Prompts("ask ", "tell "))
    CALLS.clear()
    encoder.encode(["word1"], "query")
    assert list(CALLS) == [["ask word1", f"tell {encoder.record.texts[0]}"]]


def test_with_weights_at_hand_none_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, inner, _ = checked()
    monkeypatch.setattr(inner, "fingerprint", "weights:00")
    CALLS.clear()
    encoder.encode(["word1"], "document")
    assert list(CALLS) == [["word1"]]


def test_a_replaced_model_is_noticed_in_the_next_batch_and_its_return_by_a_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoder, inner, failures = checked()
    monkeypatch.setattr(inner, "_function", lambda texts: word_vectors(texts, 9, 10))
    for _ in range(2):
        with pytest.raises(TextEncoderError, match="version 3 is not the one") as refusal:
            encoder.encode(["word1"], "document")
        assert HERE not in str(refusal.value)
    assert failures == [1]
    assert "differ by" in caplog.text
    encoder.check()
    assert encoder.problem is not None
    monkeypatch.undo()
    encoder.check()
    assert encoder.problem is None
    assert len(encoder.encode(["word1"], "document")) == 1


def test_one_that_fails_now_and_then_is_not_another() -> None:
    encoder, inner, failures = checked()
    kept = inner._function
    inner._function = lambda texts: (_ for _ in ()).throw(ServiceError("host is down"))
    with pytest.raises(TextEncoderError, match="cannot be reached; try again") as refusal:
        encoder.encode(["word1"], "document")
    assert "host" not in str(refusal.value)
    assert (encoder.problem, failures) == (None, [])
    encoder.check()
    assert "cannot be opened or reached" in str(encoder.problem)
    inner._function = kept
    encoder.check()
    assert encoder.problem is None


@pytest.mark.parametrize(
    ("error", "words"),
    [(MismatchError("dims"), "is not the one"), (ServiceError("down"), "cannot be opened")],
)
def test_one_that_cannot_be_opened_is_tried_again(error: ServiceError, words: str) -> None:
    inner = open_text_encoder(ADDRESSES[0])
    failing = [error]

    def opened(_: object) -> TextEncoder:
        if failing:
            raise failing.pop()
        return inner

    encoder = CheckedEncoder(3, record_of(inner), opened, lambda: None)
    with pytest.raises(TextEncoderError, match="is not open yet"):
        encoder.encode(["word1"], "document")
    encoder.check()
    assert words in str(encoder.problem)
    encoder.check()
    assert encoder.problem is None
