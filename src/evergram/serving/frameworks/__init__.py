"""Texts as vectors of one version, by a service or by a lineage on this machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

import numpy as np

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.text_vectors import TextVectors
from evergram.serving.client import Client
from evergram.texts.record import checked_dims, cut
from evergram.texts.text_encoder import Role, Vectors

# Texts of one request; a service takes 2,048 where its owner did not say otherwise.
BATCH = 256


@dataclass(frozen=True)
class PinnedTexts:
    """Encodes texts at one version, whatever version is in production.

    Nothing is opened before the first text. Several threads may use one.

    Args:
        version: a number; a label is none to be pinned to, as it moves.
        url: of a service, such as "http://127.0.0.1:8000"; or
        lineage: a folder or address of a lineage, whose encoder then runs in this process.
        encoder: in place of the address that the lineage records; "python:" and "openai:" must be
            named here.
        token: of the service.
        dimensions: cut vectors to this many coordinates, if the version allows it.
    Raises: DataError: the version is not a number, or not one of `url` and `lineage` is given, or
        an option of the other.
    """

    version: int
    url: str | None = None
    lineage: str | None = None
    encoder: str | None = None
    token: str | None = field(default=None, repr=False)
    dimensions: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 0:
            raise DataError(
                f"version is {self.version!r}; give the number of a version, such as 0. (A label "
                "moves, and an index is of one version.)"
            )
        if (self.url is None) == (self.lineage is None):
            raise DataError("Give one of 'url', of a service, and 'lineage', a folder or address.")
        if self.url is not None and self.encoder is not None:
            raise DataError("A service has its own encoder; leave 'encoder' out.")
        if self.lineage is not None and self.token is not None:
            raise DataError("A lineage asks for no token; leave 'token' out.")

    @property
    def name(self) -> str:
        """Return a name for caches, which differs where vectors may: the address of the service,
        without a password, or of the lineage, the version and the dimensions."""
        cuts = "" if self.dimensions is None else f", {self.dimensions} dimensions"
        place = self.lineage
        if self.url is not None:
            parts = urlsplit(self.url)
            place = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        return f"evergram@v{self.version}{cuts} of {place}"

    def encode(self, texts: Sequence[str], role: Role) -> list[list[float]]:
        """Return the vectors of texts at the version, in their order; none of no texts.

        Raises: DataError: the version allows no such dimensions, or a text cannot be encoded; or
            the encoder is not the recorded one. LineageError, ServiceError.
        """
        blocks = [
            self._encode(texts[start : start + BATCH], role)
            for start in range(0, len(texts), BATCH)
        ]
        rows: list[list[float]] = np.concatenate(blocks).tolist() if blocks else []
        return rows

    @cached_property
    def _encode(self) -> Callable[[Sequence[str], Role], Vectors]:
        version, dims = self.version, self.dimensions
        if self.url is not None:
            client = Client(self.url, self.token)
            # No framework closes its embeddings.
            weakref.finalize(self, client.close)
            return lambda texts, role: client.encode(texts, version, role, dimensions=dims)
        # As a service would, in this process.
        lineage = Lineage.open(str(self.lineage))
        version = lineage.resolve(version)
        manifest = lineage.manifest(version)
        dims = checked_dims(dims, manifest.dim, manifest.cuts, version)
        vectors = TextVectors(lineage, self.encoder)
        return lambda texts, role: cut(vectors.encode(texts, version, role), dims)
