"""Make the sidecar of a version, of its stored vectors and a file of the version before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage, side_of
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar, marks_of
from evergram.stores.store import Floats
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
# The backward transform's error on other objects may be this many times the error on those that the
# lineage can compare.
WORSE = 1.2
# So many objects must be there to compare, if there are others.
LEAST = 20
# A larger share of objects that codes read worse than the backward transform is logged as a
# warning.
MANY = 0.05


def make_sidecar(
    lineage: Lineage,
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
        size: bytes for each vector. error: the most that the relative error may be, which
            chooses the bytes; give one of the two. Of objects with more than `SAMPLE` coordinates
            in all, a sample of this size chooses, and a larger error over all objects is logged as
            a warning.
        progress: called with objects encoded and objects in all.
    Raises: LineageError: there is no such version or side, its backward transform is not affine, or
        `old` is not of the version before. DataError: the sizes are not one, or not allowed; or no
        object is in both files.
    """
    if (size is None) == (error is None):
        raise DataError("A sidecar has a number of bytes or an error; give one of the two.")
    number, target = _checked_versions(lineage, version)
    side = side_of(lineage.manifest(number).embeddings, str(lineage), side)
    if not lineage.chain.is_affine(number, target):
        raise LineageError(
            f"The backward transform from version {number} is not affine, and a sidecar needs an "
            "affine one."
        )
    stored, is_stored = open_embeddings(lineage.stored(side, number)), old is None
    old = _old_file(lineage, old, target, side)
    pairing = Pairing(old, stored)
    weight, offset = lineage.chain.affine(number, target)
    shift = offset if bool(offset.any()) else None
    before, after = _sampled(pairing, old.dim)
    if size is not None:
        sidecar = Sidecar.fit(weight, shift, after, before, size)
    else:
        assert error is not None
        if progress is not None:
            progress(0, len(pairing))  # the bytes for an error take a while to be found
        sidecar = Sidecar.fit_for_error(weight, shift, after, before, error)
    encoded = _encoded(pairing, sidecar, progress)
    if not is_stored:
        kept = lineage.canaries(target).get(side, (pa.array([], pa.string()), None))[0]
        compared = pc.is_in(pairing.ids.cast(pa.string()), value_set=kept.cast(pa.string()))
        _refuse_mixed_up(encoded.distances, compared.to_numpy(zero_copy_only=False), str(old.path))
    _warn(sidecar, encoded, error)
    return VersionSidecar(
        number,
        target,
        side,
        (lineage.manifest(number).fingerprint, lineage.manifest(target).fingerprint),
        sidecar,
        encoded.error,
        encoded.way_back_error,
        encoded.worse,
        pairing.ids.cast(stored.ids().type),
        encoded.codes,
        encoded.marks,
        encoded.old_marks,
    )


def _old_file(lineage: Lineage, old: EmbeddingFile | None, target: int, side: str) -> EmbeddingFile:
    """Return the vectors of the version before. Raises: LineageError: as `make_sidecar`."""
    if old is not None:
        lineage.check_fingerprint(old.fingerprint, target, str(old.path))
        _refuse_another(old, lineage, target, side)
        return old
    if target not in lineage.versions_with_embeddings:
        raise LineageError(
            f"The vectors of version {target} are not stored in {lineage} any more; give the file "
            "of them (--old)."
        )
    return open_embeddings(lineage.stored(side, target))


def _warn(sidecar: Sidecar, encoded: _Encoded, error: float | None) -> None:
    if error is not None and not sidecar.size:
        log.warning(
            "The backward transform alone leaves a relative error of %.3g, and %g may be left: the "
            "sidecar has no bytes, and readers need none.",
            *(sidecar.relative_error, error),
        )
    if error is not None and encoded.error > error:
        log.warning(
            "Over all objects the relative error is %.3g, and %g was asked for: a sample chose the "
            "bytes. Ask for a little less.",
            *(encoded.error, error),
        )
    if encoded.worse > MANY:
        log.warning(
            "%.0f %% of the objects are read worse with codes than by the backward transform "
            "alone. The bits go to where most of the error is, such as to a few long vectors: "
            "scale vectors to one length, or give more bytes.",
            100 * encoded.worse,
        )


@dataclass(frozen=True)
class _Encoded:
    """The codes and marks of all objects, and the errors of reading them."""

    error: float
    way_back_error: float
    worse: float
    codes: npt.NDArray[np.uint8]
    marks: Floats
    old_marks: Floats
    distances: npt.NDArray[np.float64]


def _encoded(pairing: Pairing, sidecar: Sidecar, progress: Progress | None) -> _Encoded:
    codes, marks, old_marks, lefts, alones, lengths = [], [], [], [], [], []
    done = 0
    for past, present in _floats(pairing):
        codes.append(sidecar.encode(present, past))
        read = sidecar.read(present, codes[-1])
        back = sidecar.way_back(present)
        lefts.append((read.double() - past).norm(dim=1))
        alones.append((back - past).norm(dim=1))
        lengths.append(past.double().norm(dim=1))
        marks.append(marks_of(present.numpy()))
        old_marks.append(marks_of(past.numpy()))
        done += len(past)
        if progress is not None:
            progress(done, len(pairing))
    left, alone, length = (torch.cat(parts) for parts in (lefts, alones, lengths))
    # By more than rounding to float16 would add.
    worse = (left > alone + SAME * length).double().mean()
    return _Encoded(
        float(left.norm() / length.norm()),
        float(alone.norm() / length.norm()),
        float(worse),
        torch.cat(codes).numpy(),
        np.concatenate(marks),
        np.concatenate(old_marks),
        (alone / torch.where(length > 0, length, 1.0)).numpy(),
    )


def _refuse_mixed_up(
    distances: npt.NDArray[np.float64], compared: npt.NDArray[np.bool_], path: str
) -> None:
    """Raises: LineageError: the backward transform is much worse on the other objects than on those
    whose old vectors were compared, or there are too few of these to tell."""
    if compared.all():
        return
    if compared.sum() < LEAST:
        raise LineageError(
            f"{path} has {compared.sum()} of the objects whose vectors the lineage keeps to "
            f"compare, and {LEAST} are needed to tell whether the others are right; give the whole "
            "file."
        )
    # A few objects far off, such as short vectors, must not hide the others.
    near = np.minimum(distances, 2.0)
    right, rest = near[compared].mean(), near[~compared].mean()
    if rest > WORSE * right + SAME:
        raise LineageError(
            f"The backward transform has a mean relative error of {rest:.3f} on {path}, and of "
            f"{right:.3f} on those of its objects whose vectors the lineage keeps to compare: the "
            "others are other vectors, or under other ids."
        )


def _checked_versions(lineage: Lineage, version: int | None) -> tuple[int, int]:
    """Return the version, and the one before it that was not withdrawn."""
    if not lineage.versions:
        raise LineageError(f"{lineage} has no versions.")
    number = lineage.newest if version is None else lineage.resolve(version)
    before = [m.version for m in lineage.versions if m.version < number]
    if not before:
        raise LineageError(f"Version {number} of {lineage} is its first, and needs no sidecar.")
    return number, max(before)


def _refuse_another(old: EmbeddingFile, lineage: Lineage, version: int, side: str) -> None:
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
            "the lineage keeps to compare; give the whole file, and where it has no ids, these in "
            "a FILE.ids.txt beside it."
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
