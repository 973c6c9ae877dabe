"""Lineages of vector files: check the old file, import the first one, transform a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor

from evergram.errors import DataError, LineageError, ShapeError
from evergram.ids import refuse_repeats
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.lineage import Lineage
from evergram.lineage.publication import with_id_type
from evergram.texts.record import TextEncoderRecord, parse_record
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import (
    TEXT_ENCODER,
    EmbeddingFile,
    Pairing,
    ahead,
    check_writable,
    companion,
    open_embeddings,
    provenance_of,
    write_vectors,
)

# The only side of a lineage of files.
SIDE = "object"
# Largest distance between two equal vectors, relative to their length.
SAME = 1e-5
QUIET = Progress(quiet=True)
# An id that can be a row number.
NUMBER = re.compile(r"0|[1-9][0-9]*")


def checked_past(old: EmbeddingFile | int, new: EmbeddingFile, lineage: Lineage) -> EmbeddingFile:
    """Return the file of old vectors, which must be the newest version's (or `old` its number)."""
    known = None if new.fingerprint is None else lineage.version_of(new.fingerprint)
    if known is not None:
        what = f"holds vectors of version {known} of {lineage}, as its fingerprint says"
        raise LineageError(f"{new.path} {what}; give the new model's vectors.")
    past = past_file(old, lineage)
    newest = lineage.manifest(lineage.newest) if lineage.versions else None
    encoder = past.provenance.get(TEXT_ENCODER) if newest is None else newest.text_encoder
    if encoder is not None and TEXT_ENCODER not in new.provenance:
        raise LineageError(
            f"{new.path} does not say which encoder made it, as the old vectors do, so "
            "strings could not be encoded. Make the file by 'evergram vectors encode'."
        )
    advice = _by_companion(past)
    if isinstance(old, int):
        advice = "begin a lineage whose ids are given, in a file FILE.ids.txt beside its vectors"
    elif newest is not None:
        _refuse_another(past, lineage)
    _refuse_row_numbers(past, new, advice)
    _refuse_row_numbers(new, past, _by_companion(new))
    if newest is not None:
        lineage.check_ids({SIDE: new.ids()})
    else:
        with_id_type(new.ids(), past.ids().type, SIDE, str(past.path))
    return past


def past_file(old: EmbeddingFile | int, lineage: Lineage) -> EmbeddingFile:
    """Return the file of old vectors; for a version number, the file of its stored vectors."""
    if not isinstance(old, int):
        return old
    if not lineage.versions or old != lineage.newest:
        newest = lineage.newest if lineage.versions else "it has none yet"
        todo = f"give the newest ({newest}), or the file of its vectors"
        raise LineageError(f"Version {old} is not the newest of {lineage}; {todo}.")
    return _stored(lineage)


def _refuse_another(old: EmbeddingFile, lineage: Lineage) -> None:
    """Raises: LineageError: `old` does not contain the newest version's vectors."""
    lineage.check_fingerprint(old.fingerprint, lineage.newest, str(old.path))
    stored = _stored(lineage)
    what = f"{old.path} is not what version {lineage.newest} of {lineage} is"
    advice = f"give {lineage.newest} in its place to go on from the stored vectors"
    if stored.dim != old.dim:
        raise LineageError(f"{what}: its dim is {old.dim}, not {stored.dim}; {advice}.")
    _refuse_row_numbers(old, stored, _by_companion(old))
    pairing = Pairing(stored, old)
    if pairing.only_new > len(pairing):
        raise LineageError(
            f"{what}, as far as can be seen: that version has {len(pairing)} of its {old.rows} "
            f"objects, and the other vectors cannot be compared; {advice}."
        )
    start = 0
    for ours, theirs in ahead(pairing.blocks()):
        far = (ours - theirs).norm(dim=1) > SAME * ours.norm(dim=1)
        if bool(far.any()):
            id_ = pairing.ids[start + int(far.nonzero()[0])].as_py()
            raise LineageError(f"{what}: the vector of id {id_!r} is another; {advice}.")
        start += len(ours)


def _refuse_row_numbers(file: EmbeddingFile, other: EmbeddingFile, advice: str) -> None:
    """Raises: DataError: `file` has no ids, and those of `other` are not row numbers, so that
    pairing by row number would pair different objects."""
    if file.has_ids or not other.has_ids:
        return
    ids = other.ids().cast(pa.string())
    if ids.equals(pa.array(range(len(ids))).cast(pa.string())):
        return
    own = f"{other.path} has ids of its own, such as {ids[0].as_py()!r}"
    raise DataError(f"{file.path} has no ids, and {own}; {advice}.")


def _by_companion(file: EmbeddingFile) -> str:
    return f"write its ids, one a line, to {companion(file.path)}"


def refuse_unnamed_rows(file: EmbeddingFile, lineage: Lineage, version: int) -> None:
    """Raises: DataError: `file` has no ids, and its version has ids other than row numbers."""
    if file.has_ids:
        return
    foreign = [
        [i for i in ids.to_pylist() if not (NUMBER.fullmatch(i) and int(i) < file.rows)]
        for ids, _ in lineage.canaries(version).values()
    ]
    if foreign and all(foreign):
        own = f"version {version} of {lineage} has ids of its own, such as {foreign[0][0]!r}"
        todo = f"{_by_companion(file)}, or write an .npy, which has none either"
        raise DataError(f"{file.path} has no ids, and {own}; {todo}.")


def _stored(lineage: Lineage) -> EmbeddingFile:
    """Return the file of the newest version's vectors."""
    newest = lineage.manifest(lineage.newest)
    sides = list(newest.embeddings)
    if sides != [SIDE]:
        what = f"{lineage} has the sides {' and '.join(sides)}, of a model that was trained"
        raise LineageError(f"{what}; a file of vectors can follow another file only.")
    file = open_embeddings(lineage.stored(SIDE, lineage.newest))
    settings = newest.recipe.get("align") or newest.recipe.get("import") or {}
    file.has_ids = bool(settings.get("has_ids", True))
    return file


def facts_of(file: EmbeddingFile) -> dict[str, Any]:
    """Return what a version records about its source file, as JSON."""
    return {"has_ids": file.has_ids, "fingerprint": file.fingerprint}


def first_version(
    file: EmbeddingFile,
    recipe: Mapping[str, Any],
    progress: Progress = QUIET,
    canaries: pa.Array | None = None,
) -> Artefact:
    """Return version 0 of a lineage of files."""

    def blocks() -> Iterator[Block]:
        with progress.task("vectors", file.rows) as bar:
            for ids, vectors in file.blocks():
                yield ids, vectors
                bar.advance(len(ids), len(ids))

    return Artefact(
        dim=file.dim,
        embeddings={SIDE: blocks},
        transform=None,
        metrics={"version": 0, "dim": file.dim, "metrics": {"model": {}}},
        recipe=recipe,
        canaries=None if canaries is None else {SIDE: canaries},
        text_encoder=text_encoder_of(file),
    )


def text_encoder_of(file: EmbeddingFile) -> TextEncoderRecord | None:
    """Return the encoder that made a file from texts; None if not recorded."""
    record = file.provenance.get(TEXT_ENCODER)
    return None if record is None else parse_record(record, str(file.path))


def open_or_create(place: str | Path, name: str | None = None) -> Lineage:
    """Open the lineage at a place, or create one, named "embeddings" by default."""
    if not Lineage.exists(place):
        return Lineage.create(place, "embeddings" if name is None else name)
    lineage = Lineage.open(place)
    if name not in (None, lineage.name):
        raise LineageError(f"{place} has the name {lineage.name} already; leave --name out.")
    return lineage


def import_embeddings(
    file: EmbeddingFile, lineage: Lineage, *, progress: Progress = QUIET
) -> dict[str, Any]:
    """Publish `file` as version 0 of an empty lineage; return a JSON summary. `align` adds the
    next version.

    Raises: LineageError: the lineage has versions. DataError: a repeated id or invalid vector.
    """
    if lineage.versions:
        raise LineageError(f"{lineage} has versions already; 'evergram vectors align' adds one.")
    refuse_repeats(file.ids(), str(file.path))
    recipe = {"import": {"file": str(file.path), **facts_of(file)}}
    number = lineage.publish(first_version(file, recipe, progress))
    facts: dict[str, Any] = {"version": number, "rows": file.rows, "dim": file.dim}
    return facts | {"fingerprint": lineage.manifest(number).fingerprint}


def transform_file(
    file: EmbeddingFile,
    lineage: Lineage,
    target: int | str,
    out: Path,
    *,
    source: int | str | None = None,
    progress: Progress = QUIET,
    overwrite: bool = False,
) -> int:
    """Write `file`, vectors of version `source` (default: production), as version `target`.

    A later target uses the forward maps, which are approximate. Ids and their order do not
    change. Works in constant memory.

    Args:
        out: its suffix chooses the format.
        overwrite: replace an existing file.
    Returns: rows written. The file records the fingerprints of `target` and of `source`.
    Raises: UnknownVersionError. ShapeError: the file's dim differs from that of `source`.
        LineageError: the file has another version's fingerprint, or there is no forward map.
        DataError: a vector is invalid or overflows as `target`; `out` exists or cannot be written;
        or the file has no ids, and `out` would show row numbers as the version's ids.
    """
    version, wanted = lineage.resolve(source), lineage.resolve(target)
    lineage.check_fingerprint(file.fingerprint, version, str(file.path))
    if lineage.chain.dim(version) != file.dim:
        has = f"version {version} of {lineage} has dim {lineage.chain.dim(version)}"
        raise ShapeError(f"{file.path} has dim {file.dim}; {has}. Name its version with --from.")
    apply = _reading_of(lineage, version, wanted)
    named = out.suffix.lower() != ".npy" or file.has_ids
    if named:
        refuse_unnamed_rows(file, lineage, version)
    check_writable(out, overwrite=overwrite)
    with progress.task(f"as version {wanted}", file.rows) as bar:

        def counted() -> Iterator[Block]:
            for ids, vectors in ahead(file.read_as(apply, wanted, ahead(file.blocks()), 0)):
                yield ids, vectors
                bar.advance(len(ids), len(ids))

        fingerprints = (lineage.manifest(n).fingerprint for n in (wanted, version))
        return write_vectors(
            out, counted(), provenance_of(*fingerprints), overwrite=overwrite, named=named
        )


def _reading_of(lineage: Lineage, source: int, target: int) -> Callable[[Tensor], Tensor]:
    """Return a function from vectors [n, D_source] to [n, D_target]."""
    if source >= target:
        return partial(lineage.chain.apply, source=source, target=target)
    parts = lineage.forward(source, target)
    if parts is None:
        what = f"Version {source} cannot be read as the later version {target}"
        raise LineageError(f"{what}: no forward map was published between them.")
    weight, offset = parts
    return lambda vectors: (vectors.double() @ weight.T + offset).to(vectors.dtype)
