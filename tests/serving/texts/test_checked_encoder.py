"""An encoder is used only while its canaries are those of the record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.support.text_encoders import ADDRESSES, CALLS, HERE, word_vectors

from evergram.errors import ServiceError
from evergram.serving.texts.checked_encoder import (
    CheckedEncoder,
    TextEncoderError,
    UnencodableTextError,
)
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import record_of
from evergram.texts.recorded_encoder import MismatchError
from evergram.texts.text_encoder import Prompts, TextEncoder


def checked(
    prompts: Prompts | None = None, limit: float = 30.0
) -> tuple[CheckedEncoder, Any, list[int]]:
    """Return a checked encoder, the encoder in it, and a list that grows with each failure."""
    encoder: Any = open_text_encoder(ADDRESSES[0], prompts)
    failures: list[int] = []
    made = CheckedEncoder(
        3, record_of(encoder), lambda _: encoder, lambda: failures.append(1), limit
    )
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


def raising(error: Exception) -> Callable[[list[str]], Any]:
    """Return a function that cannot encode."""

    def fail(texts: list[str]) -> Any:
        CALLS.append(list(texts))
        raise error

    return fail


@pytest.mark.parametrize("error", [ServiceError("host is down"), OSError("host is down")])
def test_one_that_fails_is_not_asked_again_until_a_check_passes(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    encoder, inner, failures = checked()
    kept, inner._function = inner._function, raising(error)
    for _ in range(3):
        with pytest.raises(TextEncoderError, match="version 3 fails, so strings") as refusal:
            encoder.encode(["word1"], "document")
        assert "host" not in str(refusal.value)
        CALLS.clear()
    assert "version 3 fails" in str(encoder.problem)
    assert failures == [1]
    assert caplog.text.count("host is down") == 1
    assert not encoder.check()
    inner._function = kept
    assert encoder.check()
    assert encoder.problem is None


def without_numbers(texts: list[str]) -> Any:
    return [["AAAA"] * 10 for _ in texts]


def of_nan(texts: list[str]) -> Any:
    return np.full((len(texts), 10), np.nan)


def of_nothing(texts: list[str]) -> Any:
    return [[None] * 10 for _ in texts]


def one_short(texts: list[str]) -> Any:
    return word_vectors(texts, 0, 10)[:-1]


@pytest.mark.parametrize("function", [without_numbers, of_nan, of_nothing, one_short])
@pytest.mark.parametrize("prompts", [None, Prompts("word50 ", "word51 ")])
def test_vectors_that_are_none_are_the_encoders_failure(
    function: Any, prompts: Prompts | None, caplog: pytest.LogCaptureFixture
) -> None:
    encoder, inner, failures = checked(prompts)
    inner._function = function
    with pytest.raises(TextEncoderError, match="version 3 fails") as refusal:
        encoder.encode(["word1"], "query")
    assert "AAAA" not in str(refusal.value)
    assert failures == [1]
    assert HERE in caplog.text


def odd(texts: list[str]) -> Any:
    if any("poison" in text for text in texts):
        raise RuntimeError("token 7")
    vectors = word_vectors(texts, 0, 10)
    vectors[["nan" in text for text in texts]] = np.nan
    return vectors


@pytest.mark.parametrize(
    ("texts", "words", "text"),
    [
        (["word1", "nan"], "gives no finite vector for", "nan"),
        (["poison"], "cannot encode", "poison"),
        (["word1", "poison"], "cannot encode", None),
    ],
)
def test_a_text_that_alone_cannot_be_encoded_is_no_problem_of_the_encoder(
    texts: list[str], words: str, text: str | None
) -> None:
    encoder, inner, failures = checked()
    inner._function = odd
    with pytest.raises(UnencodableTextError, match=f"version 3 {words} a text") as refusal:
        encoder.encode(texts, "document")
    assert refusal.value.text == text
    assert HERE not in str(refusal.value)
    assert (encoder.problem, failures) == (None, [])
    assert len(encoder.encode(["word1"], "document")) == 1


class Hanging:
    """Encodes once it is let go."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, texts: list[str]) -> Any:
        self.entered.set()
        assert self.go.wait(60)
        return word_vectors(texts, 0, 10)


def test_a_call_that_hangs_is_a_problem_that_no_check_waits_for() -> None:
    encoder, inner, failures = checked(limit=0.01)
    hanging = inner._function = Hanging()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(encoder.encode, ["word1"], "document")
        assert hanging.entered.wait(30)
        while inner.busy <= 0.01:
            threading.Event().wait(0.001)
        assert not encoder.check()
        assert "version 3 does not answer, so strings" in str(encoder.problem)
        encoder.look()
        assert failures == [1]
        with pytest.raises(TextEncoderError, match="does not answer"):
            encoder.encode(["word2"], "document")
        hanging.go.set()
        # By the time that it answers, nobody knows for how long it is the recorded one.
        with pytest.raises(TextEncoderError, match="does not answer"):
            first.result(30)
    assert encoder.check()
    assert encoder.problem is None


def test_texts_that_wait_when_the_encoder_fails_are_refused_without_a_call() -> None:
    encoder, inner, _ = checked()
    entered, go = threading.Event(), threading.Event()

    def down(texts: list[str]) -> Any:
        CALLS.append(list(texts))
        entered.set()
        assert go.wait(60)
        raise ServiceError("down")

    inner._function = down
    CALLS.clear()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(encoder.encode, ["word1"], "document")]
        assert entered.wait(30)
        waiting += [pool.submit(encoder.encode, [f"word{i}"], "document") for i in (2, 3, 4)]
        while len(encoder._batcher._waiting) < 3:  # type: ignore[union-attr]
            threading.Event().wait(0.001)
        go.set()
        for future in waiting:
            with pytest.raises(TextEncoderError, match="version 3 fails"):
                future.result(30)
    assert len(CALLS) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [(MismatchError("dims"), "is none of those"), (ServiceError("down"), "cannot be opened")],
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
