"""From a trained encoder to an artefact, and from a lineage's artefact to an encoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, overload

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Side
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder, Schema, restore_encoder
from evergram.encoders.kinds import EncoderSettings
from evergram.encoders.mapped_tensors import mapping_folder
from evergram.encoders.module_encoder import (
    EncoderModules,
    ModuleEncoder,
    check_vectors,
    restore_module_encoder,
)
from evergram.errors import LineageError
from evergram.ids import id_hashes
from evergram.lineage.artefact import Artefact, Block, EncoderParts
from evergram.lineage.lineage import Lineage
from evergram.training.build import encoder_options
from evergram.training.fit import Trained

# Rows that are published at once of vectors that are mapped from a file.
BLOCK = 65_536
# Canaries of each side that a user's modules are tried on when they are given again.
TRIED = 64


@overload
def load_encoder(lineage: Lineage, version: int, module: None = None) -> Encoder: ...


@overload
def load_encoder(lineage: Lineage, version: int, module: EncoderModules) -> ModuleEncoder: ...


def load_encoder(lineage: Lineage, version: int, module: EncoderModules | None = None) -> Encoder:
    """Return a published version's encoder, in evaluation mode on the CPU.

    Args:
        module: the modules that the version was trained with, if they were the user's own; copies
            of them are filled.
    Raises: UnknownVersionError. LineageError: the version came from a file, or modules are missing
        or not needed. ShapeError, DataError: they are other modules. IntegrityError.
    """
    record, state, vocabularies = lineage.reader(version).encoder()
    what = f"version {version}"
    if record.kind != "module":
        if module is not None:
            raise LineageError(
                f"The encoder of {what} is a built-in {record.kind}, so no module fits it; leave "
                "the module out."
            )
        return restore_encoder(
            record.kind, record.options, record.inputs, state, vocabularies, what
        )
    if not isinstance(module, EncoderModules):
        raise LineageError(
            f"The encoder of {what} is made of modules that the lineage does not hold; give both, "
            "and the functions that make their inputs: load_encoder(lineage, version, "
            "EncoderModules(…))."
        )
    schema = Schema(vocabularies, record.inputs)
    encoder = restore_module_encoder(module, record.options, schema, state, what)
    for side, (ids, vectors) in lineage.canaries(version).items():
        check_vectors(encoder, side, ids[:TRIED], vectors[:TRIED], what)
    return encoder


def make_artefact(trained: Trained, split: Split, options: Mapping[str, Any]) -> Artefact:
    """Return an artefact for `Lineage.publish`: vectors and encoder.

    Args:
        split: the one whose training corpus `trained` embeds.
        options: the `options_of` the encoder.
    """
    embeddings: dict[str, Any] = {}
    for side, entities, vectors in (
        ("query", split.training.queries, trained.query),
        ("candidate", split.training.candidates, trained.candidate),
    ):
        rows = entities.vocabulary.keys, vectors
        # In blocks if they are mapped from a file.
        embeddings[side] = rows if mapping_folder(vectors) is None else partial(_blocks, *rows)
    encoder = trained.encoder
    return Artefact(
        dim=encoder.dim,
        embeddings=embeddings,
        transform=None,
        metrics={},
        recipe={},
        encoder=EncoderParts(
            kind=encoder.kind,
            options=options,
            state=encoder.tensors() if isinstance(encoder, ModuleEncoder) else encoder.state_dict(),
            inputs=encoder.schema.inputs,
            vocabularies=encoder.schema.vocabularies,
        ),
    )


def options_of(encoder: Encoder, model: EncoderSettings, version: int) -> dict[str, Any]:
    """Return the options that build an encoder again, as JSON."""
    if isinstance(encoder, ModuleEncoder):
        return encoder.options
    return encoder_options(model, version)


def _blocks(ids: pa.Array, vectors: Tensor) -> Iterator[Block]:
    """Yield ids [N] and vectors [N, D] in blocks."""
    for start in range(0, len(ids), BLOCK):
        yield ids.slice(start, BLOCK), vectors[start : start + BLOCK]


def held_out(entities: Side, share: float) -> Tensor:
    """Return bool [N], the objects on which the error of an alignment is measured, chosen by a hash
    of the id: the same ones in every version, among them half of the canaries."""
    return torch.from_numpy(id_hashes(entities.vocabulary.keys)) < share * 2**32
