"""Texts at one version, by a service or a lineage, in Haystack, LangChain and LlamaIndex."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.support.lineages import lineage_of
from tests.support.pinned_lineages import (
    PROMPTS,
    TEXTS,
    as_version_0,
    pinned_lineage,
    pinned_service,
)
from tests.support.text_encoders import ADDRESSES

from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.serving.frameworks import pinned_texts
from evergram.serving.frameworks.pinned_texts import PinnedTexts


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


def test_both_ways_give_the_version_and_its_cuts(lineage: Lineage, place: dict[str, Any]) -> None:
    for role, prompt in (("query", PROMPTS.query), ("document", PROMPTS.document)):
        whole = as_version_0(lineage, TEXTS, prompt)
        rows = PinnedTexts(0, **place).encode(TEXTS, role)  # type: ignore[arg-type]
        assert_allclose(rows, whole, rtol=1e-4, atol=1e-3)
        kept = whole[:, :4].astype(np.float64)
        short = PinnedTexts(0, dimensions=4, **place).encode(TEXTS, role)  # type: ignore[arg-type]
        assert_allclose(short, kept / np.linalg.norm(kept, axis=1, keepdims=True), atol=1e-4)
    assert PinnedTexts(0, **place).encode([], "query") == []
    with pytest.raises(DataError, match="is not cut to 5"):
        PinnedTexts(0, dimensions=5, **place).encode(TEXTS, "query")
    with pytest.raises(LineageError, match="9"):
        PinnedTexts(9, **place).encode(TEXTS, "query")


def test_many_texts_are_sent_in_batches_and_keep_their_order(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"word{i} word{i + 1}" for i in range(7)]
    whole = PinnedTexts(0, **place).encode(texts, "document")
    monkeypatch.setattr(pinned_texts, "BATCH", 3)
    assert_allclose(PinnedTexts(0, **place).encode(texts, "document"), whole, atol=1e-5)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("stable", {"url": "http://x"}),
        (True, {"url": "http://x"}),
        (-1, {"url": "http://x"}),
        (0, {}),
        (0, {"url": "http://x", "lineage": "l"}),
        (0, {"url": "http://x", "encoder": "wordllama:"}),
        (0, {"lineage": "l", "token": "t"}),
    ],
)
def test_what_cannot_be_pinned_is_refused(version: Any, options: Any) -> None:
    with pytest.raises(DataError):
        PinnedTexts(version, **options)


def test_a_lineage_runs_no_code_by_itself_and_no_other_encoder(
    lineage: Lineage, tmp_path: Path
) -> None:
    folder = str(lineage.path)
    with pytest.raises(DataError, match="name that address in 'encoder'"):
        PinnedTexts(0, lineage=folder).encode(TEXTS, "query")
    with pytest.raises(DataError, match="is not the encoder that version 1 records"):
        PinnedTexts(0, lineage=folder, encoder=ADDRESSES[0]).encode(TEXTS, "query")
    with pytest.raises(DataError, match="records no encoder of text"):
        PinnedTexts(0, lineage=str(lineage_of(tmp_path / "l").path)).encode(TEXTS, "query")


def test_a_name_differs_where_vectors_may_and_holds_no_secret() -> None:
    every = [
        PinnedTexts(0, url="http://me:secret@127.0.0.1:8000/"),
        PinnedTexts(1, url="http://127.0.0.1:8000"),
        PinnedTexts(0, url="http://127.0.0.1:9000"),
        PinnedTexts(0, lineage="lineages/texts"),
        PinnedTexts(0, lineage="lineages/texts", dimensions=4),
    ]
    names = [texts.name for texts in every]
    assert names[0] == "evergram@v0 of http://127.0.0.1:8000"
    assert names[4] == "evergram@v0, 4 dimensions of lineages/texts"
    assert len(set(names)) == len(names)


HAYSTACK = "evergram.serving.frameworks.haystack"


def test_a_pipeline_that_was_written_and_read_embeds_as_version_0(
    lineage: Lineage, place: dict[str, Any]
) -> None:
    haystack = pytest.importorskip("haystack")
    from evergram.serving.frameworks.haystack import EvergramDocumentEmbedder, EvergramTextEmbedder

    pipeline = haystack.Pipeline()
    pipeline.add_component("texts", EvergramTextEmbedder(0, dimensions=None, **place))
    pipeline.add_component("documents", EvergramDocumentEmbedder(0, **place))
    # Haystack reads no component of a module that its user does not trust.
    again = haystack.Pipeline.from_dict(pipeline.to_dict(), allowed_modules=[HAYSTACK])
    documents = [haystack.Document(content=text, meta={"n": i}) for i, text in enumerate(TEXTS)]
    answer = again.run({"texts": {"text": TEXTS[0]}, "documents": {"documents": documents}})
    query = as_version_0(lineage, TEXTS[:1], PROMPTS.query)[0]
    assert_allclose(answer["texts"]["embedding"], query, rtol=1e-4, atol=1e-3)
    rows = answer["documents"]["documents"]
    own = as_version_0(lineage, TEXTS, PROMPTS.document)
    assert_allclose([row.embedding for row in rows], own, rtol=1e-4, atol=1e-3)
    assert [(row.id, row.meta["n"]) for row in rows] == [(d.id, d.meta["n"]) for d in documents]
    assert documents[0].embedding is None
    with pytest.raises(DataError, match=r"Document 1 .* has no text"):
        EvergramDocumentEmbedder(0, **place).run([documents[0], haystack.Document(content="")])


def test_a_secret_is_written_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("haystack")
    from haystack.utils import Secret

    from evergram.serving.frameworks.haystack import EvergramTextEmbedder

    monkeypatch.setenv("SHOP_TOKEN", "secret")
    url = "http://127.0.0.1:8000"
    embedder = EvergramTextEmbedder(0, url=url, token=Secret.from_env_var("SHOP_TOKEN"))
    written = embedder.to_dict()
    assert "SHOP_TOKEN" in str(written)
    assert "secret" not in str(written)
    again = EvergramTextEmbedder.from_dict(written)
    assert again.to_dict() == written
    fixed = EvergramTextEmbedder(0, url=url, token=Secret.from_token("secret"))
    with pytest.raises(ValueError, match="Cannot serialize"):
        fixed.to_dict()


def test_documents_and_queries_are_of_version_0(lineage: Lineage, place: dict[str, Any]) -> None:
    core = pytest.importorskip("langchain_core.embeddings")
    from evergram.serving.frameworks.langchain import EvergramEmbeddings

    embeddings = EvergramEmbeddings(0, **place)
    assert isinstance(embeddings, core.Embeddings)
    documents = as_version_0(lineage, TEXTS, PROMPTS.document)
    query = as_version_0(lineage, TEXTS[:1], PROMPTS.query)[0]
    assert_allclose(embeddings.embed_documents(TEXTS), documents, rtol=1e-4, atol=1e-3)
    assert_allclose(embeddings.embed_query(TEXTS[0]), query, rtol=1e-4, atol=1e-3)
    later = asyncio.run(embeddings.aembed_documents(TEXTS))
    assert_allclose(later, documents, rtol=1e-4, atol=1e-3)
    assert embeddings.embed_documents([]) == []
    with pytest.raises(DataError, match="give the number"):
        EvergramEmbeddings("stable", **place)  # type: ignore[arg-type]


def test_texts_and_queries_are_of_version_0(lineage: Lineage, place: dict[str, Any]) -> None:
    base = pytest.importorskip("llama_index.core.base.embeddings.base")
    from evergram.serving.frameworks.llama_index import EvergramEmbedding

    model = EvergramEmbedding(0, embed_batch_size=2, **place)
    assert isinstance(model, base.BaseEmbedding)
    where = next(iter(place.values()))
    assert (model.model_name, model.embed_batch_size) == (f"evergram@v0 of {where}", 2)
    documents = as_version_0(lineage, TEXTS, PROMPTS.document)
    query = as_version_0(lineage, TEXTS[:1], PROMPTS.query)[0]
    several = model.get_text_embedding_batch([*TEXTS, TEXTS[0]])
    assert_allclose(several, documents[[0, 1, 0]], rtol=1e-4, atol=1e-3)
    assert_allclose(model.get_text_embedding(TEXTS[1]), documents[1], rtol=1e-4, atol=1e-3)
    assert_allclose(model.get_query_embedding(TEXTS[0]), query, rtol=1e-4, atol=1e-3)
    later = asyncio.run(model.aget_query_embedding(TEXTS[0]))
    assert_allclose(later, query, rtol=1e-4, atol=1e-3)
    several = asyncio.run(model.aget_text_embedding_batch(TEXTS))
    assert_allclose(several, documents, rtol=1e-4, atol=1e-3)
    with pytest.raises(DataError, match="give the number"):
        EvergramEmbedding("stable", **place)  # type: ignore[arg-type]


def test_a_cache_tells_embeddings_of_other_places_versions_and_dims_apart(
    lineage: Lineage,
) -> None:
    pytest.importorskip("llama_index.core.base.embeddings.base")
    from llama_index.core.ingestion import IngestionCache, IngestionPipeline
    from llama_index.core.schema import TextNode
    from tests.support.text_encoders import ADDRESSES

    from evergram.serving.frameworks.llama_index import EvergramEmbedding

    place = {"lineage": str(lineage.path), "encoder": ADDRESSES[1]}
    cache = IngestionCache()
    rows = []
    for version, dims in ((0, None), (1, None), (0, 4), (0, None)):
        model = EvergramEmbedding(version, dimensions=dims, **place)
        pipeline = IngestionPipeline(transformations=[model], cache=cache)
        (node,) = pipeline.run(nodes=[TextNode(text=TEXTS[0], id_="one")])
        rows.append(node.embedding)
    assert rows[0] == rows[3]
    assert rows[0] != rows[1]
    assert len(rows[2]) == 4


def test_what_it_writes_holds_no_token() -> None:
    pytest.importorskip("llama_index.core.base.embeddings.base")
    from evergram.serving.frameworks.llama_index import EvergramEmbedding

    model = EvergramEmbedding(0, url="http://127.0.0.1:8000", token="secret")
    assert "secret" not in f"{model.to_dict()} {model.to_payload()} {model!r}"
