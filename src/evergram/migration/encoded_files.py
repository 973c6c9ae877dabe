"""Encode a file of texts to a file of vectors that says which encoder made it."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evergram.errors import DataError
from evergram.ids import refuse_other_form
from evergram.texts import canaries
from evergram.texts.record import TextEncoderRecord, parse_record, record_of
from evergram.texts.recorded_encoder import MismatchError, RecordedEncoder
from evergram.texts.text_encoder import Role, TextEncoder, Vectors
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import (
    ARROW,
    PARQUET,
    TEXT_ENCODER,
    Block,
    EmbeddingFile,
    open_embeddings,
)
from evergram.vector_files.pairing import ahead, refuse_repeats
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
    shards = Shards(out.with_name(f"{out.name}.parts"), -(-own // PART))
    _encode_parts(texts, RecordedEncoder(encoder, record), known, shards, progress, overwrite)
    zeros = 0

    def counted() -> Iterator[Block]:
        nonlocal zeros
        for number in shards.numbers:
            for ids, vectors in open_embeddings(shards.path(number)).blocks():
                zeros += int((vectors == 0).all(1).sum())
                yield ids, vectors

    write_vectors(out, ahead(counted()), _mark(record), overwrite=overwrite)
    shutil.rmtree(shards.folder)
    if zeros:
        log.warning(
            "%d of %d vectors are zeros, as of texts of which the model knows no word, or of calls "
            "that failed: no search by cosine finds them.",
            *(zeros, own),
        )
    return record


def _encode_parts(
    texts: Texts,
    encoder: RecordedEncoder,
    known: KnownVectors,
    shards: Shards,
    progress: Progress,
    overwrite: bool,
) -> None:
    """Write the parts that are missing. Raises: DataError: as `encode_file`."""
    record, own = encoder.record, len(texts.texts)
    settings = _settings(texts, record, known)
    # Parts of the same settings are gone on with, also where a file is to be overwritten.
    whole = {"shards": shards.count, "rows": own, **settings}
    ShardRecord(shards.folder, whole, f"OUT, remove {shards.folder}").begin(overwrite=overwrite)
    _refuse_other_parts(record, shards, overwrite=overwrite)
    absent = int((known.rows < 0).sum())
    with progress.task(f"{record.address} of {absent} texts", absent) as bar:

        def blocks(start: int, stop: int) -> Iterator[Block]:
            for number in shards.numbers:
                part = shards.rows(number, own)
                if start <= part.start and part.stop <= stop:
                    # One for each part: its canaries begin anew, so that a part's batches are the
                    # same whichever part a run begins with.
                    checked = RecordedEncoder(encoder.encoder, record)
                    unfinished = _unfinished(shards, number)
                    try:
                        vectors = _vectors(texts, checked, known, part, bar.advance, unfinished)
                        checked.check()
                    except MismatchError as error:
                        raise _changed(record, error, shards) from error
                    yield texts.ids.slice(part.start, len(part)), torch.from_numpy(vectors)

        write_shards(shards, own, blocks, _mark(record), settings, overwrite=False)
    # Another run of the same texts may have written parts at the same time.
    for number in shards.numbers:
        if (why := _mismatch_of_part(record, shards.path(number))) is not None:
            raise _other_parts(record, shards, why)


def _mark(record: TextEncoderRecord) -> dict[str, str]:
    return {TEXT_ENCODER: record.model_dump_json()}


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
            write_embeddings(unfinished, [block], _mark(encoder.record))
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
