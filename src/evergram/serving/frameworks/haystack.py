"""Embeddings of one version for pipelines of Haystack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from evergram.errors import DataError
from evergram.serving.frameworks import PinnedTexts

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.utils import Secret
except ModuleNotFoundError as error:
    raise DataError(f"{error.name} is missing: pip install 'evergram[haystack]'.") from error


class _PinnedComponent:
    """The settings that both components have, and how a pipeline's file holds them.

    Args:
        version, url, lineage, encoder, dimensions: as of `PinnedTexts`.
        token: of the service; only a secret that is read from the environment can be written into a
            pipeline's file.
    """

    def __init__(
        self,
        version: int,
        url: str | None = None,
        lineage: str | None = None,
        encoder: str | None = None,
        token: Secret | None = None,
        dimensions: int | None = None,
    ) -> None:
        self._token: Any | None = token
        resolved = None if token is None else token.resolve_value()
        self._texts = PinnedTexts(version, url, lineage, encoder, resolved, dimensions)

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a pipeline's file holds it."""
        names = ("version", "url", "lineage", "encoder", "dimensions")
        settings: dict[str, Any] = {name: getattr(self._texts, name) for name in names}
        settings["token"] = None if self._token is None else self._token.to_dict()
        written: dict[str, Any] = default_to_dict(self, **settings)
        return written

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the component that a pipeline's file holds."""
        settings = dict(data.get("init_parameters", {}))
        if isinstance(settings.get("token"), dict):
            settings["token"] = Secret.from_dict(settings["token"])
        read: Self = default_from_dict(cls, {**data, "init_parameters": settings})
        return read


@component
class EvergramTextEmbedder(_PinnedComponent):
    """The vector of a query."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Return {"embedding": the vector of a query}."""
        return {"embedding": self._texts.encode([text], "query")[0]}


@component
class EvergramDocumentEmbedder(_PinnedComponent):
    """Documents with their vectors."""

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Return {"documents": copies with vectors}. Raises: DataError: one has no text."""
        for number, document in enumerate(documents):
            if not (document.content or "").strip():
                raise DataError(
                    f"Document {number} ({document.id[:40]}) has no text; leave it out."
                )
        vectors = self._texts.encode([document.content for document in documents], "document")
        pairs = zip(documents, vectors, strict=True)
        return {"documents": [replace(document, embedding=row) for document, row in pairs]}
