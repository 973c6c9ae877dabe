"""The one pass over two files: second moments by group, and the vectors of some objects."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.compatibility.second_moments import SecondMoments
from evergram.evaluation.map_quality import Pairs
from evergram.releasing.files.pair_split import Groups
from evergram.training.progress import Progress
from evergram.vector_files.pairing import Pairing
from evergram.vector_files.prefetch import ahead


@dataclass(frozen=True)
class Sample:
    """Vectors that are kept in memory: rows of the pairing and both vectors of each."""

    rows: Tensor
    old: Tensor
    new: Tensor

    def take(self, rows: Tensor) -> Pairs:
        """Old and new vectors of some of the rows."""
        place = torch.searchsorted(self.rows, rows)
        return Pairs(self.old[place], self.new[place])


@dataclass(frozen=True)
class PairReading:
    """What one pass has learnt.

    Args:
        seen, chosen, held: moments by group, see `Groups`.
        zeros: how many vectors of the old and of the new file have no length.
    """

    seen: SecondMoments
    chosen: SecondMoments
    held: SecondMoments
    sample: Sample
    zeros: tuple[int, int]

    @property
    def whole(self) -> SecondMoments:
        """Moments of all pairs."""
        found = SecondMoments(self.held.old_dim, self.held.new_dim)
        for part in (self.seen, self.chosen, self.held):
            found.merge(part)
        return found


def read_pairs(
    pairing: Pairing, dims: tuple[int, int], groups: Groups, rows: Tensor, progress: Progress
) -> PairReading:
    """Read both files once.

    Args:
        dims: of the old and of the new file.
        rows: of the pairing, whose vectors are kept.
    """
    seen, chosen, held = (SecondMoments(*dims) for _ in range(3))
    parts = ((seen, groups.seen), (chosen, groups.chosen), (held, groups.held))
    wanted = torch.zeros(len(pairing), dtype=torch.bool)
    wanted[rows] = True
    kept: list[tuple[Tensor, Tensor]] = []
    zeros = [0, 0]
    start = 0
    with progress.task("pairs", len(pairing)) as bar:
        for pair in ahead(pairing.blocks()):
            old, new = pair
            part = slice(start, start + len(old))
            for found, mask in parts:
                found.add(old[mask[part]], new[mask[part]])
            kept.append((old[wanted[part]].float(), new[wanted[part]].float()))
            zeros = [n + int((~v.any(1)).sum()) for n, v in zip(zeros, pair, strict=True)]
            start += len(old)
            bar.advance(len(old), len(old))
    both = (torch.cat(side) for side in zip(*kept, strict=True))
    sample = Sample(wanted.nonzero().squeeze(1), *both)
    return PairReading(seen, chosen, held, sample, (zeros[0], zeros[1]))
