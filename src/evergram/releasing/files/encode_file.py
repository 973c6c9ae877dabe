"""Encode a file of texts to a file of vectors that says which encoder made it."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from evergram.errors import DataError
from evergram.texts.record import TextEncoderRecord, parse_record, record_of
from evergram.texts.recorded_encoder import MismatchError, RecordedEncoder
from evergram.texts.text_encoder import Role, TextEncoder, Vectors
from evergram.training.progress import Progress
from evergram.vector_files.base import TEXT_ENCODER
from evergram.vector_files.open_embeddings import ARROW, PARQUET, Block, open_embeddings
from evergram.vector_files.pairing import ahead
from evergram.vector_files.shards import ShardRecord, Shards, write_shards
from evergram.vector_files.writers import check_writable, write_embeddings, write_vectors

QUIET = Progress(quiet=True)
# Formats that have a place for the record of the encoder.
WRITTEN = (*PARQUET, *ARROW, ".npy")
# Texts of a part, which a run that was killed does not encode again.
PART = 4096
# Seconds between two times that the part at work is saved, as far as it has come.
EVERY = 15.0
log: logging.Logger = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class KnownVectors:
    """Vectors of some of the texts, which an earlier run of the same encoder computed.

    Args:
        rows: int64 [N], for each text its row of `vectors`; -1 where it has none.
        vectors: float32 [M, D].
        record: of the encoder that they were compared with; another one is refused. None compares
            nothing.
    """

    rows: npt.NDArray[np.int64]
    vectors: Vectors = field(repr=False)
    record: TextEncoderRecord | None = field(default=None, repr=False)

    def digest(self) -> str:
        """Return the SHA-256 of the rows and their vectors; "" if no text has one."""
        if not (self.rows >= 0).any():
            return ""
        digest = hashlib.sha256(self.rows.astype("<i8").tobytes())
        digest.update(np.ascontiguousarray(self.vectors, "<f4").data)
        return digest.hexdigest()


def encode_file(
    texts: Texts,
    encoder: TextEncoder,
    out: Path,
    *,
    matryoshka: Sequence[int] = (),
    progress: Progress = QUIET,
    overwrite: bool = False,
    known: KnownVectors | None = None,
) -> TextEncoderRecord:
    """Write the vectors of texts, float32, in their order, with the record of their encoder.

    Parts are written to `OUT.parts` first, the one at work every `EVERY` seconds as far as it has
    come, and a run that was killed goes on from there; the file then appears whole. A part is
    written only if the encoder was the recorded one in each batch, which takes a canary along where
    no weights are available, and in all canaries after it. So a model that is replaced meanwhile is
    an error, and parts stay those of one model.

    Args:
        out: Parquet, Arrow or .npy, by its suffix.
        matryoshka: the numbers of first coordinates that the encoder's vectors may be cut to.
        overwrite: whether to write over a file that is there, and to drop parts of other texts,
            another encoder or other known vectors, and parts whose batches took no canary along.
        known: vectors that are written as they are; all texts are encoded by default.
    Raises: DataError: the format has no place for the record, `out` is there or cannot be written,
        parts there are of other texts, another encoder or other known vectors, the encoder is not
        the one that known vectors were compared with, or it changed while it was used.
        ServiceError: the encoder cannot be reached.
    """
    if out.suffix.lower() not in WRITTEN:
        raise DataError(
            f"{out}: vectors are written with the record of their encoder, which "
            f"{', '.join(WRITTEN)} have a place for; give a name that ends in one of these."
        )
    check_writable(out, overwrite=overwrite)
    record = record_of(encoder, matryoshka)
    own = len(texts.texts)
    if known is None:
        known = KnownVectors(np.full(own, -1), np.empty((0, record.dim), np.float32))
    elif known.record is not None and (why := known.record.record_mismatch(record)) is not None:
        raise DataError(
            f"{record.address} is not the model that the kept vectors were compared with ({why}); "
            "bring that model back, or compare them again with the one that is there now."
        )
    folder = out.with_name(f"{out.name}.parts")
    shards = Shards(folder, -(-own // PART))
    provenance = {TEXT_ENCODER: record.model_dump_json()}
    settings = _settings(texts, record, known)
    # Parts of the same settings are gone on with, also where a file is to be overwritten.
    whole = {"shards": shards.count, "rows": own, **settings}
    place = f"OUT, remove {folder}"
    ShardRecord(folder, whole, place).begin(overwrite=overwrite)
    _refuse_other_parts(record, shards, overwrite=overwrite)
    absent = int((known.rows < 0).sum())
    with progress.task(f"{encoder.address} of {absent} texts", absent) as bar:

        def blocks(start: int, stop: int) -> Iterator[Block]:
            for number in shards.numbers:
                part = shards.rows(number, own)
                if start <= part.start and part.stop <= stop:
                    # One for each part: its canaries begin anew, so that a part's batches are the
                    # same whichever part a run begins with.
                    checked = RecordedEncoder(encoder, record)
                    unfinished = _unfinished(shards, number)
                    try:
                        vectors = _vectors(texts, checked, known, part, bar.advance, unfinished)
                        checked.check()
                    except MismatchError as error:
                        raise _changed(record, error, shards) from error
                    yield texts.ids.slice(part.start, len(part)), torch.from_numpy(vectors)

        write_shards(shards, own, blocks, provenance, settings, overwrite=False)
    # Another run of the same texts may have written parts at the same time.
    for number in shards.numbers:
        if (why := _mismatch_of_part(record, shards.path(number))) is not None:
            raise _other_parts(record, shards, why)
    zeros = 0

    def counted() -> Iterator[Block]:
        nonlocal zeros
        for ids, vectors in _rows(shards):
            zeros += int((vectors == 0).all(1).sum())
            yield ids, vectors

    write_vectors(out, ahead(counted()), provenance, overwrite=overwrite)
    shutil.rmtree(folder)
    if zeros:
        log.warning(
            "%d of %d vectors are zeros, as of texts of which the model knows no word, or of calls "
            "that failed: no search by cosine finds them.",
            *(zeros, own),
        )
    return record


def _settings(texts: Texts, record: TextEncoderRecord, known: KnownVectors) -> dict[str, str | int]:
    """Return what must be the same for parts to belong together."""
    settings: dict[str, str | int] = {
        "texts": texts.digest(),
        "encoder": record.address,
        "fingerprint": record.fingerprint or "",
        "prompts": json.dumps(record.prompts, sort_keys=True),
    }
    if kept := known.digest():
        settings["kept"] = kept
    return settings


def _unfinished(shards: Shards, number: int) -> Path:
    """Return the file of a part that is not finished, which belongs to the folder like the part."""
    return shards.path(number).with_name(f".{shards.path(number).name}")


def _vectors(
    texts: Texts,
    encoder: RecordedEncoder,
    known: KnownVectors,
    part: range,
    advance: Callable[[int, int], None],
    unfinished: Path,
) -> Vectors:
    """Return the vectors of a part of the texts: known ones as they are, the rest encoded."""
    rows = known.rows[part.start : part.stop]
    vectors = np.empty((len(part), known.vectors.shape[1]), np.float32)
    vectors[rows >= 0] = known.vectors[rows[rows >= 0]]
    absent = np.flatnonzero(rows < 0)
    ids = texts.ids.take(pa.array(part.start + absent))
    saved = _saved(unfinished, ids, vectors.shape[1])
    vectors[absent[: len(saved)]] = saved
    if len(saved):
        advance(len(saved), len(saved))
    last = monotonic()
    for first in range(len(saved), len(absent), encoder.batch):
        some = absent[first : first + encoder.batch]
        encoded = encoder.encode([texts.texts[part.start + row] for row in some], texts.role)
        if encoded.shape[1] != vectors.shape[1]:
            raise DataError(
                f"{encoder.address} returns vectors of {encoded.shape[1]} dims, and had "
                f"{vectors.shape[1]} a moment ago; start again with one encoder."
            )
        vectors[some] = encoded
        advance(len(some), len(some))
        end = first + len(some)
        if end < len(absent) and monotonic() - last >= EVERY:
            encoder.check()
            block = ids.slice(0, end), torch.from_numpy(vectors[absent[:end]])
            provenance = {TEXT_ENCODER: encoder.record.model_dump_json()}
            write_embeddings(unfinished, [block], provenance)
            last = monotonic()
    return vectors


def _saved(unfinished: Path, ids: pa.Array, dim: int) -> Vectors:
    """Return the vectors that an earlier run saved of a part, [n, D] of its first n ids."""
    none: Vectors = np.empty((0, dim), np.float32)
    if not unfinished.is_file():
        return none
    # A damaged file is written again.
    with suppress(DataError):
        file = open_embeddings(unfinished)
        blocks = [part.float().numpy() for _, part in file.blocks()]
        if file.dim == dim and file.ids().equals(ids.slice(0, file.rows)):
            return np.concatenate(blocks)
    return none


def _rows(shards: Shards) -> Iterator[Block]:
    for number in shards.numbers:
        yield from open_embeddings(shards.path(number)).blocks()


def _refuse_other_parts(record: TextEncoderRecord, shards: Shards, *, overwrite: bool) -> None:
    """Refuse parts of an earlier run whose model was another, or remove them."""
    paths = [shards.path(number) for number in shards.numbers]
    for path in [*paths, *(_unfinished(shards, number) for number in shards.numbers)]:
        why = None
        # A damaged part is written again.
        with suppress(DataError):
            why = _mismatch_of_part(record, path) if path.is_file() else None
        if why is not None:
            if not overwrite:
                raise _other_parts(record, shards, why)
            shutil.rmtree(shards.folder)
            return


def _mismatch_of_part(record: TextEncoderRecord, part: Path) -> str | None:
    """Return why the encoder of a part is not the recorded one; None if it is."""
    written = open_embeddings(part).provenance.get(TEXT_ENCODER, "")
    if written == record.model_dump_json():
        return None
    return parse_record(written, str(part)).record_mismatch(record)


def _other_parts(record: TextEncoderRecord, shards: Shards, why: str) -> DataError:
    return DataError(
        f"{shards.folder} has parts of another model than {record.address} is now ({why}); bring "
        f"back the model that made them, or remove {shards.folder} to start again."
    )


def _changed(record: TextEncoderRecord, why: MismatchError, shards: Shards) -> DataError:
    return DataError(
        f"{record.address} changed while the texts were encoded ({why}). Parts that are finished "
        "are of the model before; bring it back and run again, which goes on with them, or remove "
        f"{shards.folder} to start again with the model that is there now."
    )
