"""Encoders of texts: addresses, batches, prompts, canaries, cuts and fingerprints."""

from __future__ import annotations

import json
import math
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal
from tests.support.text_encoders import ADDRESSES, CALLS, HERE, word_vectors

from evergram.errors import DataError, ServiceError
from evergram.texts import addresses
from evergram.texts.addresses import open_text_encoder, open_with_prompts
from evergram.texts.canaries import SAME, distance
from evergram.texts.record import checked_dims, cut
from evergram.texts.text_encoder import (
    NotFiniteError,
    Prompts,
    TextEncoder,
    TextsFailedError,
    weights_fingerprint,
)


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


def test_what_is_not_one_finite_vector_a_text_is_refused() -> None:
    for function, texts, error, words in [
        ("misshapen", ["a", "b"], DataError, r"shape \[1, 2\] for 2 texts"),
        ("first", [], DataError, "no texts to encode"),
        ("not_finite", ["good", "bad 1", "bad 2"], NotFiniteError, "'bad 1'"),
        ("failing", ["poison"], TextsFailedError, "1 texts: RuntimeError: out of memory"),
    ]:
        with pytest.raises(error, match=words) as refusal:
            open_text_encoder(f"{HERE}:{function}").encode(texts)
        if isinstance(refusal.value, NotFiniteError):
            assert refusal.value.text == "bad 1"


def test_threads_take_turns_and_know_how_long_a_call_has_lasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = open_text_encoder(f"{HERE}:first")
    entered, go = threading.Event(), threading.Event()
    now, inside, most = [100.0], [0], [0]

    def encode(texts: list[str], prompt: str) -> np.ndarray:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        entered.set()
        assert go.wait(30)
        inside[0] -= 1
        return word_vectors(texts, 0, 10)

    monkeypatch.setattr(encoder, "_encode", encode)
    monkeypatch.setattr("evergram.texts.text_encoder.monotonic", lambda: now[0])
    assert encoder.busy == 0
    assert encoder.is_free(0)
    threads = [threading.Thread(target=encoder.encode, args=(["word1"],)) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert entered.wait(30)
    now[0] += 7
    assert encoder.busy == 7
    assert not encoder.is_free(0.001)
    go.set()
    for thread in threads:
        thread.join()
    assert encoder.is_free(30)
    assert encoder.busy == 0
    assert most == [1]


def test_an_encoder_has_the_address_that_it_was_opened_at() -> None:
    for address in (*ADDRESSES, "openai:https://host/v1#m"):
        assert open_text_encoder(address).address == address


def test_what_names_no_encoder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_encoder.py").write_text("raise ValueError('no weights')\n")
    (tmp_path / "lengths_of_texts.py").write_text(
        "def encode(texts):\n    return [[len(text), 1.0] for text in texts]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    for address, words in [
        ("minilm", "is not the address of a text encoder"),
        ("wordlama:", r"did you mean .wordllama.\?"),
        ("python:", "names no encoder after the colon"),
        ("python:evergram.texts", "write python:package.module:function"),
        ("python:no_such_module:f", "cannot be imported"),
        ("python:tests.support.text_encoders:NO_FUNCTION", "is not a function; it is a int"),
        ("python:failing_encoder:f", "as the module fails: ValueError: no weights; correct it"),
    ]:
        with pytest.raises(DataError, match=words):
            open_text_encoder(address)
    # A module of this folder will do.
    encoder = open_text_encoder("python:lengths_of_texts:encode", Prompts(query="ab"))
    assert encoder.encode(["four"]).tolist() == [[4.0, 1.0]]
    assert encoder.encode(["four"], "query").tolist() == [[6.0, 1.0]]


def test_a_package_that_is_missing_or_fails_on_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails where two packages do not fit each other."""
    monkeypatch.syspath_prepend(tmp_path)
    for address, module in [
        ("sentence-transformers:x", "sentence_transformers"),
        ("model2vec:x", "model2vec"),
        ("wordllama:", "wordllama"),
        ("openai:https://host/v1#m", "httpx"),
    ]:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ServiceError, match="pip install"):
            open_text_encoder(address)
        if module != "httpx":
            (tmp_path / f"{module}.py").write_text("raise RuntimeError('no name x')")
            monkeypatch.delitem(sys.modules, module)
            with pytest.raises(ServiceError, match="RuntimeError: no name x"):
                open_text_encoder(address)


def test_one_prompt_leaves_the_models_own_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(address: str) -> TextEncoder:
        return open_text_encoder(address, Prompts("query: ", "passage: "))

    monkeypatch.setattr(addresses, "open_text_encoder", opened)
    cases = {
        (None, None): ("query: ", "passage: "),
        ("ask ", None): ("ask ", "passage: "),
        ("", "tell "): ("", "tell "),
    }
    for asked, prompts in cases.items():
        assert open_with_prompts(ADDRESSES[0], *asked).prompts == Prompts(*prompts)


def test_the_distance_is_the_worst_canarys_relative_one() -> None:
    then = np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32)
    now = np.array([[3.0, 4.5], [0.0, 2.0]], dtype=np.float32)
    assert distance(now, then) == pytest.approx(0.1)
    zeros, near = np.zeros((1, 2), np.float32), np.full((1, 2), 1e-9, np.float32)
    assert distance(then, then) == distance(zeros, zeros) == 0
    assert distance(zeros, np.zeros((1, 3), np.float32)) == float("inf")
    assert distance(near, zeros) > SAME


NUMBERS = st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False)


@given(arrays(np.float32, (3, 5), elements=NUMBERS), st.integers(1, 5))
def test_a_cut_row_has_length_1_and_the_direction_of_its_coordinates(
    vectors: np.ndarray, dims: int
) -> None:
    rows = cut(vectors, dims)
    assert rows.shape == (3, dims)
    assert rows.dtype == np.float32
    assert cut(vectors, None) is vectors
    for whole, row in zip(vectors.tolist(), rows.tolist(), strict=True):
        # In Python's own numbers, with hypot in place of a norm.
        length = math.hypot(*whole[:dims])
        if length == 0:
            assert row == [0.0] * dims
        else:
            np.testing.assert_allclose(row, [x / length for x in whole[:dims]], atol=1e-6)


def test_only_declared_numbers_and_all_are_allowed() -> None:
    for asked, dims in ((None, None), (8, None), (4, 4)):
        assert checked_dims(asked, 8, (2, 4), 1) == dims
    for wrong in (0, 3, 9, -1):
        with pytest.raises(DataError, match=rf"8 dimensions and is not cut to {wrong}: .* 2, 4;"):
            checked_dims(wrong, 8, (4, 2), 1)
    with pytest.raises(DataError, match="declares no other number"):
        checked_dims(4, 8, (), 1)


ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros(2, np.float32)}
RULES = {"model": {"vocab": {"x": 0}}, "padding": None}


def fingerprint(
    arrays: dict[str, np.ndarray] = ARRAYS, settings: object = 1, rules: object = RULES
) -> str:
    return weights_fingerprint(arrays.items(), settings, json.dumps(rules))


def test_each_part_of_a_fingerprint_counts_and_order_and_the_last_call_do_not() -> None:
    assert fingerprint(dict(reversed(ARRAYS.items()))) == fingerprint()
    assert fingerprint(rules={**RULES, "padding": {"length": 9}, "truncation": 3}) == fingerprint()
    assert fingerprint({**ARRAYS, "a": np.asfortranarray(ARRAYS["a"])}) == fingerprint()
    for other in [
        fingerprint({**ARRAYS, "a": ARRAYS["a"] + 1e-12}),
        fingerprint({**ARRAYS, "a": ARRAYS["a"].reshape(3, 2)}),
        fingerprint({**ARRAYS, "b": np.zeros(2, np.int32)}),
        fingerprint({"c": ARRAYS["a"], "b": ARRAYS["b"]}),
        fingerprint(settings=2),
        fingerprint(rules={"model": {"vocab": {"y": 0}}}),
        weights_fingerprint(ARRAYS.items(), 1, ""),
    ]:
        assert other != fingerprint()
