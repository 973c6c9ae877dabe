"""Version 0 of a lineage of files, and what a version records of the file that it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evergram.lineage.artefact import Artefact, Block
from evergram.releasing.files.past_file import SIDE
from evergram.texts.record import TextEncoderRecord, parse_record
from evergram.vector_files.open_embeddings import EmbeddingFile
from evergram.vector_files.provenance import TEXT_ENCODER


def facts_of(file: EmbeddingFile) -> dict[str, Any]:
    """Return what a version records of the file that it is made from, as JSON: whether it has ids,
    and the fingerprint that it carries if it was exported from a lineage."""
    return {"has_ids": file.has_ids, "fingerprint": file.fingerprint}


def first_version(file: EmbeddingFile, canaries: Block, recipe: Mapping[str, Any]) -> Artefact:
    """Return version 0 of a lineage of files."""
    return Artefact(
        dim=file.dim,
        embeddings={SIDE: lambda: file.blocks()},
        transform=None,
        metrics={"version": 0, "dim": file.dim, "metrics": {"model": {}}},
        recipe=recipe,
        canaries={SIDE: canaries},
        text_encoder=text_encoder_of(file),
    )


def text_encoder_of(file: EmbeddingFile) -> TextEncoderRecord | None:
    """Return the encoder that made a file from texts; None if the file does not say.

    Raises: DataError: its record is damaged.
    """
    record = file.provenance.get(TEXT_ENCODER)
    return None if record is None else parse_record(record, str(file.path))
