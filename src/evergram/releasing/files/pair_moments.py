"""Common objects of two files: what each is for, and their moments from one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.closed_form_fit import pairs_needed
from evergram.compatibility.degenerate import LengthCount
from evergram.compatibility.row_groups import Groups, pair_groups, vector_hashes
from evergram.compatibility.second_moments import SecondMoments
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError
from evergram.evaluation.version_distance import VectorPairs
from evergram.lineage.canary_check import id_hash
from evergram.training.progress import Progress
from evergram.vector_files.pairing import Pairing, ahead

__all__ = [
    "Groups",
    "id_hashes",
    "pair_groups",
    "refuse_few",
    "sampled_rows",
]

# Queries whose neighbours are looked up, and the catalogue that they are looked up in.
QUERIES, CATALOGUE = 1000, 20_000


def id_hashes(ids: pa.Array, size: int = 1 << 20) -> Tensor:
    """Return `id_hash` of many ids, a part at a time: Python's strings are large."""
    parts = range(0, len(ids), size)
    return torch.cat([id_hash(Vocabulary(ids.slice(start, size))) for start in parts])


def refuse_few(
    groups: Groups,
    dims: tuple[int, int],
    kind: str,
    rank: int,
    *,
    allow_small: bool = False,
    vectors: Tensor | None = None,
) -> bool:
    """Refuse too few pairs to fit a transform, or to measure its error on.

    Args:
        dims: old and new.
        allow_small: go on with few; nothing can be done with next to none.
        vectors: a hash of each new vector, int64 [N]: objects that share one then count once. None
            before the files are read.
    Returns: whether they are too few, and were allowed.
    Raises: DataError: with what could be done.
    """
    keys = torch.arange(len(groups.held)) if vectors is None else vectors
    held, fitted = (len(np.unique(keys[rows].numpy())) for rows in (groups.held, ~groups.held))
    what = "common objects" if vectors is None else "different new vectors of common objects"
    needed = pairs_needed(kind, *dims, rank)
    if fitted >= needed and held >= LEAST_OBJECTS and bool(groups.chosen.any()):
        return False
    some = all(bool(rows.any()) for rows in (groups.held, groups.chosen, groups.seen))
    if some and allow_small:
        return True
    option = ", or go on with so few by --allow-small-overlap" if some else ""
    if fitted < needed:
        raise DataError(
            f"{fitted} {what} are there to fit to ({held} more are held out), and a "
            f"{kind} transform from {dims[1]} to {dims[0]} dims needs {needed}; "
            f"give files with more objects in common{_instead(fitted, dims)}{option}."
        )
    again = "" if vectors is None else "leave out objects that are there under another id, too, or "
    raise DataError(
        f"Only {held} of {held + fitted} {what} are held out to measure on, and "
        f"{LEAST_OBJECTS} are needed; {again}raise --held-out{option}."
    )


def _instead(fitted: int, dims: tuple[int, int]) -> str:
    """Return, as the end of a sentence, the transforms that this many pairs are enough for."""
    ranks = [r for r in range(1, min(dims)) if pairs_needed("low_rank", *dims, r) <= fitted]
    advice = [f"--transform low_rank --rank {ranks[-1]}"] if ranks else []
    advice += ["--transform orthogonal"] if pairs_needed("orthogonal", *dims) <= fitted else []
    return f", or use {' or '.join(advice)}" if advice else ""


def sampled_rows(hashes: Tensor, held: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return held-out rows to look up, and other rows, held out or not, to look among."""
    order = torch.argsort(hashes, stable=True)
    queries = order[held[order]][:QUERIES]
    drawn = torch.randperm(len(hashes), generator=torch.Generator().manual_seed(seed))
    return queries, drawn[~torch.isin(drawn, queries)][:CATALOGUE]


@dataclass(frozen=True)
class VectorSample:
    """Old and new vectors that are kept in memory, with their rows of the pairing."""

    rows: Tensor
    old: Tensor
    new: Tensor

    def take(self, rows: Tensor) -> VectorPairs:
        """Return the old and new vectors of some of the rows."""
        place = torch.searchsorted(self.rows, rows)
        return VectorPairs(self.old[place], self.new[place])


@dataclass(frozen=True)
class PairReading:
    """The result of one pass over two files.

    Args:
        seen, chosen, held: moments by group, see `Groups`.
        zeros: how many vectors of the old and of the new file have no length.
        hashes: of each row's new vector, int64 [N].
    """

    seen: SecondMoments
    chosen: SecondMoments
    held: SecondMoments
    sample: VectorSample
    zeros: tuple[int, int]
    hashes: Tensor

    @property
    def whole(self) -> SecondMoments:
        """Moments of all pairs."""
        moments = SecondMoments(self.held.old_dim, self.held.new_dim)
        for part in (self.seen, self.chosen, self.held):
            moments.merge(part)
        return moments

    def apart(self, groups: Groups) -> Groups | None:
        """Return the groups to read the files with again, see `Groups.apart`; None if those that
        this reading was made with have no vector both fitted to and held out."""
        apart = groups.apart(self.hashes)
        return None if torch.equal(apart.held, groups.held) else apart


def read_pairs(
    pairing: Pairing,
    dims: tuple[int, int],
    groups: Groups,
    rows: Tensor,
    progress: Progress,
    together: Collectives = ALONE,
) -> PairReading:
    """Read both files once.

    Args:
        dims: of the old and of the new file.
        rows: of the pairing, whose vectors are kept.
        together: processes that each read the same pairs. Each multiplies some of the blocks, and
            has the moments of all; reading, which files allow from their front only, is no part of
            what is shared.
    """
    seen, chosen, held = (SecondMoments(*dims) for _ in range(3))
    parts = ((seen, groups.seen), (chosen, groups.chosen), (held, groups.held))
    wanted = torch.zeros(len(pairing), dtype=torch.bool)
    wanted[rows] = True
    kept: list[tuple[Tensor, Tensor]] = []
    hashes: list[Tensor] = []
    lengths = LengthCount(), LengthCount()
    start = 0
    with progress.task("pairs", len(pairing)) as bar:
        for number, pair in enumerate(ahead(pairing.blocks())):
            old, new = pair
            part = slice(start, start + len(old))
            if number % together.size == together.rank:
                for moments, mask in parts:
                    moments.add(old[mask[part]], new[mask[part]])
            kept.append((old[wanted[part]].float(), new[wanted[part]].float()))
            hashes.append(vector_hashes(new.double()))
            for count, vectors in zip(lengths, pair, strict=True):
                count.add(vectors)
            start += len(old)
            bar.advance(len(old), len(old))
    both = (torch.cat(side) for side in zip(*kept, strict=True))
    sample = VectorSample(wanted.nonzero().squeeze(1), *both)
    seen, chosen, held = (moments.summed(together) for moments in (seen, chosen, held))
    return PairReading(
        seen, chosen, held, sample, (lengths[0].zeros, lengths[1].zeros), torch.cat(hashes)
    )
