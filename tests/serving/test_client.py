"""One script against the reader and the service, OpenAI's client unchanged, and texts pinned to one
version in Haystack, LangChain and LlamaIndex."""

from __future__ import annotations

import asyncio
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
from tests.support.text_encoders import ADDRESSES

from evergram import Client
from evergram.errors import DataError, EvergramError, LineageError, ServiceError, ShapeError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.serving import frameworks as pinned_texts
from evergram.serving.app import create_app
from evergram.serving.frameworks import PinnedTexts


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


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return pinned_lineage(tmp_path_factory.mktemp("pinned"))


@pytest.fixture(scope="module", params=["service", "lineage"])
def place(lineage: Lineage, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The options that say where texts are encoded."""
    if request.param == "lineage":
        yield {"lineage": str(lineage.path), "encoder": ADDRESSES[1]}
        return
    with pinned_service(lineage) as url:
        yield {"url": url}


def check_pinned(lineage: Lineage, documents: Any, query: Any, texts: list[str] = TEXTS) -> None:
    """Compare the vectors of texts as documents, and of the first as a query, with version 0's."""
    for rows, prompt, sent in (
        (documents, PROMPTS.document, texts),
        ([query], PROMPTS.query, texts[:1]),
    ):
        assert_allclose(rows, as_version_0(lineage, sent, prompt), rtol=1e-4, atol=1e-3)


def test_pinned_texts_are_of_the_version_its_cuts_and_in_order(
    lineage: Lineage, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = PinnedTexts(0, **place)
    whole = texts.encode(TEXTS, "document")
    check_pinned(lineage, whole, texts.encode(TEXTS[:1], "query")[0])
    cut = np.array(whole)[:, :4]
    short = PinnedTexts(0, dimensions=4, **place).encode(TEXTS, "document")
    assert_allclose(short, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-4)
    assert texts.encode([], "query") == []
    many = [f"word{i} word{i + 1}" for i in range(7)]
    whole = texts.encode(many, "document")
    monkeypatch.setattr(pinned_texts, "BATCH", 3)
    assert_allclose(PinnedTexts(0, **place).encode(many, "document"), whole, atol=1e-5)
    with pytest.raises(DataError, match="is not cut to 5"):
        PinnedTexts(0, dimensions=5, **place).encode(TEXTS, "query")
    with pytest.raises(LineageError, match="9"):
        PinnedTexts(9, **place).encode(TEXTS, "query")


def test_what_cannot_be_pinned_is_refused(lineage: Lineage, tmp_path: Path) -> None:
    service: dict[str, Any] = {"url": "http://x"}
    wrong: Any
    for wrong, options in (
        ("stable", service),
        (True, service),
        (-1, service),
        (0, {}),
        (0, {**service, "lineage": "l"}),
        (0, {**service, "encoder": "wordllama:"}),
        (0, {"lineage": "l", "token": "t"}),
    ):
        with pytest.raises(DataError):
            PinnedTexts(wrong, **options)
    # A lineage runs no code by itself, and no other encoder.
    plain = str(lineage_of(tmp_path / "l").path)
    for folder, encoder, words in (
        (str(lineage.path), None, "name that address in 'encoder'"),
        (str(lineage.path), ADDRESSES[0], "is not the encoder that version 1 records"),
        (plain, None, "records no encoder of text"),
    ):
        with pytest.raises(DataError, match=words):
            PinnedTexts(0, lineage=folder, encoder=encoder).encode(TEXTS, "query")


def test_a_name_differs_where_vectors_may_and_holds_no_secret() -> None:
    names = [
        PinnedTexts(0, url="http://me:secret@127.0.0.1:8000/").name,
        PinnedTexts(1, url="http://127.0.0.1:8000").name,
        PinnedTexts(0, url="http://127.0.0.1:9000").name,
        PinnedTexts(0, lineage="lineages/texts").name,
        PinnedTexts(0, lineage="lineages/texts", dimensions=4).name,
    ]
    assert names[0] == "evergram@v0 of http://127.0.0.1:8000"
    assert len(set(names)) == len(names)


def test_a_haystack_pipeline_that_was_written_and_read_is_pinned(
    lineage: Lineage, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    haystack = pytest.importorskip("haystack")
    from haystack.utils import Secret

    from evergram.serving.frameworks import haystack as module

    pipeline = haystack.Pipeline()
    pipeline.add_component("texts", module.EvergramTextEmbedder(0, dimensions=None, **place))
    pipeline.add_component("documents", module.EvergramDocumentEmbedder(0, **place))
    # Haystack reads no component of a module that its user does not trust.
    allowed = [module.__name__]
    again = haystack.Pipeline.from_dict(pipeline.to_dict(), allowed_modules=allowed)
    documents = [haystack.Document(content=text, meta={"n": i}) for i, text in enumerate(TEXTS)]
    answer = again.run({"texts": {"text": TEXTS[0]}, "documents": {"documents": documents}})
    rows = answer["documents"]["documents"]
    check_pinned(lineage, [row.embedding for row in rows], answer["texts"]["embedding"])
    assert [(row.id, row.meta["n"]) for row in rows] == [(d.id, d.meta["n"]) for d in documents]
    assert documents[0].embedding is None
    with pytest.raises(DataError, match=r"Document 1 .* has no text"):
        module.EvergramDocumentEmbedder(0, **place).run(
            [documents[0], haystack.Document(content="")]
        )
    # A secret is written by its name alone.
    monkeypatch.setenv("SHOP_TOKEN", "secret")
    token = Secret.from_env_var("SHOP_TOKEN")
    written = module.EvergramTextEmbedder(0, url="http://127.0.0.1:8000", token=token).to_dict()
    assert "SHOP_TOKEN" in str(written)
    assert "secret" not in str(written)
    assert module.EvergramTextEmbedder.from_dict(written).to_dict() == written


def test_langchains_documents_and_queries_are_pinned(
    lineage: Lineage, place: dict[str, Any]
) -> None:
    core = pytest.importorskip("langchain_core.embeddings")
    from evergram.serving.frameworks.langchain import EvergramEmbeddings

    embeddings = EvergramEmbeddings(0, **place)
    assert isinstance(embeddings, core.Embeddings)
    check_pinned(lineage, embeddings.embed_documents(TEXTS), embeddings.embed_query(TEXTS[0]))
    later = asyncio.run(embeddings.aembed_documents(TEXTS))
    check_pinned(lineage, later, asyncio.run(embeddings.aembed_query(TEXTS[0])))
    assert embeddings.embed_documents([]) == []
    with pytest.raises(DataError):
        EvergramEmbeddings("stable", **place)  # type: ignore[arg-type]


def test_llama_indexs_texts_and_queries_are_pinned(lineage: Lineage, place: dict[str, Any]) -> None:
    base = pytest.importorskip("llama_index.core.base.embeddings.base")
    from evergram.serving.frameworks.llama_index import EvergramEmbedding

    model = EvergramEmbedding(0, embed_batch_size=2, **place)
    assert isinstance(model, base.BaseEmbedding)
    where = next(iter(place.values()))
    assert (model.model_name, model.embed_batch_size) == (f"evergram@v0 of {where}", 2)
    query = model.get_query_embedding(TEXTS[0])
    several = [*TEXTS, TEXTS[0]]
    check_pinned(lineage, model.get_text_embedding_batch(several), query, several)
    check_pinned(lineage, [model.get_text_embedding(text) for text in TEXTS], query)
    later = asyncio.run(model.aget_query_embedding(TEXTS[0]))
    check_pinned(lineage, asyncio.run(model.aget_text_embedding_batch(TEXTS)), later)
    secret = EvergramEmbedding(0, url="http://127.0.0.1:8000", token="secret")
    assert "secret" not in f"{secret.to_dict()} {secret.to_payload()} {secret!r}"
    # LlamaIndex tells its cached embeddings apart by these.
    others = [
        EvergramEmbedding(v, dimensions=d, **place) for v, d in ((0, None), (1, None), (0, 4))
    ]
    assert len({str(other.to_dict()) for other in others}) == len(others)
    with pytest.raises(DataError):
        EvergramEmbedding("stable", **place)  # type: ignore[arg-type]
