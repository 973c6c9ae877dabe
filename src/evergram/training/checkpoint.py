"""Between a trained encoder and what a lineage keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import Transform
from evergram.data.corpus import Corpus, Side, Vocabulary
from evergram.data.pair_hash import PairHash, TrainedPairs
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.factory import restore_encoder
from evergram.encoders.features import SIDES
from evergram.lineage.artefact import Artefact, Block, EncoderParts
from evergram.lineage.lineage import Lineage
from evergram.lineage.unseen_objects import id_hash
from evergram.training.build import encoder_options
from evergram.training.loop import Trained
from evergram.training.recipe import Recipe

# Canaries kept of each side; enough for a mean, small enough to keep for ever.
CANARIES = 1000


def load_encoder(lineage: Lineage, version: int) -> Encoder:
    """A published version's encoder, in evaluation mode.

    Raises: UnknownVersionError. IntegrityError: its files do not fit together.
    """
    record, state, vocabularies = lineage.encoder_parts(version)
    return restore_encoder(
        record.kind, record.options, record.inputs, state, vocabularies, f"version {version}"
    )


def make_artefact(
    recipe: Recipe,
    version: int,
    split: Split,
    trained: Trained,
    metrics: dict[str, Any],
    transform: Transform | None = None,
    error: StepError | None = None,
    past: Mapping[str, Block] | None = None,
    options: Mapping[str, Any] | None = None,
    trained_on: tuple[str, TrainedPairs] | None = None,
) -> Artefact:
    """What `Lineage.publish` takes.

    Args:
        past: the canaries of the version before; those that are still there stay canaries.
        options: of the encoder, where they are not the recipe's for this version.
        trained_on: the split's salt and the pairs, see `trained_pairs`.
    """
    sides = dict(zip(SIDES, (split.training.queries, split.training.candidates), strict=True))
    vectors = {"query": trained.query, "candidate": trained.candidate}
    canaries: dict[str, tuple[pa.Array, Tensor]] = {}
    for side, entities in sides.items():
        rows = _canaries(entities.vocabulary, None if past is None else past.get(side))
        canaries[side] = (
            entities.vocabulary.keys.take(pa.array(rows.numpy())),
            vectors[side][rows],
        )
    schema = trained.encoder.schema
    return Artefact(
        dim=trained.encoder.dim,
        embeddings={s: (e.vocabulary.keys, vectors[s]) for s, e in sides.items()},
        transform=transform,
        metrics=metrics,
        recipe=recipe.model_dump(mode="json"),
        encoder=EncoderParts(
            kind=trained.encoder.kind,
            options=encoder_options(recipe.model, version) if options is None else options,
            state=trained.encoder.state_dict(),
            inputs=schema.inputs,
            vocabularies=schema.vocabularies,
        ),
        canaries=canaries,
        error=error,
        trained=trained_on,
    )


def trained_pairs(corpus: Corpus, salt: str) -> tuple[str, TrainedPairs]:
    """The pairs of a training corpus as a lineage remembers them, and the salt of their hashes."""
    return salt, TrainedPairs.of(PairHash(salt).of_corpus(corpus))


def _canaries(vocabulary: Vocabulary, past: Block | None) -> Tensor:
    """Rows of the objects whose vectors are kept: past canaries first, then by hash."""
    order = torch.argsort(id_hash(vocabulary), stable=True)
    if past is None:
        return order[:CANARIES]
    still = Vocabulary(vocabulary.keys.cast(pa.string())).rows(past[0])
    still = still[still >= 0]
    return torch.cat([still, order[~torch.isin(order, still)]])[:CANARIES]


def held_out(entities: Side, share: float) -> Tensor:
    """bool [N]: the objects that alignment never sees, so that its error can be measured on them.

    Chosen by a hash of the id: the same objects in every version, with the canaries among them.
    """
    return id_hash(entities.vocabulary) < share * 2**32
