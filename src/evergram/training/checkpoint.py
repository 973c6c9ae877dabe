"""Between a trained encoder and what a lineage keeps of it."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Side, Vocabulary
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES, Schema
from evergram.errors import IntegrityError
from evergram.lineage.lineage import Artefact, Lineage
from evergram.training.build import build_encoder, encoder_options
from evergram.training.loop import Trained
from evergram.training.recipe import Recipe

# Canaries kept of each side; enough for a mean, small enough to keep for ever.
CANARIES = 1000


def load_encoder(lineage: Lineage, version: int) -> Encoder:
    """A published version's encoder, in evaluation mode.

    Raises: UnknownVersionError. IntegrityError: its files do not fit together.
    """
    record, state, vocabularies = lineage.encoder_parts(version)
    schema = Schema(vocabularies, record.inputs)
    encoder = build_encoder(record.kind, record.options, schema, torch.Generator())
    try:
        encoder.load_state_dict(state)
    except RuntimeError as error:
        raise IntegrityError(
            f"The encoder of version {version} does not fit its manifest: {error}"
        ) from error
    return encoder.eval()


def make_artefact(
    recipe: Recipe,
    version: int,
    split: Split,
    trained: Trained,
    metrics: dict[str, Any],
    transform: Tensor | None,
) -> Artefact:
    """What `Lineage.publish` takes."""
    sides = dict(zip(SIDES, (split.training.queries, split.training.candidates), strict=True))
    vectors = {"query": trained.query, "candidate": trained.candidate}
    canaries: dict[str, tuple[pa.Array, Tensor]] = {}
    for side, entities in sides.items():
        rows = torch.argsort(id_hash(entities.vocabulary), stable=True)[:CANARIES]
        canaries[side] = (
            entities.vocabulary.keys.take(pa.array(rows.numpy())),
            vectors[side][rows],
        )
    schema = trained.encoder.schema
    return Artefact(
        encoder_kind=trained.encoder.kind,
        encoder_options=encoder_options(recipe, version),
        encoder_state=trained.encoder.state_dict(),
        inputs=schema.inputs,
        vocabularies=schema.vocabularies,
        embeddings={s: (e.vocabulary.keys, vectors[s]) for s, e in sides.items()},
        transform=transform,
        metrics=metrics,
        recipe=recipe.model_dump(mode="json"),
        canaries=canaries,
    )


def held_out(entities: Side, share: float) -> Tensor:
    """bool [N]: the objects that alignment never sees, so that its error can be measured on them.

    Chosen by a hash of the id: the same objects in every version, with the canaries among them.
    """
    return id_hash(entities.vocabulary) < share * 2**32


def id_hash(vocabulary: Vocabulary) -> Tensor:
    """A number in [0, 2³²) for each id, the same on every machine, int64 [N]."""
    texts = vocabulary.keys.cast(pa.string()).to_pylist()
    return torch.tensor([zlib.crc32(text.encode()) for text in texts], dtype=torch.int64)
