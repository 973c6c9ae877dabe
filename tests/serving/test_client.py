"""One script against the reader and the service, and the client of OpenAI, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.support.lineages import lineage_of, read_as, vectors_of
from tests.support.running_service import Running, running, server, service_of

from evergram import Client
from evergram.errors import (
    DataError,
    EvergramError,
    ServiceError,
    ShapeError,
)
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.app import create_app


def client_of(served: Running) -> Client:
    """Without a network: the test client is one of httpx."""
    client = Client("http://testserver", retries=0)
    client._http = served.http  # type: ignore[assignment]
    return client


def script(source: Any) -> list[Any]:
    """What a program would do, and every error that it would see."""
    results: list[Any] = []
    for version in (None, 0, "v1"):
        for ids in ([1, 2, 999], pa.array([5]), []):
            embedded = source.embed(ids, version)
            results += [embedded.version, embedded.ids, embedded.vectors, embedded.sources]
            results.append(embedded.missing)
    queries = np.linspace(-1, 1, 16).reshape(2, 8)
    for metric in ("ip", "l2", "cosine"):
        for ids in (None, [3, 4, 5]):
            for hits in source.search(queries, 4, 1, metric=metric, ids=ids):
                results += [hits.ids, hits.scores, hits.versions]
    results.append(source.search(queries[0], version=1)[0].ids)
    results.append(source.transform(queries, 1, 0))
    calls: tuple[Callable[[], Any], ...] = (
        lambda: source.embed([1], 9),
        lambda: source.embed(["a"]),
        lambda: source.embed([1], side="query"),
        lambda: source.search(queries, version=0),
        lambda: source.search(queries, 0, version=1),
        lambda: source.search([["x"]], version=1),
        lambda: source.transform(queries, 1, "nightly"),
        lambda: source.transform(queries * np.nan, 1, 0),
    )
    for call in calls:
        with pytest.raises(EvergramError) as caught:
            call()
        results.append(caught.type)
    return results


def test_the_same_script_gives_the_same(served: Running) -> None:
    state = served.service.enter()
    mine, theirs = script(state.reader), script(client_of(served))
    state.leave()
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert_array_equal(a, b)
        elif isinstance(a, pa.Array):
            assert a.equals(b)
        elif isinstance(a, type):
            # What is refused before it is read is of the same kind, or more general.
            assert issubclass(a, b) or b is ServiceError, (a, b)
        else:
            assert a == b


def test_strings_are_ids_where_they_are(tmp_path: Path) -> None:
    with running(tmp_path / "line", text=True, versions=1) as served:
        embedded = client_of(served).embed(["7", "nobody"])
        assert embedded.sources.tolist() == [0, -1]
        with pytest.raises(DataError, match="strings"):
            client_of(served).embed([7])


def test_numbers_of_numpy_are_numbers(served: Running) -> None:
    client = client_of(served)
    one: Any = np.int64(1)
    embedded = client.embed(np.array([3, 4]), one)
    (hits,) = client.search(embedded.vectors[0], one, one, ids=np.array([3, 4]))
    assert len(hits) == 1
    with pytest.raises(DataError, match="is no id"):
        client.search(embedded.vectors[0], version=1, ids=[object()])


def test_arguments_that_cannot_be_sent_are_refused(served: Running) -> None:
    client = client_of(served)
    for call in (
        lambda: client.embed("17"),
        lambda: client.search([0.0], ids="17"),
        lambda: client.encode("17"),
        lambda: client.search_texts("17"),
    ):
        with pytest.raises(DataError, match=r"give a list, such as \['17'\]"):
            call()
    with pytest.raises(ShapeError):
        client.transform([], 1, 0)


@pytest.mark.parametrize("token", ["", "…", "a b", "secret\n"])
def test_a_token_that_cannot_be_sent_is_refused_without_repeating_it(token: str) -> None:
    with pytest.raises(ServiceError) as caught:
        Client("http://service", token)
    assert not token or token not in str(caught.value)
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:port"):
        Client("http://127.0.0.1:port")


class Flaky(httpx.BaseTransport):
    """Fails a few times in a row, then answers."""

    def __init__(self, failures: list[Any]) -> None:
        self.failures = failures

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return httpx.Response(failure, json={"error": {"message": "busy", "code": "busy"}})
        return httpx.Response(200, json={"data": [{"version": 0}]})


def test_calls_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("evergram.serving.client.time.sleep", pauses.append)
    flaky = Flaky([httpx.ConnectError("refused"), 503, httpx.ReadError("cut")])
    with Client("http://service", transport=flaky) as client:
        assert client.versions() == [{"version": 0}]
    assert len(pauses) == 3
    cases: tuple[tuple[list[Any], int, str], ...] = (
        ([503] * 9, 2, "busy"),
        ([httpx.ConnectError("refused")], 0, "cannot be reached: refused"),
        ([400], 5, "busy"),
    )
    for failures, retries, words in cases:
        with (
            Client("http://service", transport=Flaky(failures), retries=retries) as client,
            pytest.raises(ServiceError, match=words),
        ):
            client.versions()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """An address, and a token that is pinned to version 0."""
    folder: Path = tmp_path_factory.mktemp("openai") / "line"
    lineage = lineage_of(folder)
    lineage.label("stable", 2)
    consumers = ConsumerRegistry.open(folder)
    consumers.add("classifier", "v0", lineage.resolve, allowed=["stable"])
    token = consumers.issue_token("classifier")
    with server(create_app(service_of(folder))) as url:
        yield f"{url}/v1", token


@pytest.fixture
def openai_client(guarded: tuple[str, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=guarded[0], api_key=guarded[1], max_retries=0) as openai_client:
        yield openai_client


def test_embeddings_by_version_by_label_and_by_default(openai_client: openai.OpenAI) -> None:
    for model, version in (("line@v0", 0), ("line", 0), ("line@stable", 2)):
        answer = openai_client.embeddings.create(model=model, input=["7", "8"])
        expected = read_as(2, version)[[7, 8]].numpy()
        assert_allclose([d.embedding for d in answer.data], expected, rtol=1e-5, atol=1e-6)
        assert answer.model == f"line@v{version}"
        assert answer.usage.total_tokens == 0


def test_floats_users_sides_and_dimensions(openai_client: openai.OpenAI) -> None:
    answer = openai_client.embeddings.create(
        model="line@stable",
        input="7",
        encoding_format="float",
        user="somebody",
        dimensions=10,
        extra_body={"side": "object"},
    )
    assert_allclose(answer.data[0].embedding, vectors_of(2)[7].numpy(), rtol=1e-6)
    with pytest.raises(openai.BadRequestError, match="10 dimensions"):
        openai_client.embeddings.create(model="line@stable", input="7", dimensions=3)


def test_errors_are_its_own(openai_client: openai.OpenAI, guarded: tuple[str, str]) -> None:
    with pytest.raises(openai.NotFoundError, match="1 of 2 ids") as missing:
        openai_client.embeddings.create(model="line", input=["7", "777"])
    assert missing.value.code == "unknown_id"
    with pytest.raises(openai.PermissionDeniedError, match="may not read"):
        openai_client.embeddings.create(model="line@v1", input="7")
    # Nobody is told which versions there are beside those that they may read.
    with pytest.raises(openai.PermissionDeniedError, match="may not read"):
        openai_client.embeddings.create(model="line@v9", input="7")
    with (
        openai.OpenAI(base_url=guarded[0], api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError, match="token"),
    ):
        other.embeddings.create(model="line", input="7")
