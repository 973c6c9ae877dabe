"""LangChain's class of embeddings, pinned to version 0, in LangChain's own store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from numpy.testing import assert_allclose
from tests.support.pinned_lineages import PROMPTS, TEXTS, as_version_0

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage

core = pytest.importorskip("langchain_core.embeddings", reason="langchain-core is not installed")


def test_documents_and_queries_are_of_version_0(lineage: Lineage, place: dict[str, Any]) -> None:
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


def test_a_store_of_langchain_finds_the_text(place: dict[str, Any]) -> None:
    from langchain_core.vectorstores import InMemoryVectorStore

    from evergram.serving.frameworks.langchain import EvergramEmbeddings

    store = InMemoryVectorStore(EvergramEmbeddings(0, dimensions=8, **place))
    store.add_texts(TEXTS)
    assert store.similarity_search(TEXTS[1], k=1)[0].page_content == TEXTS[1]
