"""Embeddings of one version for LangChain."""

from __future__ import annotations

from typing import Any

from evergram.errors import DataError
from evergram.serving.frameworks import PinnedTexts

try:
    from langchain_core.embeddings import Embeddings
except ModuleNotFoundError as error:
    raise DataError(f"{error.name} is missing: pip install 'evergram[langchain]'.") from error


class EvergramEmbeddings(Embeddings):
    """Vectors of one version, for an index of LangChain that was built on it.

    `EvergramEmbeddings(0, url="http://127.0.0.1:8000")`, or
    `EvergramEmbeddings(0, lineage="lineages/texts")`.

    Args:
        version, options: as of `PinnedTexts`.
    """

    def __init__(self, version: int, **options: Any) -> None:
        self._texts = PinnedTexts(version, **options)

    def __repr__(self) -> str:
        return f"EvergramEmbeddings({self._texts!r})"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents."""
        return self._texts.encode(texts, "document")

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return self._texts.encode([text], "query")[0]
