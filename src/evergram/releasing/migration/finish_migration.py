"""End a migration by use: one file of new vectors, the kept ones as they are, the rest encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from evergram.errors import DataError
from evergram.releasing.files.encode_file import QUIET, KnownVectors, Texts, encode_file
from evergram.releasing.migration.kept_files import CHECKED, check_kept, read_kept
from evergram.texts.record import TextEncoderRecord, record_of
from evergram.texts.recorded_encoder import MismatchError, RecordedEncoder
from evergram.texts.text_encoder import TextEncoder
from evergram.training.progress import Progress


@dataclass(frozen=True)
class MigrationRest:
    """What is left to encode, and the vectors that need not be.

    Args:
        texts: of the whole file.
        to_encode: of these, without a kept vector.
        text_bytes: of the texts to encode, as UTF-8.
        vector_bytes: of all vectors in the file that will be written, float32.
        unknown_ids: kept ids that no text has, which are left out.
        repeated: kept ids that are in several files, with the same vector.
        checked, differing: of `SampleCheck`.
        known: the kept vectors, with the record of the encoder that they were compared with.
    """

    texts: int
    to_encode: int
    text_bytes: int
    vector_bytes: int
    unknown_ids: int
    repeated: int
    checked: int
    differing: float
    known: KnownVectors = field(repr=False)

    def report(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        counts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "known"}
        share = self.to_encode / self.texts
        return {**counts, "kept": self.texts - self.to_encode, "share_to_encode": share}


def plan_rest(
    texts: Texts,
    encoder: TextEncoder,
    kept: Sequence[Path],
    *,
    check: int = CHECKED,
    unrecorded: bool = False,
) -> MigrationRest:
    """Read and check kept vectors, and return what is left to encode; nothing is written.

    Args:
        texts: all documents, whose ids the kept vectors have.
        encoder: the new model.
        kept: files of vectors (of `KeptVectors.save`, of the service's `--kept`, or of
            `encode_file`), or folders whose Parquet files are read.
        check: kept vectors to compute again and compare.
        unrecorded: whether a file may leave open which encoder made it.
    Raises: DataError: the texts are queries, or the encoder changed while it was used; or as of
        `read_kept` and `check_kept`.
    """
    if texts.role != "document":
        raise DataError("Kept vectors are those of documents; give documents, not queries.")
    record = record_of(encoder)
    # Kept vectors and the rest are compared with one record, and never with two models.
    checked = RecordedEncoder(encoder, record)
    try:
        files = read_kept(kept, texts, checked, unrecorded=unrecorded)
        sample = check_kept(files, texts, checked, check)
    except MismatchError as error:
        raise DataError(
            f"{encoder.address} changed while kept vectors were compared with it ({error}); use "
            "one model from the start to the end, and run again."
        ) from error
    absent = np.flatnonzero(files.known.rows < 0)
    return MigrationRest(
        texts=len(texts.texts),
        to_encode=len(absent),
        text_bytes=sum(len(texts.texts[row].encode()) for row in absent),
        vector_bytes=4 * record.dim * len(texts.texts),
        unknown_ids=files.unknown_ids,
        repeated=files.repeated,
        checked=sample.checked,
        differing=sample.differing,
        known=replace(files.known, record=record),
    )


def finish_migration(
    texts: Texts,
    encoder: TextEncoder,
    rest: MigrationRest,
    out: Path,
    *,
    matryoshka: Sequence[int] = (),
    progress: Progress = QUIET,
    overwrite: bool = False,
) -> TextEncoderRecord:
    """Write the vectors of all texts in their order, with the record of their encoder.

    It resumes by parts as `encode_file` does, as long as texts, encoder and kept vectors are the
    same. The file is what `align` publishes.

    Args:
        rest: of `plan_rest`, for the same texts and encoder.
        out, matryoshka, overwrite: as for `encode_file`.
    Raises: DataError, ServiceError: as of `encode_file`; DataError: `rest` is of other texts, or
        was planned with another model.
    """
    if len(rest.known.rows) != len(texts.texts):
        raise DataError(
            f"The plan is of {len(rest.known.rows)} texts, and {len(texts.texts)} were given; "
            "plan again."
        )
    return encode_file(
        *(texts, encoder, out),
        matryoshka=matryoshka,
        progress=progress,
        overwrite=overwrite,
        known=rest.known,
    )
