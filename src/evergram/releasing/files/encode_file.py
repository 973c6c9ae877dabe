"""Encode a file of texts to a file of vectors that says which encoder made it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import torch

from evergram.errors import DataError
from evergram.texts.record import TextEncoderRecord, parse_record, record_of
from evergram.texts.text_encoder import Role, TextEncoder
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import ARROW, PARQUET, Block, open_embeddings
from evergram.vector_files.prefetch import ahead
from evergram.vector_files.provenance import TEXT_ENCODER
from evergram.vector_files.shards import Shards, write_shards
from evergram.vector_files.writers import check_writable, write_vectors

QUIET = Progress(quiet=True)
# Formats that have a place for the record of the encoder.
WRITTEN = (*PARQUET, *ARROW, ".npy")
# Texts of a part, which a run that was killed does not encode again.
PART = 4096


@dataclass(frozen=True)
class Texts:
    """Texts with their ids.

    Args:
        ids: [N], int64 or string, each once.
        texts: N, none of them empty.
        role: whether they are documents or queries, which chooses the prompt.
    """

    ids: pa.Array
    texts: list[str] = field(repr=False)
    role: Role = "document"

    def digest(self) -> str:
        """Return the SHA-256 of ids, texts and role."""
        digest = hashlib.sha256(self.role.encode())
        for pair in zip(self.ids.to_pylist(), self.texts, strict=True):
            digest.update(json.dumps(pair).encode())
        return digest.hexdigest()


def encode_file(
    texts: Texts,
    encoder: TextEncoder,
    out: Path,
    *,
    matryoshka: Sequence[int] = (),
    progress: Progress = QUIET,
    overwrite: bool = False,
) -> TextEncoderRecord:
    """Write the vectors of texts, float32, in their order, with the record of their encoder.

    Parts are written to `OUT.parts` first, and a run that was killed goes on with those that are
    there; the file then appears whole. The encoder's canaries are compared at the start, with those
    of parts of an earlier run, and at the end: a model that was replaced meanwhile is an error.

    Args:
        out: Parquet, Arrow or .npy, by its suffix.
        matryoshka: the numbers of first coordinates that the encoder's vectors may be cut to.
        overwrite: whether to write over a file that is there.
    Raises: DataError: the format has no place for the record, `out` is there or cannot be written,
        parts there are of other texts or another encoder, or the encoder changed while it was used.
        ServiceError: the encoder cannot be reached.
    """
    if out.suffix.lower() not in WRITTEN:
        raise DataError(
            f"{out}: vectors are written with the record of their encoder, which "
            f"{', '.join(WRITTEN)} have a place for; give a name that ends in one of these."
        )
    check_writable(out, overwrite=overwrite)
    record = record_of(encoder, matryoshka)
    folder = out.with_name(f"{out.name}.parts")
    shards = Shards(folder, -(-len(texts.texts) // PART))
    provenance = {TEXT_ENCODER: record.model_dump_json()}
    settings: dict[str, str | int] = {
        "texts": texts.digest(),
        "encoder": record.address,
        "fingerprint": record.fingerprint or "",
        "prompts": json.dumps(record.prompts, sort_keys=True),
    }
    own = len(texts.texts)
    with progress.task(f"{encoder.address} of {own} texts", own) as bar:

        def encoded(start: int, stop: int) -> Iterator[Block]:
            for first in range(start, stop, encoder.batch):
                last = min(first + encoder.batch, stop)
                vectors = encoder.encode(texts.texts[first:last], texts.role)
                yield texts.ids.slice(first, last - first), torch.from_numpy(vectors)
                bar.advance(last - first, last - first)

        write_shards(shards, own, encoded, provenance, settings, overwrite=False)
    _refuse_changed(record, encoder, shards)
    write_vectors(out, ahead(_rows(shards)), provenance, overwrite=overwrite)
    shutil.rmtree(folder)
    return record


def _rows(shards: Shards) -> Iterator[Block]:
    for number in shards.numbers:
        yield from open_embeddings(shards.path(number)).blocks()


def _refuse_changed(record: TextEncoderRecord, encoder: TextEncoder, shards: Shards) -> None:
    """Raises: DataError: the encoder of a part, or as it is now, is another."""
    why = record.mismatch(encoder)
    for number in shards.numbers:
        path = shards.path(number)
        written = open_embeddings(path).provenance.get(TEXT_ENCODER, "")
        why = why or parse_record(written, str(path)).mismatch(encoder)
    if why is not None:
        raise DataError(
            f"{record.address} changed while the texts were encoded ({why}), so that the vectors "
            f"are of two models; remove {shards.folder} and start again."
        )
