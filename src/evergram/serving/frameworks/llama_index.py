"""Embeddings of one version for LlamaIndex."""

from __future__ import annotations

import asyncio
from typing import Any

from evergram.errors import DataError
from evergram.serving.frameworks import PinnedTexts

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
except ModuleNotFoundError as error:
    raise DataError(f"{error.name} is missing: pip install 'evergram[llama-index]'.") from error


class EvergramEmbedding(BaseEmbedding):
    """Vectors of one version, for an index of LlamaIndex that was built on it.

    `EvergramEmbedding(0, url="http://127.0.0.1:8000")`, or
    `EvergramEmbedding(0, lineage="lineages/texts")`.

    Args:
        version: as of `PinnedTexts`, and so are `url`, `lineage`, `encoder`, `token` and
            `dimensions`.
        options: of `BaseEmbedding`, such as `embed_batch_size`. `model_name`, by which caches tell
            embeddings apart, has the address, the version and the dimensions by default.
    """

    _texts: PinnedTexts = PrivateAttr()

    def __init__(
        self,
        version: int,
        *,
        url: str | None = None,
        lineage: str | None = None,
        encoder: str | None = None,
        token: str | None = None,
        dimensions: int | None = None,
        **options: Any,
    ) -> None:
        texts = PinnedTexts(version, url, lineage, encoder, token, dimensions)
        super().__init__(**{"model_name": texts.name, **options})
        self._texts = texts

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex writes into its files."""
        return "EvergramEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._texts.encode([query], "query")[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._texts.encode([text], "document")[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._texts.encode(texts, "document")

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
