"""Find the file that a new one is aligned to, and check it before its vectors are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, LineageError
from evergram.ids import refuse_repeats
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.lineage import Lineage
from evergram.lineage.publication import with_id_type
from evergram.texts.record import TextEncoderRecord, parse_record
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import (
    TEXT_ENCODER,
    EmbeddingFile,
    companion,
    open_embeddings,
    provenance_file,
)
from evergram.vector_files.pairing import Pairing, ahead

# The one side of a lineage that is made of files.
SIDE = "object"
# Two vectors are the same if they differ by no more than this share of their length.
SAME = 1e-5
QUIET = Progress(quiet=True)
# An id that may be the number of a row.
NUMBER = re.compile(r"0|[1-9][0-9]*")


def checked_past(old: EmbeddingFile | int, new: EmbeddingFile, lineage: Lineage) -> EmbeddingFile:
    """Return the file of old vectors, which are those of the newest version where there is one.

    Args:
        old: a file, or the number of the newest version, whose stored vectors are then read.
    Raises: LineageError: the old vectors are others than the newest version's, or the new ones are
        of a version there is already. DataError: only one of the files has ids, or the new ones are
        text where the old ones are integers.
    """
    _refuse_known(new, lineage)
    past = past_file(old, lineage)
    _refuse_without_encoder(past, new, lineage)
    if lineage.versions and not isinstance(old, int):
        _refuse_another(past, lineage)
    advice = _by_companion(past)
    if isinstance(old, int):
        advice = "begin a lineage whose ids are given, in a file FILE.ids.txt beside its vectors"
    _refuse_row_numbers(past, new, advice)
    _refuse_row_numbers(new, past, _by_companion(new))
    if lineage.versions:
        lineage.check_ids({SIDE: new.ids()})
    else:
        with_id_type(new.ids(), past.ids().type, SIDE, str(past.path))
    return past


def past_file(old: EmbeddingFile | int, lineage: Lineage) -> EmbeddingFile:
    """Return the file of old vectors; where a version was given, that of its stored ones.

    Raises: LineageError: the vectors of that version are not stored, or it was trained.
    """
    if not isinstance(old, int):
        return old
    if not lineage.versions or old != lineage.newest:
        if not lineage.versions:
            raise LineageError(
                f"{lineage} has no version {old}: it has none yet; give the file of its vectors."
            )
        raise LineageError(
            f"Version {old} is not the newest of {lineage}, to which new vectors are aligned; give "
            f"{lineage.newest}, or the file of its vectors."
        )
    return _stored(lineage)


def _refuse_known(new: EmbeddingFile, lineage: Lineage) -> None:
    """Raises: LineageError: the new file has the fingerprint of a version of the lineage."""
    known = None if new.fingerprint is None else lineage.version_of(new.fingerprint)
    if known is not None:
        beside = provenance_file(new.path)
        where = f"in {beside} " if beside.is_file() else ""
        raise LineageError(
            f"{new.path} holds vectors of version {known} of {lineage}, as its fingerprint "
            f"{where}says, and cannot be a new version; give the new model's vectors."
        )


def _refuse_without_encoder(past: EmbeddingFile, new: EmbeddingFile, lineage: Lineage) -> None:
    """Raises: LineageError: the old vectors are of an encoder of text that is known, and the new
    ones of none, so that the service could no longer encode strings."""
    known = TEXT_ENCODER in past.provenance
    if lineage.versions:
        known = lineage.manifest(lineage.newest).text_encoder is not None
    if known and TEXT_ENCODER not in new.provenance:
        raise LineageError(
            f"{new.path} does not say which encoder made it, and the old vectors do; strings could "
            "not be encoded at the new version. Make the file by 'evergram vectors encode'."
        )


def _refuse_another(old: EmbeddingFile, lineage: Lineage) -> None:
    """Raises: LineageError: the newest version's vectors are not those of `old`."""
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
            f"objects, and the other vectors cannot be compared with anything; {advice}, or give "
            "a file of which at least half is stored."
        )
    start = 0
    for ours, theirs in ahead(pairing.blocks()):
        far = (ours - theirs).norm(dim=1) > SAME * ours.norm(dim=1)
        if bool(far.any()):
            id_ = pairing.ids[start + int(far.nonzero()[0])].as_py()
            raise LineageError(f"{what}: the vector of id {id_!r} is another; {advice}.")
        start += len(ours)


def _refuse_row_numbers(file: EmbeddingFile, other: EmbeddingFile, advice: str) -> None:
    """Raises: DataError: `file` has no ids, and those of `other` are not the numbers of its rows:
    paired by the numbers of their rows, they would be other objects."""
    if file.has_ids or _are_row_numbers(other):
        return
    raise DataError(
        f"{file.path} has no ids, and {other.path} has ids of its own, such as "
        f"{other.ids()[0].as_py()!r}: the number of a row does not say which object it is; "
        f"{advice}."
    )


def _by_companion(file: EmbeddingFile) -> str:
    return f"write its ids, one a line, to {companion(file.path)}"


def _are_row_numbers(file: EmbeddingFile) -> bool:
    """Whether the ids are 0, 1, 2, … in order, as they are where a file has none."""
    if not file.has_ids:
        return True
    ids = file.ids().cast(pa.string())
    numbers = pa.array(range(len(ids))).cast(pa.string())
    return bool(pc.all(pc.equal(ids, numbers)).as_py())


def refuse_unnamed_rows(file: EmbeddingFile, lineage: Lineage, version: int) -> None:
    """Raises: DataError: `file` has no ids, and its version has ids other than row numbers."""
    if file.has_ids:
        return
    foreign = [
        [i for i in ids.to_pylist() if not (NUMBER.fullmatch(i) and int(i) < file.rows)]
        for ids, _ in lineage.canaries(version).values()
    ]
    if foreign and all(foreign):
        raise DataError(
            f"{file.path} has no ids, and version {version} of {lineage} has ids of its own, such "
            f"as {foreign[0][0]!r}: the number of a row does not say which object it is; "
            f"{_by_companion(file)}, or write an .npy, which has "
            "none either."
        )


def _stored(lineage: Lineage) -> EmbeddingFile:
    """The file of the newest version's vectors."""
    newest = lineage.manifest(lineage.newest)
    sides = list(newest.embeddings)
    if sides != [SIDE]:
        raise LineageError(
            f"{lineage} has the sides {' and '.join(sides)}, of a model that was trained; "
            "a file of vectors can follow another file only. Choose another folder."
        )
    file = open_embeddings(lineage.stored(SIDE, lineage.newest))
    settings = newest.recipe.get("align") or newest.recipe.get("import") or {}
    file.has_ids = bool(settings.get("has_ids", True))
    return file


def facts_of(file: EmbeddingFile) -> dict[str, Any]:
    """Return what a version records of the file that it is made from, as JSON."""
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
    """Return the encoder that made a file from texts; None if the file does not say.

    Raises: DataError: its record is damaged.
    """
    record = file.provenance.get(TEXT_ENCODER)
    return None if record is None else parse_record(record, str(file.path))


# Name of a new lineage, where none is chosen.
NAME = "embeddings"


def open_or_create(place: str | Path, name: str | None = None) -> Lineage:
    """Return the lineage at a place, created where there is none, with the name "embeddings" by
    default.

    Raises: LineageError: another name was given for a lineage that exists.
    """
    if not Lineage.exists(place):
        return Lineage.create(place, NAME if name is None else name)
    lineage = Lineage.open(place)
    if name not in (None, lineage.name):
        raise LineageError(
            f"{place} is a lineage already, with the name {lineage.name}; leave --name out."
        )
    return lineage


def import_embeddings(
    file: EmbeddingFile, lineage: Lineage, *, progress: Progress = QUIET
) -> dict[str, Any]:
    """Publish `file` as version 0 of a lineage without versions. `align` adds the next.

    Returns: JSON of what was published.
    Raises: LineageError: the lineage has versions already. DataError: an id is there twice, or a
        vector cannot be used.
    """
    if lineage.versions:
        raise LineageError(
            f"{lineage} has versions already; 'evergram vectors align' adds the next, with its "
            "transform."
        )
    refuse_repeats(file.ids(), str(file.path))
    number = lineage.publish(
        first_version(file, {"import": {"file": str(file.path), **facts_of(file)}}, progress)
    )
    return {
        "version": number,
        "rows": file.rows,
        "dim": file.dim,
        "fingerprint": lineage.manifest(number).fingerprint,
    }
