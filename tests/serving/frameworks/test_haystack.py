"""Haystack's two embedders, pinned to version 0, in pipelines of Haystack."""

from __future__ import annotations

from typing import Any

import pytest
from numpy.testing import assert_allclose
from tests.support.pinned_lineages import PROMPTS, TEXTS, as_version_0

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage

HERE = "evergram.serving.frameworks.haystack"
haystack = pytest.importorskip("haystack", reason="haystack-ai is not installed")


def test_a_pipeline_that_was_written_and_read_embeds_as_version_0(
    lineage: Lineage, place: dict[str, Any]
) -> None:
    from evergram.serving.frameworks.haystack import EvergramDocumentEmbedder, EvergramTextEmbedder

    pipeline = haystack.Pipeline()
    pipeline.add_component("texts", EvergramTextEmbedder(0, dimensions=None, **place))
    pipeline.add_component("documents", EvergramDocumentEmbedder(0, **place))
    # Haystack reads no component of a module that its user does not trust.
    again = haystack.Pipeline.from_dict(pipeline.to_dict(), allowed_modules=[HERE])
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


def test_what_is_no_text_and_no_list_of_documents_is_a_type_error() -> None:
    from evergram.serving.frameworks.haystack import EvergramDocumentEmbedder, EvergramTextEmbedder

    url = "http://127.0.0.1:8000"
    for documents in ("abc", ["abc"], haystack.Document(content="abc")):
        with pytest.raises(TypeError, match=r"takes a list of Documents; give a text"):
            EvergramDocumentEmbedder(0, url=url).run(documents=documents)
    for text in (["a"], haystack.Document(content="a")):
        with pytest.raises(TypeError, match=r"takes a text, and this is a (list|Document); give"):
            EvergramTextEmbedder(0, url=url).run(text=text)
