"""Get past versions' models: their encoders, or the embeddings stored of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.encoder import Encoder
from evergram.encoders.encoder_modules import EncoderModules
from evergram.encoders.features import SIDES
from evergram.errors import LineageError
from evergram.lineage.lineage import Lineage
from evergram.training.checkpoint import load_encoder


@dataclass(frozen=True)
class StoredModel:
    """A past version whose encoder is not at hand: it knows the objects it has embeddings of.

    Args:
        dim: D.
        embeddings: of each side, ids [N] and vectors [N, D].
    """

    dim: int
    embeddings: Mapping[str, tuple[pa.Array, Tensor]]

    def known_vectors(self, corpus: Corpus) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the function `known_vectors` of this model."""
        vectors, known = {}, {}
        for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True):
            ids, stored = self.embeddings[side]
            rows = Vocabulary(ids).rows(entities.vocabulary.keys)
            known[side] = rows >= 0
            vectors[side] = stored[rows.clamp(min=0)] * known[side][:, None]
        return vectors, known


PastModel = Encoder | StoredModel


def past_model(
    lineage: Lineage, version: int, module: EncoderModules | None = None
) -> PastModel | None:
    """Return a past version's encoder; without the user's modules that it needs, its stored
    embeddings; None if these are not stored either.

    Args:
        module: the modules that the version was trained with, if they were the user's own.
    Raises: as `load_encoder`.
    """
    record = lineage.manifest(version).encoder
    if record is None or record.kind != "module" or module is not None:
        return load_encoder(lineage, version, module)
    try:
        embeddings = {side: lineage.embeddings(side, version) for side in SIDES}
    except LineageError:  # of an older version, which has no label
        return None
    return StoredModel(lineage.manifest(version).dim, embeddings)


def known_vectors(model: PastModel, corpus: Corpus) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return z_j [N, D_j] of a corpus's entities by side, and which of them version j knows, bool
    [N]."""
    if isinstance(model, StoredModel):
        return model.known_vectors(corpus)
    scene = model.read(corpus)
    return model.embed_all(scene), {side: model.known(side, scene) for side in SIDES}
