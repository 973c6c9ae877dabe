"""Turn a trained encoder into an artefact, and load a published version's encoder."""

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
from evergram.mapped_tensors import mapping_folder
from evergram.training.build import encoder_options
from evergram.training.fit import Trained

# Rows per block when publishing vectors that are mapped from a file.
BLOCK = 65_536
# Canaries of each side that must match when a user passes modules to load.
TRIED = 64


@overload
def load_encoder(lineage: Lineage, version: int, module: None = None) -> Encoder: ...


@overload
def load_encoder(lineage: Lineage, version: int, module: EncoderModules) -> ModuleEncoder: ...


def load_encoder(lineage: Lineage, version: int, module: EncoderModules | None = None) -> Encoder:
    """Return a published version's encoder, in evaluation mode on the CPU.

    Args:
        module: your own modules that the version was trained with, if any; they are copied.
    Raises: UnknownVersionError. LineageError: the version was imported from a file, or `module` is
        missing or not needed. ShapeError, DataError: `module` has other modules than
        the version was trained with. IntegrityError.
    """
    record, state, vocabularies = lineage.reader(version).encoder()
    what = f"version {version}"
    if record.kind != "module":
        if module is not None:
            raise LineageError(
                f"The encoder of {what} is a built-in {record.kind}; leave the module out."
            )
        return restore_encoder(
            record.kind, record.options, record.inputs, state, vocabularies, what
        )
    if not isinstance(module, EncoderModules):
        raise LineageError(
            f"The encoder of {what} consists of your own modules, which the lineage does not "
            "store; give both and their input functions: load_encoder(lineage, version, "
            "EncoderModules(…))."
        )
    schema = Schema(vocabularies, record.inputs)
    encoder = restore_module_encoder(module, record.options, schema, state, what)
    for side, (ids, vectors) in lineage.canaries(version).items():
        check_vectors(encoder, side, ids[:TRIED], vectors[:TRIED], what)
    return encoder


def make_artefact(trained: Trained, split: Split, options: Mapping[str, Any]) -> Artefact:
    """Return an artefact with vectors and encoder for `Lineage.publish`. `trained` embeds the
    training corpus of `split`; `options` are from `options_of`."""
    embeddings: dict[str, Any] = {}
    for side, entities, vectors in (
        ("query", split.training.queries, trained.query),
        ("candidate", split.training.candidates, trained.candidate),
    ):
        rows = entities.vocabulary.keys, vectors
        # Publish vectors that are mapped from a file in blocks.
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
    """Return the options from which an encoder can be rebuilt, as JSON values."""
    if isinstance(encoder, ModuleEncoder):
        return encoder.options
    return encoder_options(model, version)


def _blocks(ids: pa.Array, vectors: Tensor) -> Iterator[Block]:
    """Yield ids [N] and vectors [N, D] in blocks."""
    for start in range(0, len(ids), BLOCK):
        yield ids.slice(start, BLOCK), vectors[start : start + BLOCK]


def held_out(entities: Side, share: float) -> Tensor:
    """Return a mask [N]: True for the objects on which alignment errors are measured. They are
    chosen by a hash of their ids, equally in every version, and include half of the canaries."""
    return torch.from_numpy(id_hashes(entities.vocabulary.keys)) < share * 2**32
