"""One script against the reader and the service, OpenAI's client unchanged, and texts by role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.support.lineages import lineage_of, read_as
from tests.support.pinned_lineages import (
    PROMPTS,
    TEXTS,
    as_version_0,
    pinned_lineage,
    pinned_service,
)
from tests.support.running_service import Running, client_of, running, server, service_of

from evergram import Client
from evergram.errors import DataError, EvergramError, ServiceError, ShapeError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.serving.app import create_app


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
        for ids in (None, [3, 4, 5], []):
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
    with served.service.entered() as state:
        mine, theirs = script(state.reader), script(client_of(served.http))
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


def test_ids_are_of_one_type_and_numbers_of_numpy_are_numbers(
    served: Running, tmp_path: Path
) -> None:
    client = client_of(served.http)
    one: Any = np.int64(1)
    embedded = client.embed(np.array([3, 4]), one)
    (hits,) = client.search(embedded.vectors[0], one, one, ids=np.array([3, 4]))
    assert len(hits) == 1
    calls: tuple[Callable[[], Any], ...] = (
        lambda: client.embed("17"),
        lambda: client.search([0.0], ids="17"),
        lambda: client.search(embedded.vectors[0], version=1, ids=[object()]),
        lambda: client.encode("17"),
        lambda: client.search_texts("17"),
    )
    for call in calls:
        with pytest.raises(DataError):
            call()
    with pytest.raises(ShapeError):
        client.transform([], 1, 0)
    with running(tmp_path / "line", text=True, versions=1) as of_strings:
        client = client_of(of_strings.http)
        assert client.embed(["7", "nobody"]).sources.tolist() == [0, -1]
        with pytest.raises(DataError, match="strings"):
            client.embed([7])


def test_a_token_that_cannot_be_sent_is_refused_without_repeating_it() -> None:
    for token in ("", "…", "a b", "secret\n"):
        with pytest.raises(ServiceError) as caught:
            Client("http://service", token)
        assert not token or token not in str(caught.value)
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:port"):
        Client("http://127.0.0.1:port")


def flaky(failures: list[Any]) -> httpx.MockTransport:
    """Fails a few times in a row, then answers."""

    def answer(_: httpx.Request) -> httpx.Response:
        if not failures:
            return httpx.Response(200, json={"data": [{"version": 0}]})
        failure = failures.pop(0)
        if isinstance(failure, Exception):
            raise failure
        return httpx.Response(failure, json={"error": {"message": "busy", "code": "busy"}})

    return httpx.MockTransport(answer)


def test_calls_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("evergram.serving.client.time.sleep", pauses.append)
    failures: list[Any] = [httpx.ConnectError("refused"), 503, httpx.ReadError("cut")]
    with Client("http://service", transport=flaky(failures)) as client:
        assert client.versions() == [{"version": 0}]
    assert len(pauses) == 3
    for failures, retries, words in (
        ([503] * 9, 2, "busy"),
        ([httpx.ConnectError("refused")], 0, "cannot be reached: refused"),
        ([400], 5, "busy"),
    ):
        with (
            Client("http://service", transport=flaky(failures), retries=retries) as client,
            pytest.raises(ServiceError, match=words),
        ):
            client.versions()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """An address, and a token that is pinned to version 0 and may read the newest."""
    lineage = lineage_of(tmp_path_factory.mktemp("openai") / "line")
    lineage.label("stable", 2)
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add("classifier", "v0", lineage.resolve, allowed=["stable"])
    token = consumers.issue_token("classifier")
    with server(create_app(service_of(lineage.path))) as url:
        yield f"{url}/v1", token


def test_openais_client_reads_by_version_by_label_and_by_default(guarded: tuple[str, str]) -> None:
    import openai

    more = {"encoding_format": "float", "user": "x", "dimensions": 10}
    options: Any
    with openai.OpenAI(base_url=guarded[0], api_key=guarded[1], max_retries=0) as client:
        for model, version, options in (
            ("line@v0", 0, {}),
            ("line", 0, {}),
            ("line@stable", 2, {**more, "extra_body": {"side": "object"}}),
        ):
            answer = client.embeddings.create(model=model, input=["7", "8"], **options)
            expected = read_as(2, version)[[7, 8]].numpy()
            assert_allclose([d.embedding for d in answer.data], expected, rtol=1e-5, atol=1e-6)
            assert (answer.model, answer.usage.total_tokens) == (f"line@v{version}", 0)


def test_openais_client_raises_its_own_errors(guarded: tuple[str, str]) -> None:
    import openai

    options: Any
    for key, model, ids, kind, code, options in (
        (guarded[1], "line", ["7", "777"], openai.NotFoundError, "unknown_id", {}),
        (guarded[1], "line@v1", "7", openai.PermissionDeniedError, "forbidden_version", {}),
        # Nobody is told which versions there are besides those that they may read.
        (guarded[1], "line@v9", "7", openai.PermissionDeniedError, "forbidden_version", {}),
        (guarded[1], "line", "7", openai.BadRequestError, "dimensions", {"dimensions": 3}),
        ("wrong", "line", "7", openai.AuthenticationError, "unknown_token", {}),
    ):
        with (
            openai.OpenAI(base_url=guarded[0], api_key=key, max_retries=0) as client,
            pytest.raises(kind) as caught,
        ):
            client.embeddings.create(model=model, input=ids, **options)
        assert caught.value.code == code


def test_texts_are_encoded_by_role_at_their_version_and_cut(tmp_path: Path) -> None:
    lineage = pinned_lineage(tmp_path)
    with pinned_service(lineage) as url, Client(url) as client:
        whole = client.encode(TEXTS, version=0)
        query = client.encode(TEXTS[:1], version=0, role="query")
        for rows, prompt, sent in (
            (whole, PROMPTS.document, TEXTS),
            (query, PROMPTS.query, TEXTS[:1]),
        ):
            assert_allclose(rows, as_version_0(lineage, sent, prompt), rtol=1e-4, atol=1e-3)
        cut = whole[:, :4] / np.linalg.norm(whole[:, :4], axis=1, keepdims=True)
        assert_allclose(client.encode(TEXTS, version=0, dimensions=4), cut, atol=1e-4)
        with pytest.raises(EvergramError, match="cannot be truncated to 5"):
            client.encode(TEXTS, version=0, dimensions=5)
