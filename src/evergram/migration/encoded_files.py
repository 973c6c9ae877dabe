"""Encode a file of texts to a file of vectors that says which encoder made it."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evergram.atomic_files import write_text
from evergram.errors import DataError
from evergram.ids import refuse_other_form, refuse_repeats
from evergram.texts.record import (
    SAME,
    MismatchError,
    RecordedEncoder,
    TextEncoderRecord,
    distances,
    parse_record,
    record_of,
)
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
from evergram.vector_files.pairing import ahead
from evergram.vector_files.writers import check_writable, write_embeddings, write_vectors

QUIET = Progress(quiet=True)
# Formats that have a place for the record of the encoder.
WRITTEN = (*PARQUET, *ARROW, ".npy")
# Texts of a part, which a run that was killed does not encode again.
PART = 1024
# Kept vectors that are computed again and compared, so that less than 1.2 % are wrong if none is.
CHECKED = 256
CONFIDENCE = 0.95
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
class MigrationRest:
    """Vectors of some texts that were kept, and what is left to encode.

    Args:
        rows: int64 [N], for each text its row of `vectors`, float32 [M, D]; -1 where it has none.
        record: of the encoder that they were compared with.
        text_bytes: of the texts to encode, as UTF-8.
        unknown_ids, repeated: kept ids that no text has, and those in several files.
        checked: vectors that were computed again, and were the same.
        differing: the largest share of kept vectors that may differ, at a confidence of 95 %.
    """

    rows: npt.NDArray[np.int64] = field(repr=False)
    vectors: Vectors = field(repr=False)
    record: TextEncoderRecord = field(repr=False)
    text_bytes: int = 0
    unknown_ids: int = 0
    repeated: int = 0
    checked: int = 0
    differing: float = 0.0

    @property
    def to_encode(self) -> int:
        """How many texts have no kept vector."""
        return int((self.rows < 0).sum())

    def report(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        texts, left = len(self.rows), self.to_encode
        counts = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}
        return {
            **{"texts": texts, "kept": texts - left, "to_encode": left},
            **{"share_to_encode": left / texts, "vector_bytes": 4 * self.record.dim * texts},
            **counts,
        }

    def digest(self) -> str:
        """Return the SHA-256 of the rows and their vectors; "" if no text has one."""
        if self.to_encode == len(self.rows):
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
    known: MigrationRest | None = None,
) -> TextEncoderRecord:
    """Write the vectors of texts, float32, in their order, with the record of their encoder.

    Parts of `PART` texts are written to `OUT.parts` first, and a run that was killed goes on with
    the part that it was at; the file then appears whole. A part is written only if the encoder was
    the recorded one in each batch and after it, so parts stay those of one model.

    Args:
        out: Parquet, Arrow or .npy, by its suffix.
        matryoshka: the numbers of first coordinates that the encoder's vectors may be cut to.
        overwrite: whether to write over a file that is there, and to drop parts of other texts,
            another encoder or other known vectors, and parts whose batches took no canary along.
        known: of `plan_rest`, for the same texts and encoder: vectors that are written as they are.
    Raises: DataError: the format has no place for the record, `out` is there or cannot be written,
        parts there are of other texts, another encoder or other known vectors, or the encoder
        changed. ServiceError: the encoder cannot be reached.
    """
    if out.suffix.lower() not in WRITTEN:
        raise DataError(
            f"{out}: vectors are written with the record of their encoder, which "
            f"{', '.join(WRITTEN)} have a place for; give a name that ends in one of these."
        )
    check_writable(out, overwrite=overwrite)
    own = len(texts.texts)
    if known is not None and len(known.rows) != own:
        raise DataError(
            f"The plan is of {len(known.rows)} texts, and {own} were given; plan again."
        )
    record = record_of(encoder, matryoshka)
    if known is None:
        known = MigrationRest(np.full(own, -1), np.empty((0, record.dim), np.float32), record)
    elif (why := known.record.record_mismatch(record)) is not None:
        raise DataError(
            f"{record.address} is not the model that the kept vectors were compared with ({why}); "
            "bring that model back, or compare them again with the one that is there now."
        )
    parts = _Parts(out.with_name(f"{out.name}.parts"), own)
    _encode_parts(texts, RecordedEncoder(encoder, record), known, parts, progress, overwrite)
    zeros = 0

    def counted() -> Iterator[Block]:
        nonlocal zeros
        for path in parts.paths:
            for ids, vectors in open_embeddings(path).blocks():
                zeros += int((vectors == 0).all(1).sum())
                yield ids, vectors

    write_vectors(out, ahead(counted()), _mark(record), overwrite=overwrite)
    shutil.rmtree(parts.folder)
    if zeros:
        log.warning(
            "%d of %d vectors are zeros, as of texts of which the model knows no word, or of calls "
            "that failed: no search by cosine finds them.",
            *(zeros, own),
        )
    return record


@dataclass(frozen=True)
class _Parts:
    """Files of `PART` consecutive texts each, of `rows` in all, whole or not there. What they are
    of is in a file next to them, which is written first."""

    folder: Path
    rows: int

    @property
    def paths(self) -> dict[Path, range]:
        """The rows of each part, by its file."""
        starts = range(0, self.rows, PART)
        return {
            self.folder / f"part-{number:05d}.parquet": range(start, min(start + PART, self.rows))
            for number, start in enumerate(starts)
        }

    def begin(self, settings: Mapping[str, str | int], *, overwrite: bool) -> None:
        """Make the folder, or go on with one of these settings; `overwrite` removes others."""
        record = self.folder / "settings.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            others = any(self.folder.iterdir())
            began = json.loads(record.read_text(encoding="utf-8")) if others else None
            if began is not None and began != settings:
                if not overwrite:
                    raise DataError(
                        f"{self.folder} has parts of other texts, another encoder or other kept "
                        "vectors; give another OUT, remove the folder, or give --force (in Python "
                        "overwrite=True), which starts again."
                    )
                shutil.rmtree(self.folder)
                self.folder.mkdir()
            write_text(record, json.dumps(settings, indent=2))
        except (OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{self.folder} cannot be used for parts: {error}; give another OUT, or remove it."
            ) from error


def _encode_parts(
    texts: Texts,
    encoder: RecordedEncoder,
    known: MigrationRest,
    parts: _Parts,
    progress: Progress,
    overwrite: bool,
) -> None:
    """Write the parts that are missing. Raises: DataError: as `encode_file`."""
    record = encoder.record
    # What must be the same for parts to belong together.
    settings: dict[str, str | int] = {
        "rows": parts.rows,
        "texts": texts.digest(),
        "encoder": record.address,
        "fingerprint": record.fingerprint or "",
        "prompts": json.dumps(record.prompts, sort_keys=True),
        "kept": known.digest(),
    }
    # Parts of the same settings are gone on with, also where a file is to be overwritten.
    parts.begin(settings, overwrite=overwrite)
    if _has_other_parts(record, parts, overwrite=overwrite):
        shutil.rmtree(parts.folder)
        parts.begin(settings, overwrite=overwrite)
    left = known.to_encode
    with progress.task(f"{record.address} of {left} texts", left) as bar:
        for path, part in parts.paths.items():
            ids = texts.ids.slice(part.start, len(part))
            if _is_written(path, ids):
                continue
            # One for each part: its canaries begin anew, so that a part's batches are the same
            # whichever part a run begins with.
            checked = RecordedEncoder(encoder.encoder, record)
            try:
                vectors = _vectors(texts, checked, known, part, bar.advance)
                checked.check()
            except MismatchError as error:
                raise DataError(
                    f"{record.address} changed while the texts were encoded ({error}). "
                    "Parts that are finished are of the model before; bring it back and "
                    f"run again, which goes on with them, or remove {parts.folder} to "
                    "start again with the model that is there now."
                ) from error
            write_embeddings(path, [(ids, torch.from_numpy(vectors))], _mark(record))
    # Another run of the same texts may have written parts at the same time.
    _has_other_parts(record, parts, overwrite=False)


def _mark(record: TextEncoderRecord) -> dict[str, str]:
    return {TEXT_ENCODER: record.model_dump_json()}


def _vectors(
    texts: Texts,
    encoder: RecordedEncoder,
    known: MigrationRest,
    part: range,
    advance: Callable[[int, int], None],
) -> Vectors:
    """Return the vectors of a part of the texts: known ones as they are, the rest encoded."""
    rows = known.rows[part.start : part.stop]
    vectors = np.empty((len(part), known.vectors.shape[1]), np.float32)
    vectors[rows >= 0] = known.vectors[rows[rows >= 0]]
    absent = np.flatnonzero(rows < 0)
    for first in range(0, len(absent), encoder.batch):
        some = absent[first : first + encoder.batch]
        encoded = encoder.encode([texts.texts[part.start + row] for row in some], texts.role)
        if encoded.shape[1] != vectors.shape[1]:
            raise DataError(
                f"{encoder.address} returns vectors of {encoded.shape[1]} dims, and had "
                f"{vectors.shape[1]} a moment ago; start again with one encoder."
            )
        vectors[some] = encoded
        advance(len(some), len(some))
    return vectors


def _is_written(path: Path, ids: pa.Array) -> bool:
    """Return whether an earlier run wrote a part; a damaged one is written again."""
    with suppress(DataError):
        if path.is_file():
            file = open_embeddings(path)
            rows = sum(len(part) for part, _ in file.blocks())  # reads all of it
            return rows == len(ids) and bool(file.ids().equals(ids))
    return False


def _has_other_parts(record: TextEncoderRecord, parts: _Parts, *, overwrite: bool) -> bool:
    """Return whether there are parts of another model. Raises: DataError: so it is, and they are
    not to be overwritten."""
    for path in parts.paths:
        why = None
        # A damaged part is written again.
        with suppress(DataError):
            if path.is_file():
                written = open_embeddings(path).provenance.get(TEXT_ENCODER, "")
                why = parse_record(written, str(path)).record_mismatch(record)
        if why is not None:
            if not overwrite:
                raise DataError(
                    f"{parts.folder} has parts of another model than {record.address} is now "
                    f"({why}); bring back the model that made them, or remove {parts.folder} to "
                    "start again."
                )
            return True
    return False


def plan_rest(
    texts: Texts,
    encoder: TextEncoder,
    kept: Sequence[Path],
    *,
    check: int = CHECKED,
    seed: int = 0,
) -> MigrationRest:
    """Read and check kept vectors, and return what is left to encode; nothing is written.

    Args:
        texts: all documents, whose ids the kept vectors have.
        encoder: the new model.
        kept: files of vectors (of `KeptVectors.save`, of the service's `--kept`, or of
            `encode_file`), or folders of Parquet files.
        check: kept vectors to compute again and compare, one of each file at least; drawn by
            `seed`.
    Raises: DataError: the texts are queries; a file cannot be read, is of another encoder or dim,
        or says of none; an id has two vectors; no text has any of the ids; a vector that was
        computed again differs; or the encoder changed meanwhile.
    """
    if texts.role != "document":
        raise DataError("Kept vectors are those of documents; give documents, not queries.")
    record = record_of(encoder)
    # Kept vectors and the rest are compared with one record, and never with two models.
    checked = RecordedEncoder(encoder, record)
    files = [open_embeddings(path) for path in _files(kept)]
    try:
        _refuse_others(files, checked)
        rows, vectors, sources, unknown_ids, repeated = _read_kept(files, texts, record.dim)
        chosen = _drawn(rows, sources, check, seed)
        paths = [files[source].path for source in sources[rows[chosen]]]
        _compare(texts, checked, chosen, vectors[rows[chosen]], paths)
    except MismatchError as error:
        raise DataError(
            f"{encoder.address} changed while kept vectors were compared with it ({error}); use "
            "one model from the start to the end, and run again."
        ) from error
    all_of_them = len(chosen) == len(vectors)
    return MigrationRest(
        *(rows, vectors, record),
        text_bytes=sum(len(texts.texts[row].encode()) for row in np.flatnonzero(rows < 0)),
        unknown_ids=unknown_ids,
        repeated=repeated,
        checked=len(chosen),
        differing=0.0 if all_of_them else 1 - (1 - CONFIDENCE) ** (1 / min(check, len(chosen))),
    )


def _read_kept(
    files: Sequence[EmbeddingFile], texts: Texts, dim: int
) -> tuple[npt.NDArray[np.int64], Vectors, npt.NDArray[np.int64], int, int]:
    """Return the rows and vectors of a `MigrationRest`, the file of each vector, ids that no text
    has, and ids that are in several files."""
    rows = np.full(len(texts.texts), -1)
    most = sum(file.rows for file in files)
    vectors, sources = np.empty((most, dim), np.float32), np.empty(most, np.int64)
    size = unknown_ids = repeated = 0
    for number, file in enumerate(files):
        places = _places(file, texts.ids)
        unknown_ids += int((places < 0).sum())
        block = np.concatenate([part.float().numpy() for _, part in file.blocks()])
        block, places = block[places >= 0], places[places >= 0]
        again = rows[places] >= 0
        if again.any():
            far = distances(block[again], vectors[rows[places[again]]])
            if far.max() > SAME:
                twice = texts.ids[int(places[again][far.argmax()])].as_py()
                raise DataError(
                    f"{file.path} and a file before it have different vectors of the id {twice!r}, "
                    f"which differ by {far.max():.2g} of their length; one is of another model or "
                    "of another text: leave that file out."
                )
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
    return rows, vectors[:size], sources[:size], unknown_ids, repeated


def _drawn(
    rows: npt.NDArray[np.int64], sources: npt.NDArray[np.int64], count: int, seed: int
) -> npt.NDArray[np.int64]:
    """Return rows of texts with a kept vector: a random sample, and one of each file at least."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(rows >= 0))
    first_of_file = order[np.unique(sources[rows[order]], return_index=True)[1]]
    return np.unique(np.concatenate([order[:count], first_of_file]))


def _compare(
    texts: Texts,
    encoder: TextEncoder,
    chosen: npt.NDArray[np.int64],
    then: Vectors,
    paths: Sequence[Path],
) -> None:
    """Encode the chosen texts again. Raises: DataError: a vector differs from the kept one."""
    now = encoder.encode([texts.texts[row] for row in chosen], texts.role)
    far = distances(now, then)
    wrong = np.flatnonzero(~(far <= SAME))
    if len(wrong):
        worst = int(wrong[far[wrong].argmax()])
        raise DataError(
            f"{len(wrong)} of {len(chosen)} kept vectors that were computed again are not what "
            f"{encoder.address} gives now: that of the id {texts.ids[chosen[worst]].as_py()!r} in "
            f"{paths[worst]} differs by {far[worst]:.2g} of its length, and {SAME} is allowed. "
            "The model was replaced, or texts were changed since; leave this file out, or take the "
            "rows of changed texts out of it."
        )


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


def _refuse_others(files: Sequence[EmbeddingFile], encoder: TextEncoder) -> None:
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
            raise DataError(
                f"{file.path} does not say which encoder made its vectors; leave it out, or write "
                "it with the encoder's record (KeptVectors.save)."
            )
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
    refuse_repeats(kept, str(file.path))
    refuse_other_form(kept, ids, str(file.path), "the texts")
    places = pc.fill_null(pc.index_in(kept, value_set=ids), -1)
    whole: npt.NDArray[np.int64] = places.to_numpy(zero_copy_only=False).astype(np.int64)
    return whole
