"""Encode texts to a file of vectors that records its encoder."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
    ahead,
    check_writable,
    open_embeddings,
    write_vectors,
)

QUIET = Progress(quiet=True)
WRITTEN = (*PARQUET, *ARROW, ".npy")  # formats that can store the encoder's record
PART = 1024  # texts per part; an interrupted run resumes after its last complete part
CHECKED = 256  # kept vectors to recompute for comparison
log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Texts:
    """N nonempty texts with distinct ids, int64 or string; the role selects the prompt."""

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
    """Kept vectors of some texts, compared with an encoder; the others are left to encode.

    Args:
        rows: int64 [N], each text's row of `vectors`, float32 [M, D]; -1 if it has none.
        counts: `texts`, `kept` and `to_encode`; `text_bytes` to encode, as UTF-8; `unknown_ids`
            without a text; ids `repeated` in several files; and vectors `checked` by recomputing.
    """

    rows: npt.NDArray[np.int64] = field(repr=False)
    vectors: Vectors = field(repr=False)
    record: TextEncoderRecord = field(repr=False)
    counts: dict[str, int] = field(default_factory=dict)

    def digest(self) -> str:
        """Return the SHA-256 of rows and vectors; "" if no text has a vector."""
        if (self.rows < 0).all():
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
    """Encode texts, and write their float32 vectors in the same order with the encoder's record.

    Parts of `PART` texts are first written to `OUT.parts`, so that an interrupted run can resume.
    Canaries are checked in each batch and after each part, so that all parts are of one model.

    Args:
        out: a file with the suffix of Parquet, Arrow or .npy.
        matryoshka: dims that the encoder's vectors may be cut to.
        overwrite: whether to replace `out`, and parts of other texts, encoders or known vectors.
        known: vectors to copy instead of encoding, from `plan_rest` for these texts and encoder.
    Raises: DataError: the format cannot store the record; `out` exists or cannot be written; there
        are other parts; or the encoder changed. ServiceError: it cannot be reached.
    """
    if out.suffix.lower() not in WRITTEN:
        raise DataError(
            f"{out} must end in one of {', '.join(WRITTEN)}, which can store the encoder's record."
        )
    check_writable(out, overwrite=overwrite)
    count = len(texts.texts)
    if known is not None and len(known.rows) != count:
        raise DataError(f"The plan is of {len(known.rows)} texts, not {count}; plan again.")
    record = record_of(encoder, matryoshka)
    if known is None:
        known = MigrationRest(np.full(count, -1), np.empty((0, record.dim), np.float32), record)
    elif (why := known.record.mismatch(record)) is not None:
        raise DataError(
            f"{record.address} is not the model that the kept vectors were compared with ({why}); "
            "bring that model back, or plan again."
        )
    folder = out.with_name(f"{out.name}.parts")
    parts = {
        folder / f"part-{number:05d}.parquet": range(start, min(start + PART, count))
        for number, start in enumerate(range(0, count, PART))
    }
    # Parts belong together only if these are equal.
    settings = {
        "rows": [count, PART],
        "texts": texts.digest(),
        "encoder": [record.address, record.fingerprint, record.prompts],
        "kept": known.digest(),
    }
    _begin(folder, settings, [path for path in parts if path.is_file()], record, overwrite)
    _write_parts(parts, texts, encoder, record, known, progress)
    # A concurrent run on the same texts may have written parts.
    if (why := _other_model(parts, record)) is not None:
        raise DataError(f"{folder} has parts of {why}; remove it, and start again.")
    _join(parts, out, record, overwrite)
    shutil.rmtree(folder)
    return record


def _write_parts(
    parts: Mapping[Path, range],
    texts: Texts,
    encoder: TextEncoder,
    record: TextEncoderRecord,
    known: MigrationRest,
    progress: Progress,
) -> None:
    """Write the parts that are missing. Raises: DataError: the encoder changed meanwhile."""
    left = int((known.rows < 0).sum())
    with progress.task(f"{record.address} of {left} texts", left) as bar:
        for path, part in parts.items():
            if path.is_file():
                continue
            # A new one per part restarts the canaries, so that a part's batches do not depend on
            # the part that a run starts with.
            checked = RecordedEncoder(encoder, record)
            try:
                _write_part(path, part, texts, checked, known, bar.advance)
            except MismatchError as error:
                raise DataError(
                    f"{record.address} changed while the texts were encoded ({error}). Bring the "
                    "model before back and run again to go on, or remove "
                    f"{path.parent} to start again."
                ) from error


def _join(parts: Iterable[Path], out: Path, record: TextEncoderRecord, overwrite: bool) -> None:
    """Write the parts to one file, and warn of zero vectors."""
    zeros = 0

    def counted() -> Iterator[Block]:
        nonlocal zeros
        for path in parts:
            for ids, vectors in open_embeddings(path).blocks():
                zeros += int((vectors == 0).all(1).sum())
                yield ids, vectors

    mark = {TEXT_ENCODER: record.model_dump_json()}
    count = write_vectors(out, ahead(counted()), mark, overwrite=overwrite)
    if zeros:
        log.warning(
            "%d of %d vectors are zeros, as of texts of which the model knows no word, or of calls "
            "that failed: no search by cosine finds them.",
            zeros,
            count,
        )


def _begin(
    folder: Path,
    settings: dict[str, Any],
    finished: Sequence[Path],
    record: TextEncoderRecord,
    overwrite: bool,
) -> None:
    """Create the folder of parts, or accept one with the same settings and model; `overwrite`
    replaces any other."""
    file = folder / "settings.json"
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        if not file.exists():
            raise DataError(f"{folder} has files that are no parts; remove it, or change OUT.")
        began = None
        with suppress(ValueError):
            began = json.loads(file.read_text(encoding="utf-8"))
        why = "other texts, another encoder or other kept vectors"
        if began == settings:
            why = _other_model(finished, record) or ""
        if why and not overwrite:
            raise DataError(
                f"{folder} has parts of {why}; bring back what made them, give another OUT, or "
                "start again with --force (in Python overwrite=True)."
            )
        if why:
            shutil.rmtree(folder)
            folder.mkdir()
    write_text(file, json.dumps(settings, indent=2))


def _other_model(parts: Iterable[Path], record: TextEncoderRecord) -> str | None:
    """Return a phrase for messages if a part was made by another encoder, else None."""
    for path in parts:
        written = parse_record(open_embeddings(path).provenance.get(TEXT_ENCODER, ""), str(path))
        if (why := written.mismatch(record)) is not None:
            return f"another model than {record.address} is now ({why})"
    return None


def _write_part(
    path: Path,
    part: range,
    texts: Texts,
    encoder: RecordedEncoder,
    known: MigrationRest,
    advance: Callable[[int, int], None],
) -> None:
    """Write one part: copy known vectors and encode the rest. Raises: MismatchError: the encoder is
    not the recorded one."""
    rows = known.rows[part.start : part.stop]
    vectors = np.empty((len(part), encoder.dim), np.float32)
    vectors[rows >= 0] = known.vectors[rows[rows >= 0]]
    absent = np.flatnonzero(rows < 0)
    for first in range(0, len(absent), encoder.batch):
        some = absent[first : first + encoder.batch]
        encoded = encoder.encode([texts.texts[part.start + row] for row in some], texts.role)
        if encoded.shape[1] != encoder.dim:
            raise MismatchError(f"its vectors have {encoded.shape[1]} dims, not {encoder.dim}")
        vectors[some] = encoded
        advance(len(some), len(some))
    encoder.check()
    block = texts.ids.slice(part.start, len(part)), torch.from_numpy(vectors)
    write_vectors(path, [block], {TEXT_ENCODER: encoder.record.model_dump_json()})


def plan_rest(
    texts: Texts,
    encoder: TextEncoder,
    kept: Sequence[Path],
    *,
    check: int = CHECKED,
    seed: int = 0,
) -> MigrationRest:
    """Read and check kept vectors of documents, and return them with what is left to encode.

    Args:
        kept: files of vectors (from `KeptVectors.save`, the service's `--kept` or `encode_file`),
            or folders of Parquet files.
        check: how many kept vectors to recompute, drawn by `seed`; at least one per file.
    Raises: DataError: the texts are queries; a file cannot be read, or is of another encoder; an id
        has two different vectors; no id has a text; a recomputed vector differs.
    """
    if texts.role != "document":
        raise DataError("Kept vectors are those of documents; give documents, not queries.")
    record = record_of(encoder)
    # Use one record throughout, so that a change of the encoder is noticed.
    checked = RecordedEncoder(encoder, record)
    files = [open_embeddings(path) for path in _files(kept)]
    try:
        _refuse_others(files, checked)
        rows, vectors, ends, unknown_ids, repeated = _read_kept(files, texts, record.dim)
        order = np.random.default_rng(seed).permutation(np.flatnonzero(rows >= 0))
        sources = np.searchsorted(ends, rows[order], side="right")
        of_each_file = order[np.unique(sources, return_index=True)[1]]
        drawn = np.unique(np.concatenate([order[:check], of_each_file]))
        now = checked.encode([texts.texts[row] for row in drawn], texts.role)
    except MismatchError as error:
        raise DataError(
            f"{encoder.address} changed while kept vectors were compared ({error}); run again."
        ) from error
    far = distances(now, vectors[rows[drawn]])
    wrong = int((~(far <= SAME)).sum())
    if wrong:
        row = int(drawn[far.argmax()])
        path = files[int(np.searchsorted(ends, rows[row], side="right"))].path
        raise DataError(
            f"{wrong} of {len(drawn)} kept vectors are not what {encoder.address} gives now: that "
            f"of the id {texts.ids[row].as_py()!r} in {path} differs by {far.max():.2g} of its "
            f"length, and {SAME} is allowed. The model was replaced, or texts were changed; take "
            "the rows of changed texts out of the kept files."
        )
    absent = np.flatnonzero(rows < 0)
    counts = {
        "texts": len(rows),
        "kept": len(rows) - len(absent),
        "to_encode": len(absent),
        "text_bytes": sum(len(texts.texts[row].encode()) for row in absent),
        "unknown_ids": unknown_ids,
        "repeated": repeated,
        "checked": len(drawn),
    }
    return MigrationRest(rows, vectors, record, counts)


def _read_kept(
    files: Sequence[EmbeddingFile], texts: Texts, dim: int
) -> tuple[npt.NDArray[np.int64], Vectors, list[int], int, int]:
    """Return the rows and vectors of a `MigrationRest`, the end of each file's vectors, and the
    numbers of unknown and of repeated ids."""
    rows = np.full(len(texts.texts), -1)
    vectors = np.empty((sum(file.rows for file in files), dim), np.float32)
    size = unknown_ids = repeated = 0
    ends = []
    for file in files:
        ids, known = file.ids(), texts.ids
        if ids.type != known.type:
            ids, known = ids.cast(pa.string()), known.cast(pa.string())
        refuse_repeats(ids, str(file.path))
        refuse_other_form(ids, known, str(file.path), "the texts")
        places = pc.fill_null(pc.index_in(ids, value_set=known), -1).to_numpy().astype(np.int64)
        unknown_ids += int((places < 0).sum())
        block = np.concatenate([part.float().numpy() for _, part in file.blocks()])
        block, places = block[places >= 0], places[places >= 0]
        again = rows[places] >= 0
        if again.any():
            far = distances(block[again], vectors[rows[places[again]]])
            if far.max() > SAME:
                twice = texts.ids[int(places[again][far.argmax()])].as_py()
                raise DataError(
                    f"{file.path} and a file before it have different vectors of the id {twice!r}; "
                    "one is of another text: leave that file out."
                )
            repeated += int(again.sum())
            block, places = block[~again], places[~again]
        end = size + len(places)
        rows[places] = np.arange(size, end)
        vectors[size:end] = block
        size = end
        ends.append(end)
    if not size:
        raise DataError(
            f"None of the {unknown_ids} kept ids is among the {len(rows)} texts, whose ids are "
            f"such as {texts.ids[0].as_py()!r}, and theirs such as {files[0].ids()[0].as_py()!r}; "
            "give the files of these texts."
        )
    return rows, vectors[:size], ends, unknown_ids, repeated


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the distinct files, with folders replaced by their Parquet files in order."""
    files = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} is not there; a service writes its --kept from time to time.")
        inside = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path} has no Parquet files; give another folder, or a file.")
        files += inside
    if not files:
        raise DataError("No kept vectors were given; to encode all texts, use encode_file.")
    return list({path.resolve(): path for path in files}.values())


def _refuse_others(files: Sequence[EmbeddingFile], encoder: TextEncoder) -> None:
    """Refuse files of another encoder. Raises: DataError."""
    # Files mostly share one record, whose canaries need encoding only once.
    reasons: dict[str, str | None] = {}
    for file in files:
        text = file.provenance.get(TEXT_ENCODER)
        if text is None:
            raise DataError(f"{file.path} has no record of its encoder; leave it out.")
        if text not in reasons:
            reasons[text] = parse_record(text, str(file.path)).mismatch(encoder)
        why = reasons[text]
        if file.dim != encoder.dim:
            why = f"it has vectors of {file.dim} dims, and {encoder.address} gives {encoder.dim}"
        if why is not None:
            made = f"{file.path} was not made by {encoder.address} as it is now"
            raise DataError(f"{made} ({why}); leave it out, or name its encoder.")
