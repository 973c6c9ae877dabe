"""Compare a map's error with the error of the same map on shuffled pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from evergram.compatibility.closed_forms import SecondMoments

ROUNDING = 1e-12  # a variance below this share of the mean square is rounding error
# A map is better than chance if its error is at most this share of its error on shuffled pairs, and
# at least this many standard deviations below it. Constant vectors give 1 and 0. Random vectors of
# few objects can pass the first limit by luck, but not the second: of 43,000 fits with 20 to 60
# held-out objects of 1 to 16 dims, none did.
MOST_OF_CHANCE = 0.95
LEAST_DEVIATIONS = 5.0


@dataclass(frozen=True)
class Chance:
    """A map's error compared with its error on shuffled pairs of held-out objects.

    Shuffled means that each mapped vector is compared with the old vectors of all other objects."""

    relative_error: float  # √(E‖δ‖² / E‖z_old‖²) on shuffled pairs
    # The map's error on true pairs divided by that. It is 1 for constant vectors and close to 1 for
    # random ones.
    ratio: float
    # How much smaller the error on true pairs is, in standard deviations over all permutations of
    # the objects.
    deviations: float

    @property
    def is_beaten(self) -> bool:
        """True if the map is better than chance; False if this could not be measured."""
        return self.ratio <= MOST_OF_CHANCE and self.deviations >= LEAST_DEVIATIONS


def compared_with_chance(
    held: SecondMoments,
    weight: Tensor,
    offset: Tensor | None = None,
    objects: int | None = None,
) -> Chance:
    """Return a map's `Chance`, computed from the moments of held-out pairs alone.

    Over random permutations of n objects, the mean of ⟨W z_new, z_old⟩ has variance
    tr(W C_new Wᵀ C_old) / (n − 1), with C the covariances.

    Args:
        weight: W [D_old, D_new].
        offset: b [D_old].
        objects: n, the number of distinct rows; None if all rows are distinct.
    """
    weight = weight.detach().double().cpu()
    new, cross, old = held.second(centred=True)
    mapped = weight @ new @ weight.T
    mean_mapped = weight @ held.mean_new
    if offset is not None:
        mean_mapped = mean_mapped + offset.detach().double().cpu()
    shift = mean_mapped - held.mean_old
    true_error, count = held.error(weight, offset), held.count if objects is None else objects
    any_error = float(mapped.trace() + old.trace() + shift @ shift)
    if count < 2 or any_error <= 0:
        return Chance(math.nan, math.nan, 0.0)
    # `any_error` is the mean over all n² pairs, of which n are true.
    wrong_error = (count * any_error - true_error) / (count - 1)
    agreement = float((weight * cross).sum())
    variance = float((mapped * old).sum()) / (count - 1)
    varies = float(mapped.trace()) > ROUNDING * float(mapped.trace() + mean_mapped @ mean_mapped)
    varies = varies and float(old.trace()) > ROUNDING * held.power and variance > 0
    deviations = agreement / math.sqrt(variance) if varies else 0.0
    relative = math.sqrt(wrong_error / held.power) if held.power else math.nan
    return Chance(relative, math.sqrt(true_error / wrong_error), deviations)
