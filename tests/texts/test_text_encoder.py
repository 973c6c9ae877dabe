"""What every encoder does with texts, whatever kind it is."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from tests.support.text_encoders import CALLS, HERE, word_vectors

from evergram.errors import DataError
from evergram.texts.addresses import open_text_encoder
from evergram.texts.text_encoder import NotFiniteError, Prompts, TextsFailedError


@given(st.lists(st.sampled_from(["word1", "word2 word3", "word4"]), min_size=1, max_size=9))
def test_batches_give_what_one_call_gives(texts: list[str]) -> None:
    encoder = open_text_encoder(f"{HERE}:first")
    encoder.batch = 2
    vectors = encoder.encode(texts)
    assert vectors.dtype == np.float32
    assert_array_equal(vectors, word_vectors(texts, 0, 10))


def test_each_role_has_its_prompt() -> None:
    encoder = open_text_encoder(f"{HERE}:first", Prompts("ask ", "tell "))
    CALLS.clear()
    encoder.encode(["word1"], "query")
    encoder.encode(["word1"], "document")
    encoder.encode(["word1"])
    assert CALLS == [["ask word1"], ["tell word1"], ["tell word1"]]


def test_the_dim_is_that_of_its_vectors_and_a_function_has_no_fingerprint() -> None:
    encoder = open_text_encoder(f"{HERE}:second")
    assert (encoder.dim, encoder.fingerprint) == (12, None)
    assert "second" in repr(encoder)


@pytest.mark.parametrize(
    ("function", "texts", "words"),
    [
        ("misshapen", ["a", "b"], r"shape \[1, 2\] for 2 texts"),
        ("not_finite", ["good", "bad"], "a NaN or an infinity for the text 'bad'"),
        ("first", [], "no texts to encode"),
    ],
)
def test_what_is_not_one_finite_vector_a_text_is_refused(
    function: str, texts: list[str], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        open_text_encoder(f"{HERE}:{function}").encode(texts)


def test_the_text_of_a_vector_that_is_not_finite_is_known() -> None:
    with pytest.raises(NotFiniteError) as refusal:
        open_text_encoder(f"{HERE}:not_finite").encode(["good", "bad 1", "bad 2"])
    assert refusal.value.text == "bad 1"


def test_how_long_a_call_has_lasted_is_known_without_waiting_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = open_text_encoder(f"{HERE}:first")
    entered, go = threading.Event(), threading.Event()
    now = [100.0]

    def encode(texts: list[str], prompt: str) -> np.ndarray:
        entered.set()
        assert go.wait(30)
        return word_vectors(texts, 0, 10)

    monkeypatch.setattr(encoder, "_encode", encode)
    monkeypatch.setattr("evergram.texts.text_encoder.monotonic", lambda: now[0])
    assert encoder.busy == 0
    assert encoder.is_free(0)
    thread = threading.Thread(target=encoder.encode, args=(["word1"],))
    thread.start()
    assert entered.wait(30)
    now[0] += 7
    assert encoder.busy == 7
    assert not encoder.is_free(0.001)
    go.set()
    assert encoder.is_free(30)
    thread.join()
    assert encoder.busy == 0


def test_a_failure_inside_is_the_encoders() -> None:
    with pytest.raises(TextsFailedError, match="failed on 1 texts: RuntimeError: out of memory"):
        open_text_encoder(f"{HERE}:failing").encode(["poison"])


def test_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = open_text_encoder(f"{HERE}:first")
    inside, most = [0], [0]

    def encode(texts: list[str], prompt: str) -> np.ndarray:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.01)
        inside[0] -= 1
        return word_vectors(texts, 0, 10)

    monkeypatch.setattr(encoder, "_encode", encode)
    threads = [threading.Thread(target=encoder.encode, args=(["word1"],)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
