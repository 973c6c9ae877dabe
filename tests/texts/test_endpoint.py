"""An endpoint in the form of OpenAI's: batches, order, retries, keys and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest
from numpy.testing import assert_array_equal
from tests.support.text_encoders import endpoint, word_vectors

from evergram.errors import DataError, ServiceError
from evergram.texts import endpoint as module
from evergram.texts.endpoint import EndpointEncoder
from evergram.texts.text_encoder import Prompts, TextsFailedError, Vectors

PLACE = "https://host/v1#small"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    for name in (module.KEY, module.OPENAI_KEY):
        monkeypatch.delenv(name, raising=False)


def encode(texts: list[str]) -> Vectors:
    return word_vectors(texts, 0, 10)


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
    ("place", "variables", "sent"),
    [
        (PLACE, {module.KEY: "one"}, "Bearer one"),
        (PLACE, {module.OPENAI_KEY: "two"}, None),
        ("https://api.openai.com/v1#m", {module.OPENAI_KEY: "two"}, "Bearer two"),
        ("http://127.0.0.1:8000/v1#m", {module.KEY: "one"}, "Bearer one"),
    ],
)
def test_the_key_is_read_from_the_environment_and_sent_where_it_belongs(
    place: str, variables: dict[str, str], sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen: list[httpx.Request] = []
    encoder = EndpointEncoder(place, transport=endpoint(encode, seen))
    encoder.encode(["word1"])
    assert seen[0].headers.get("Authorization") == sent
    assert not any(value in encoder.address + repr(encoder) for value in variables.values())


def test_a_key_is_not_sent_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.KEY, "secret")
    with pytest.raises(DataError, match="use https") as refusal:
        EndpointEncoder("http://host/v1#m")
    assert "secret" not in str(refusal.value)


def test_an_address_that_is_none_or_that_has_a_secret_is_refused() -> None:
    for place, words in [
        ("host/v1#m", "https://host/v1#model"),
        ("https://host/v1", "model's name"),
        ("https://me:secret@host/v1#m", "no user, password or query"),
        ("https://host/v1?key=secret#m", "no user, password or query"),
    ]:
        with pytest.raises(DataError, match=words) as refusal:
            EndpointEncoder(place)
        assert "secret" not in str(refusal.value)


def answering(*answers: httpx.Response | Exception) -> tuple[httpx.MockTransport, list[int]]:
    """Return a transport that gives these answers and then the right one; and a count of calls."""
    calls: list[int] = []
    right = endpoint(encode).handler
    assert callable(right)

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        if len(calls) > len(answers):
            good = right(request)
            assert isinstance(good, httpx.Response)
            return good
        given_now = answers[len(calls) - 1]
        if isinstance(given_now, Exception):
            raise given_now
        return given_now

    return httpx.MockTransport(answer), calls


def test_what_may_pass_is_tried_again() -> None:
    transport, calls = answering(
        httpx.Response(429, headers={"Retry-After": "3"}),
        httpx.ConnectError("refused"),
        httpx.Response(503),
    )
    encoder = EndpointEncoder(PLACE, transport=transport)
    assert_array_equal(encoder.encode(["word1"]), encode(["word1"]))
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("answer", "tries", "words"),
    [
        (lambda: httpx.Response(401, json={"error": {"code": "bad"}}), 1, r"401 \(bad\)"),
        (lambda: httpx.Response(400, text="key sk-1 is bad"), 1, r"answered 400\."),
        (lambda: httpx.Response(503), 5, "answered 503"),
        (lambda: httpx.ReadTimeout("slow"), 5, "cannot be reached: slow"),
        (lambda: httpx.Response(200, text="<html>"), 1, "did not answer as OpenAI's"),
    ],
)
def test_what_does_not_pass_is_an_error_in_a_sentence(
    answer: Callable[[], httpx.Response | Exception], tries: int, words: str
) -> None:
    transport, calls = answering(*(answer() for _ in range(9)))
    with pytest.raises(ServiceError, match=words) as refusal:
        EndpointEncoder(PLACE, transport=transport).encode(["word1"])
    assert len(calls) == tries
    assert "sk-1" not in str(refusal.value)


def test_texts_that_are_refused_are_told_apart_from_an_endpoint_that_fails() -> None:
    for status in (400, 413, 422):
        transport, _ = answering(httpx.Response(status))
        with pytest.raises(TextsFailedError, match=f"answered {status}"):
            EndpointEncoder(PLACE, transport=transport).encode(["word1"])
    for other in (401, 404, 500):
        transport, _ = answering(*[httpx.Response(other)] * 5)
        with pytest.raises(ServiceError) as failure:
            EndpointEncoder(PLACE, transport=transport).encode(["word1"])
        assert not isinstance(failure.value, TextsFailedError)


class Clock:
    """Time that passes only while somebody sleeps, or as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.pass_by)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def test_all_tries_end_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limits: list[float] = []

    def hang(request: httpx.Request) -> httpx.Response:
        seconds = request.extensions["timeout"]["read"]
        limits.append(seconds)
        clock.pass_by(seconds)
        raise httpx.ReadTimeout("slow")

    encoder = EndpointEncoder(PLACE, transport=httpx.MockTransport(hang))
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


@pytest.mark.parametrize(("after", "tries"), [("1", 5), ("60", 1)])
def test_no_pause_goes_beyond_the_limit(
    after: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    transport, calls = answering(*[httpx.Response(429, headers={"Retry-After": after})] * 9)
    encoder = EndpointEncoder(PLACE, transport=transport)
    encoder.limit = 15.0
    with pytest.raises(ServiceError, match="answered 429"):
        encoder.encode(["word1"])
    assert len(calls) == tries
    assert clock.now < 15


def test_an_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Drips(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                clock.pass_by(4)
                yield b" "

    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Drips()))
    encoder = EndpointEncoder(PLACE, transport=transport)
    encoder.limit = 15.0
    with pytest.raises(ServiceError, match="did not end in time"):
        encoder.encode(["word1"])
    assert clock.now == 16
