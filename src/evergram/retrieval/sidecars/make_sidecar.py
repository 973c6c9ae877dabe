"""Make the sidecar of a version, of its stored vectors and a file of the version before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.errors import DataError, LineageError
from evergram.lineage.read_only_lineage import ReadOnlyLineage
from evergram.retrieval.sidecars.marks import marks_of
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.vector_files.open_embeddings import EmbeddingFile, open_embeddings
from evergram.vector_files.pairing import Pairing

# Called with objects encoded and objects in all.
Progress = Callable[[int, int], None]
log: logging.Logger = logging.getLogger(__name__)
# Coordinates of the objects that directions and bits are chosen by.
SAMPLE = 20_000_000
# Two vectors are the same if they differ by no more than this share of their length: one that was
# rounded to float16 is.
SAME = 2e-3
# The way back's error over all objects may be so many times the one of those held out of its fit.
WORSE = 1.2
# A larger share of objects that codes read worse than the way back is logged as a warning.
MANY = 0.05


def make_sidecar(
    lineage: ReadOnlyLineage,
    old: EmbeddingFile | None = None,
    *,
    version: int | None = None,
    side: str | None = None,
    size: int | None = None,
    error: float | None = None,
    progress: Progress | None = None,
) -> VersionSidecar:
    """Return the sidecar from a version to the one before, of all objects that both have.

    Args:
        old: vectors of the version before; None takes those that the lineage still stores.
        version: v, whose vectors the lineage stores; the newest by default.
        side: of the lineage; may be left out if there is one.
        size: bytes beside each vector. error: the most that the relative error may be, which
            chooses the bytes; give one of the two. Of objects with more than `SAMPLE` coordinates
            in all, so many choose, and a larger error over all objects is logged as a warning.
        progress: called with objects encoded and objects in all.
    Raises: LineageError: there is no such version or side, its way back is not affine, or `old` is
        not of the version before. DataError: the sizes are not one, or not allowed; or no object is
        in both files.
    """
    if (size is None) == (error is None):
        raise DataError("A sidecar has a number of bytes or an error; give one of the two.")
    number, target = _checked_versions(lineage, version)
    side = _checked_side(lineage, number, side)
    if not lineage.chain.is_affine(number, target):
        raise LineageError(
            f"The way back from version {number} is not affine, and a sidecar is made for an "
            "affine one."
        )
    stored = open_embeddings(lineage.stored(side, number))
    if old is None:
        if target not in lineage.versions_with_embeddings:
            raise LineageError(
                f"The vectors of version {target} are not stored in {lineage} any more; give the "
                "file of them (--old)."
            )
        old = open_embeddings(lineage.stored(side, target))
    else:
        lineage.check_fingerprint(old.fingerprint, target, str(old.path))
        _refuse_another(old, lineage, target, side)
    pairing = Pairing(old, stored)
    weight, offset = lineage.chain.affine(number, target)
    shift = offset if bool(offset.any()) else None
    before, after = _sampled(pairing, old.dim)
    if size is not None:
        sidecar = Sidecar.fit(weight, shift, after, before, size)
    else:
        assert error is not None
        sidecar = Sidecar.fit_for_error(weight, shift, after, before, error)
    ids = pairing.ids.cast(stored.ids().type)
    codes, marks, old_marks, done = [], [], [], 0
    missing = alone = power = 0.0
    worse = 0
    for past, present in _floats(pairing):
        codes.append(sidecar.encode(present, past))
        read = sidecar.read(present, codes[-1])
        back = present.double() @ weight.T + offset
        left, without = (read.double() - past).square().sum(1), (back - past).square().sum(1)
        missing += float(left.sum())
        alone += float(without.sum())
        worse += int((left > without).sum())
        power += float(past.double().square().sum())
        marks.append(marks_of(present.numpy()))
        old_marks.append(marks_of(past.numpy()))
        done += len(past)
        if progress is not None:
            progress(done, len(pairing))
    way_back, own = (alone / power) ** 0.5, (missing / power) ** 0.5
    _refuse_worse(lineage, number, way_back, str(old.path))
    if error is not None and own > error:
        log.warning(
            "Over all objects the relative error is %.3g, and %g was asked for: a sample chose the "
            "bytes. Ask for a little less.",
            own,
            error,
        )
    if worse > MANY * len(pairing):
        log.warning(
            "%.0f %% of the objects are read worse with codes than by the way back alone: a few "
            "long vectors have most of the error, and so the bits. Scale vectors to one length, or "
            "give more bytes.",
            100 * worse / len(pairing),
        )
    return VersionSidecar(
        number,
        target,
        side,
        (lineage.manifest(number).fingerprint, lineage.manifest(target).fingerprint),
        sidecar,
        own,
        way_back,
        worse / len(pairing),
        ids,
        torch.cat(codes).numpy(),
        np.concatenate(marks),
        np.concatenate(old_marks),
    )


def _refuse_worse(lineage: ReadOnlyLineage, version: int, error: float, path: str) -> None:
    """Raises: LineageError: the way back is much worse on these vectors than it was published."""
    step = lineage.step_errors.get(version)
    if step is None or not step.is_known or not step.power > 0:
        return
    published = step.rms / step.power**0.5
    if error > WORSE * published + SAME:
        raise LineageError(
            f"The way back has a relative error of {error:.3f} on {path}, and {published:.3f} was "
            f"published for version {version}: these are other vectors, or under other ids."
        )


def _checked_versions(lineage: ReadOnlyLineage, version: int | None) -> tuple[int, int]:
    """Return the version, and the one before it that was not withdrawn."""
    if not lineage.versions:
        raise LineageError(f"{lineage} has no versions.")
    number = lineage.newest if version is None else lineage.resolve(version)
    before = [m.version for m in lineage.versions if m.version < number]
    if not before:
        raise LineageError(f"Version {number} of {lineage} is its first, and needs no sidecar.")
    return number, max(before)


def _checked_side(lineage: ReadOnlyLineage, version: int, side: str | None) -> str:
    sides = list(lineage.manifest(version).embeddings)
    if side is None and len(sides) == 1:
        return sides[0]
    if side not in sides:
        asked = "No side is named" if side is None else f"There is no side {side!r}"
        raise LineageError(f"{asked}; {lineage} has {' and '.join(sides)}.")
    return side


def _refuse_another(old: EmbeddingFile, lineage: ReadOnlyLineage, version: int, side: str) -> None:
    """Raises: LineageError: the file lacks the vectors that the lineage keeps of that version, or
    has others. DataError: as `EmbeddingFile.blocks`."""
    ids, kept = lineage.canaries(version).get(side, (pa.array([], pa.string()), torch.empty(0, 0)))
    what = f"{old.path} is not what version {version} of {lineage} is"
    dim = lineage.manifest(version).dim
    if old.dim != dim:
        raise LineageError(f"{what}: its dim is {old.dim}, not {dim}.")
    known = dict(zip(ids.to_pylist(), kept, strict=True))
    seen = 0
    for some, vectors in old.blocks():
        for row, text in enumerate(some.cast(pa.string()).to_pylist()):
            own = known.get(text)
            if own is None:
                continue
            seen += 1
            if float((vectors[row] - own).norm()) > SAME * float(own.norm()):
                raise LineageError(f"{what}: the vector of id {text!r} is another.")
    if not seen:
        raise LineageError(
            f"{what}, as far as can be seen: it has none of the {len(known)} objects whose vectors "
            "the lineage keeps to compare; give the whole file."
        )


def _floats(pairing: Pairing) -> Iterator[tuple[Tensor, Tensor]]:
    for past, present in pairing.blocks():
        yield past.float(), present.float().contiguous()


def _sampled(pairing: Pairing, dim: int) -> tuple[Tensor, Tensor]:
    """Return old and new vectors of objects that are drawn with a fixed seed: all, if their old
    vectors have no more than `SAMPLE` coordinates, and else at least four for each of one."""
    drawn = torch.randperm(len(pairing), generator=torch.Generator().manual_seed(0))
    chosen = torch.zeros(len(pairing), dtype=torch.bool)
    chosen[drawn[: max(SAMPLE // dim, 4 * dim)]] = True
    past, present, start = [], [], 0
    for one, two in _floats(pairing):
        part = chosen[start : start + len(one)]
        past.append(one[part])
        present.append(two[part])
        start += len(one)
    return torch.cat(past), torch.cat(present)
