"""Read two files once: second moments by group, and the vectors of some objects."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.compatibility.degenerate import LengthCount
from evergram.compatibility.row_groups import vector_hashes
from evergram.compatibility.second_moments import SecondMoments
from evergram.evaluation.map_quality import VectorPairs
from evergram.releasing.files.pair_split import Groups
from evergram.training.progress import Progress
from evergram.vector_files.pairing import Pairing
from evergram.vector_files.prefetch import ahead


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
