"""Encoders of an endpoint in the form of OpenAI's, and of packages where they are installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.support.optional import need
from tests.support.text_encoders import endpoint, word_vectors

from evergram.errors import DataError, ServiceError
from evergram.texts import addresses as module
from evergram.texts.addresses import EndpointEncoder, open_text_encoder
from evergram.texts.text_encoder import Prompts, TextsFailedError, Vectors

PLACE = "https://host/v1#small"


class Clock:
    """Time that passes only while somebody sleeps, or as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.pass_by)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    for name in (module.KEY, module.OPENAI_KEY):
        monkeypatch.delenv(name, raising=False)
    return Clock(monkeypatch)


def encode(texts: list[str]) -> Vectors:
    return word_vectors(texts, 0, 10)


def at(transport: httpx.BaseTransport, place: str = PLACE) -> EndpointEncoder:
    return EndpointEncoder(place, transport=transport)


def test_batches_are_sent_and_put_in_order() -> None:
    seen: list[httpx.Request] = []
    encoder = EndpointEncoder(PLACE, Prompts("q ", ""), transport=endpoint(encode, seen))
    encoder.batch = 2
    texts = ["word1", "word2", "word3"]
    assert_array_equal(encoder.encode(texts), encode(texts))
    encoder.encode(["word1"], "query")
    bodies = [json.loads(request.content) for request in seen]
    assert [body["input"] for body in bodies] == [texts[:2], texts[2:], ["q word1"]]
    assert {body["model"] for body in bodies} == {"small"}
    assert {str(request.url) for request in seen} == {"https://host/v1/embeddings"}
    assert encoder.fingerprint is None
    encoder.close()


@pytest.mark.parametrize(
    ("place", "variable", "is_sent"),
    [
        (PLACE, module.KEY, True),
        (PLACE, module.OPENAI_KEY, False),
        ("https://api.openai.com/v1#m", module.OPENAI_KEY, True),
        ("http://127.0.0.1:8000/v1#m", module.KEY, True),
    ],
)
def test_the_key_is_read_from_the_environment_and_sent_where_it_belongs(
    place: str, variable: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "secret")
    seen: list[httpx.Request] = []
    encoder = at(endpoint(encode, seen), place)
    encoder.encode(["word1"])
    assert seen[0].headers.get("Authorization") == ("Bearer secret" if is_sent else None)
    assert "secret" not in encoder.address + repr(encoder)


def test_an_address_that_is_none_or_would_tell_a_secret_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(module.KEY, "secret")
    for place, words in [
        ("http://host/v1#m", "use https"),
        ("host/v1#m", "https://host/v1#model"),
        ("https://host/v1", "model's name"),
        ("https://me:secret@host/v1#m", "must not contain a user, password or query"),
        ("https://host/v1?key=secret#m", "must not contain a user, password or query"),
    ]:
        with pytest.raises(DataError, match=words) as refusal:
            EndpointEncoder(place)
        assert "secret" not in str(refusal.value)


def answering(*answers: httpx.Response | Exception) -> tuple[httpx.MockTransport, list[int]]:
    """Return a transport that gives these answers and then the right one; and a count of calls."""
    calls: list[int] = []
    right = endpoint(encode).handler

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        given = answers[len(calls) - 1] if len(calls) <= len(answers) else right(request)
        if isinstance(given, Exception):
            raise given
        assert isinstance(given, httpx.Response)
        return given

    return httpx.MockTransport(answer), calls


def test_what_may_pass_is_tried_again(clock: Clock) -> None:
    transport, calls = answering(
        httpx.Response(429, headers={"Retry-After": "3"}),
        httpx.ConnectError("refused"),
        httpx.Response(503),
    )
    assert_array_equal(at(transport).encode(["word1"]), encode(["word1"]))
    assert len(calls) == 4
    # No pause goes beyond the limit.
    for after, tries in (("1", 5), ("60", 1)):
        clock.now = 0.0
        transport, calls = answering(*[httpx.Response(429, headers={"Retry-After": after})] * 9)
        encoder = at(transport)
        encoder.limit = 15.0
        with pytest.raises(ServiceError, match="answered 429"):
            encoder.encode(["word1"])
        assert (len(calls), clock.now < 15) == (tries, True)


@pytest.mark.parametrize(
    ("answer", "tries", "words"),
    [
        (lambda: httpx.Response(401, json={"error": {"code": "bad"}}), 1, r"401 \(bad\)"),
        (lambda: httpx.Response(400, text="key sk-1 is bad"), 1, r"answered 400\."),
        (lambda: httpx.Response(503), 5, "answered 503"),
        (lambda: httpx.ReadTimeout("slow"), 5, "cannot be reached: slow"),
        (lambda: httpx.Response(200, text="<html>"), 1, "did not answer like OpenAI's"),
    ],
)
def test_what_does_not_pass_is_an_error_in_a_sentence(
    answer: Callable[[], httpx.Response | Exception], tries: int, words: str
) -> None:
    transport, calls = answering(*(answer() for _ in range(9)))
    with pytest.raises(ServiceError, match=words) as refusal:
        at(transport).encode(["word1"])
    assert len(calls) == tries
    assert "sk-1" not in str(refusal.value)
    # Texts that are refused are told apart from an endpoint that fails.
    assert isinstance(refusal.value, TextsFailedError) is ("answered 4" in words)


def test_all_tries_end_within_the_limit(clock: Clock) -> None:
    limits: list[float] = []

    def hang(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"]["read"])
        clock.pass_by(limits[-1])
        raise httpx.ReadTimeout("slow")

    encoder = at(httpx.MockTransport(hang))
    encoder.limit = 15.0
    with pytest.raises(ServiceError, match="cannot be reached: slow"):
        encoder.encode(["word1"])
    assert limits == [15.0]
    assert clock.now == pytest.approx(15)
    # A command waits as long as ever.
    encoder.limit = None
    limits.clear()
    with pytest.raises(ServiceError):
        encoder.encode(["word1"])
    assert limits == [module.TIMEOUT] * module.TRIES


def test_an_answer_that_drips_ends_within_the_limit(clock: Clock) -> None:
    class Drips(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                clock.pass_by(4)
                yield b" "

    encoder = at(httpx.MockTransport(lambda _: httpx.Response(200, stream=Drips())))
    encoder.limit = 15.0
    with pytest.raises(ServiceError, match="did not end in time"):
        encoder.encode(["word1"])
    assert clock.now == 16


WORDS = ["[UNK]", "red", "green", "ask", "tell"]
TABLE = np.arange(20, dtype=np.float32).reshape(5, 4) / 10


def static_model(
    folder: Path, table: np.ndarray = TABLE, prompts: dict[str, str] | None = None
) -> str:
    """Save a table of the vectors of words as a model; return its address."""
    need("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = {word: row for row, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    module = StaticEmbedding(tokenizer, embedding_weights=table)
    model = SentenceTransformer(modules=[module], device="cpu", prompts=prompts or {})
    model.save(str(folder))
    return f"sentence-transformers:{folder}"


def test_a_model_of_a_folder_has_the_means_of_words_and_a_fingerprint_of_its_weights(
    tmp_path: Path,
) -> None:
    one = open_text_encoder(static_model(tmp_path / "one"))
    vectors = one.encode(["red green", "red", "red red green"])
    expected = np.stack([(TABLE[1] + TABLE[2]) / 2, TABLE[1], (2 * TABLE[1] + TABLE[2]) / 3])
    assert_allclose(vectors, expected, rtol=1e-5)
    assert one.dim == 4
    copy = open_text_encoder(static_model(tmp_path / "copy"))
    other = open_text_encoder(static_model(tmp_path / "other", TABLE + 1e-3))
    assert one.fingerprint == copy.fingerprint != other.fingerprint
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "absent"):
        with pytest.raises(DataError, match=folder):
            open_text_encoder(f"sentence-transformers:{tmp_path / folder}")


def test_the_models_own_prompts_are_taken_unless_others_are_named(tmp_path: Path) -> None:
    address = static_model(tmp_path / "m", prompts={"query": "ask ", "passage": "tell "})
    own = open_text_encoder(address)
    assert own.prompts == Prompts("ask ", "tell ")
    assert_allclose(own.encode(["red"], "query")[0], (TABLE[3] + TABLE[1]) / 2, rtol=1e-5)
    assert_allclose(own.encode(["red"])[0], (TABLE[4] + TABLE[1]) / 2, rtol=1e-5)
    none = open_text_encoder(address, Prompts())
    assert_allclose(none.encode(["red"], "query")[0], TABLE[1], rtol=1e-5)


@pytest.mark.long
def test_wordllama_is_the_model_in_its_package() -> None:
    need("wordllama")
    encoder = open_text_encoder("wordllama:")
    texts = ["a river in the mountains", "a stream that runs downhill", "the price of shares"]
    vectors = encoder.encode(texts)
    assert vectors.shape == (3, 256)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert unit[0] @ unit[1] > unit[0] @ unit[2]
    with pytest.raises(DataError, match="wordllama:100"):
        open_text_encoder("wordllama:100")
