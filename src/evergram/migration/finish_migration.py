"""The file that ends a migration: kept vectors, and the rest encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError
from evergram.ids import refuse_other_form
from evergram.releasing.files.encode_file import QUIET, KnownVectors, Texts, encode_file
from evergram.texts import canaries
from evergram.texts.record import TextEncoderRecord, parse_record, record_of
from evergram.texts.recorded_encoder import MismatchError, RecordedEncoder
from evergram.texts.text_encoder import TextEncoder, Vectors
from evergram.training.progress import Progress
from evergram.vector_files.base import TEXT_ENCODER, EmbeddingFile
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.pairing import refuse_repeats

# Kept vectors that are computed again and compared, so that less than 1.2 % are wrong if none is.
CHECKED = 256
CONFIDENCE = 0.95


@dataclass(frozen=True)
class KeptFiles:
    """The kept vectors of some of the texts.

    Args:
        known: these vectors, by the texts' rows.
        paths: the files.
        sources: int64 [M], for each vector the number of its file.
        unknown_ids: ids in the files that no text has; they are left out.
        repeated: ids that were in an earlier file, too, with the same vector.
    """

    known: KnownVectors
    paths: list[Path]
    sources: npt.NDArray[np.int64] = field(repr=False)
    unknown_ids: int = 0
    repeated: int = 0

    @property
    def texts(self) -> npt.NDArray[np.int64]:
        """The rows of the texts that have a kept vector, ascending."""
        return np.flatnonzero(self.known.rows >= 0)


@dataclass(frozen=True)
class SampleCheck:
    """The outcome of a check in which no vector differed.

    Args:
        checked: vectors that were computed again.
        differing: the largest share of kept vectors that may differ, at a confidence of 95 %.
    """

    checked: int
    differing: float


def read_kept(
    paths: Sequence[Path], texts: Texts, encoder: TextEncoder, *, unrecorded: bool = False
) -> KeptFiles:
    """Read kept vectors, all into memory: 4·D bytes each.

    Args:
        paths: files of vectors, or folders whose Parquet files are read.
        unrecorded: whether a file may leave open which encoder made it.
    Raises: DataError: a path is no such file or folder; a file is of another encoder, or says of
        none; its vectors have another dim; an id is there twice in a file, or in two files with
        different vectors; or no text has any of the ids.
    """
    files = [open_embeddings(path) for path in _files(paths)]
    _refuse_others(files, encoder, unrecorded=unrecorded)
    rows = np.full(len(texts.texts), -1)
    most = sum(file.rows for file in files)
    vectors, sources = np.empty((most, encoder.dim), np.float32), np.empty(most, np.int64)
    size = unknown_ids = repeated = 0
    for number, file in enumerate(files):
        places = _places(file, texts.ids)
        unknown_ids += int((places < 0).sum())
        block = np.concatenate([part.float().numpy() for _, part in file.blocks()])
        block, places = block[places >= 0], places[places >= 0]
        again = rows[places] >= 0
        if again.any():
            earlier = vectors[rows[places[again]]]
            _refuse_two_vectors(file, texts, places[again], block[again], earlier)
            repeated += int(again.sum())
            block, places = block[~again], places[~again]
        end = size + len(places)
        rows[places] = np.arange(size, end)
        vectors[size:end], sources[size:end] = block, number
        size = end
    if not size:
        raise DataError(
            f"None of the {unknown_ids} kept ids is among the {len(rows)} texts, whose ids are "
            f"such as {texts.ids[0].as_py()!r}, and theirs such as {files[0].ids()[0].as_py()!r}; "
            "give the files of these texts."
        )
    known = KnownVectors(rows, vectors[:size])
    return KeptFiles(known, [file.path for file in files], sources[:size], unknown_ids, repeated)


def check_kept(
    kept: KeptFiles, texts: Texts, encoder: TextEncoder, count: int = CHECKED, seed: int = 0
) -> SampleCheck:
    """Encode a random sample of the kept texts again, one of each file at least, and compare.

    Args:
        count: vectors to compare, at least 1; all if there are fewer.
    Raises: DataError: `count` is below 1, or a vector differs by more than 3 % of its length
        (`canaries.SAME`): the model was replaced, or the text was changed since.
    """
    if count < 1:
        raise DataError(f"{count} kept vectors were to be checked; check at least 1.")
    draw = np.random.default_rng(seed)
    order = draw.permutation(kept.texts)
    files = kept.sources[kept.known.rows[order]]
    first_of_file = order[np.unique(files, return_index=True)[1]]
    chosen = np.unique(np.concatenate([order[:count], first_of_file]))
    then = kept.known.vectors[kept.known.rows[chosen]]
    now = encoder.encode([texts.texts[row] for row in chosen], texts.role)
    far = canaries.distances(now, then)
    wrong = np.flatnonzero(~(far <= canaries.SAME))
    if len(wrong):
        worst = int(wrong[far[wrong].argmax()])
        path = kept.paths[kept.sources[kept.known.rows[chosen[worst]]]]
        raise DataError(
            f"{len(wrong)} of {len(chosen)} kept vectors that were computed again are not what "
            f"{encoder.address} gives now: that of the id {texts.ids[chosen[worst]].as_py()!r} in "
            f"{path} differs by {far[worst]:.2g} of its length, and {canaries.SAME} is allowed. "
            "The model was replaced, or texts were changed since; leave this file out, or take the "
            "rows of changed texts out of it."
        )
    everything = len(chosen) == len(order)
    share = 0.0 if everything else 1 - (1 - CONFIDENCE) ** (1 / min(count, len(chosen)))
    return SampleCheck(len(chosen), share)


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, those of folders in their order; each once."""
    files = []
    for path in paths:
        if not path.exists():
            raise DataError(
                f"{path} is not there; correct the path, or wait: a service writes the folder of "
                "its --kept each time that it has checked its encoder, and when it ends."
            )
        inside = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not inside:
            raise DataError(
                f"{path} has no Parquet files; give the folder of --kept, or a file of vectors."
            )
        files += inside
    if not files:
        raise DataError("No kept vectors were given; to encode all texts, use encode_file.")
    return list({path.resolve(): path for path in files}.values())


def _refuse_others(
    files: Sequence[EmbeddingFile], encoder: TextEncoder, *, unrecorded: bool
) -> None:
    """Refuse files of another encoder. Raises: DataError."""
    # Files of one encoder mostly have the same record, whose canaries are encoded once.
    reasons: dict[str, str | None] = {}
    for file in files:
        if file.dim != encoder.dim:
            raise DataError(
                f"{file.path} has vectors of {file.dim} dims, and {encoder.address} gives "
                f"{encoder.dim}; leave the file out."
            )
        text = file.provenance.get(TEXT_ENCODER)
        if text is None:
            if not unrecorded:
                raise DataError(
                    f"{file.path} does not say which encoder made its vectors; if it was "
                    f"{encoder.address} and no other, give --unrecorded (in Python "
                    "unrecorded=True): then only the sample vouches for them."
                )
            continue
        if text not in reasons:
            reasons[text] = parse_record(text, str(file.path)).mismatch(encoder)
        if reasons[text] is not None:
            raise DataError(
                f"{file.path} was not made by {encoder.address} as it is now ({reasons[text]}); "
                "leave the file out, or name the encoder that made it."
            )


def _places(file: EmbeddingFile, ids: pa.Array) -> npt.NDArray[np.int64]:
    """Return for each row of a file the row of its text, -1 where no text has the id."""
    kept = file.ids()
    if kept.type != ids.type:
        kept, ids = kept.cast(pa.string()), ids.cast(pa.string())
    refuse_repeats(file, kept)
    refuse_other_form(kept, ids, str(file.path), "the texts")
    places = pc.fill_null(pc.index_in(kept, value_set=ids), -1)
    whole: npt.NDArray[np.int64] = places.to_numpy(zero_copy_only=False).astype(np.int64)
    return whole


def _refuse_two_vectors(
    file: EmbeddingFile,
    texts: Texts,
    places: npt.NDArray[np.int64],
    vectors: Vectors,
    earlier: Vectors,
) -> None:
    """Refuse ids whose vector in an earlier file is another. Raises: DataError."""
    far = canaries.distances(vectors, earlier)
    worst = int(far.argmax())
    if far[worst] > canaries.SAME:
        raise DataError(
            f"{file.path} and a file before it have different vectors of the id "
            f"{texts.ids[int(places[worst])].as_py()!r}, which differ by {far[worst]:.2g} of their "
            "length; one is of another model or of another text: leave that file out."
        )


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
    Raises: DataError, ServiceError: as for `encode_file`; DataError: `rest` is of other texts, or
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
