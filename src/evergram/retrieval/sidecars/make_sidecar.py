"""Make the sidecar of a version, of its stored vectors and a file of the version before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.errors import DataError, LineageError
from evergram.lineage.read_only_lineage import ReadOnlyLineage
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.stores.rows import Rows, row_checks
from evergram.vector_files.open_embeddings import EmbeddingFile, open_embeddings
from evergram.vector_files.pairing import Pairing

# Called with objects encoded and objects in all.
Progress = Callable[[int, int], None]
# Objects that directions and bits are chosen by.
SAMPLE = 100_000
# Two vectors are the same if they differ by no more than this share of their length.
SAME = 1e-5


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
        old: vectors of version v − 1; None takes those that the lineage still stores.
        version: v, whose vectors the lineage stores; the newest by default.
        side: of the lineage; may be left out if there is one.
        size: bytes beside each vector. error: the most that the relative error may be, which
            chooses the bytes; over more than `SAMPLE` objects it is chosen by so many of them.
            Give one of them.
    Raises: LineageError: there is no such version or side, its way back is not affine, or `old` is
        not of version v − 1. DataError: the sizes are not one, or not allowed; or no object is in
        both files.
    """
    if (size is None) == (error is None):
        raise DataError("A sidecar has a number of bytes or an error; give one of the two.")
    number = _checked_version(lineage, version)
    side = _checked_side(lineage, number, side)
    if not lineage.chain.is_affine(number, number - 1):
        raise LineageError(
            f"The way back from version {number} is not affine, and a sidecar is made for an "
            "affine one."
        )
    stored = open_embeddings(lineage.stored(side, number))
    if old is None:
        old = open_embeddings(lineage.stored(side, number - 1))
    else:
        lineage.check_fingerprint(old.fingerprint, number - 1, str(old.path))
        _refuse_another(old, lineage, number - 1, side)
    pairing = Pairing(old, stored)
    weight, offset = lineage.chain.affine(number, number - 1)
    shift = offset if bool(offset.any()) else None
    before, after = _sampled(pairing)
    if size is not None:
        sidecar = Sidecar.fit(weight, shift, after, before, size)
    else:
        assert error is not None
        sidecar = Sidecar.fit_for_error(weight, shift, after, before, error)
    ids = pairing.ids.cast(stored.ids().type)
    codes, checks, done = [], [], 0
    missing = alone = power = 0.0
    for past, present in _floats(pairing):
        codes.append(sidecar.encode(present, past))
        read = sidecar.read(present, codes[-1])
        back = present.double() @ weight.T + offset
        missing += float((read - past).double().square().sum())
        alone += float((back - past).square().sum())
        power += float(past.double().square().sum())
        part = ids.slice(done, len(past))
        checks.append(row_checks(Rows(number, part, present.numpy())))
        done += len(past)
        if progress is not None:
            progress(done, len(pairing))
    return VersionSidecar(
        number,
        side,
        (lineage.manifest(number).fingerprint, lineage.manifest(number - 1).fingerprint),
        sidecar,
        (missing / power) ** 0.5,
        (alone / power) ** 0.5,
        ids,
        torch.cat(codes).numpy(),
        np.concatenate(checks),
    )


def _checked_version(lineage: ReadOnlyLineage, version: int | None) -> int:
    if not lineage.versions:
        raise LineageError(f"{lineage} has no versions.")
    number = lineage.newest if version is None else lineage.resolve(version)
    if not number:
        raise LineageError(f"Version 0 of {lineage} has none before it, and needs no sidecar.")
    return number


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


def _sampled(pairing: Pairing) -> tuple[Tensor, Tensor]:
    """Return old and new vectors of at most `SAMPLE` objects, drawn with a fixed seed."""
    drawn = torch.randperm(len(pairing), generator=torch.Generator().manual_seed(0))
    chosen = torch.zeros(len(pairing), dtype=torch.bool)
    chosen[drawn[:SAMPLE]] = True
    past, present, start = [], [], 0
    for one, two in _floats(pairing):
        part = chosen[start : start + len(one)]
        past.append(one[part])
        present.append(two[part])
        start += len(one)
    return torch.cat(past), torch.cat(present)
