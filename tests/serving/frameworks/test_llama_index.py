"""LlamaIndex's class of embeddings, pinned to version 0."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from numpy.testing import assert_allclose
from tests.support.pinned_lineages import PROMPTS, TEXTS, as_version_0

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage

base = pytest.importorskip(
    "llama_index.core.base.embeddings.base", reason="llama-index-core is not installed"
)


def test_texts_and_queries_are_of_version_0(lineage: Lineage, place: dict[str, Any]) -> None:
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
    from evergram.serving.frameworks.llama_index import EvergramEmbedding

    model = EvergramEmbedding(0, url="http://127.0.0.1:8000", token="secret")
    assert "secret" not in f"{model.to_dict()} {model.to_payload()} {model!r}"
