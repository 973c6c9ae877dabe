"""Compare a map's error with that of the same map on mixed-up objects."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from evergram.compatibility.closed_forms import SecondMoments

# A spread below this share of the mean square is rounding.
ROUNDING = 1e-12
# A map is better than chance if its error is at most this share of what the same map errs by with
# the objects mixed up, and is below that by so many standard deviations. Constant vectors have 1
# and 0. Random vectors of few objects come below the share by luck, but not by five deviations: of
# 43,000 fits to 20 to 60 held-out objects of 1 to 16 dims, none did.
MOST_OF_CHANCE = 0.95
LEAST_DEVIATIONS = 5.0


@dataclass(frozen=True)
class Chance:
    """A map's error beside that of the same map with the held-out objects mixed up.

    Mixed up, each mapped vector is compared with the old vectors of all other objects.

    Args:
        relative_error: √(E‖δ‖² / E‖z_old‖²) with the objects mixed up.
        ratio: the map's own error over that. Of constant vectors it is 1, of random ones near it.
        deviations: by how many standard deviations the map's own error is smaller, over all
            permutations of the objects.
    """

    relative_error: float
    ratio: float
    deviations: float

    @property
    def is_beaten(self) -> bool:
        """True if the map is better than chance; False if that could not be measured."""
        return self.ratio <= MOST_OF_CHANCE and self.deviations >= LEAST_DEVIATIONS


def beside_chance(
    held: SecondMoments,
    weight: Tensor,
    offset: Tensor | None = None,
    objects: int | None = None,
) -> Chance:
    """Return a map's `Chance`, from the moments of held-out pairs alone.

    The mean of ⟨W z_new, z_old⟩ over a permutation of n objects has the variance
    tr(W C_new Wᵀ C_old) / (n − 1), both covariances about their means.

    Args:
        weight: W [D_old, D_new].
        offset: b [D_old].
        objects: n, where rows repeat: how many of them are different. None is all.
    """
    weight = weight.detach().double().cpu()
    new, cross, old = held.second(centred=True)
    mapped = weight @ new @ weight.T
    middle = weight @ held.mean_new
    if offset is not None:
        middle = middle + offset.detach().double().cpu()
    shift = middle - held.mean_old
    own, count = held.error(weight, offset), held.count if objects is None else objects
    any_pair = float(mapped.trace() + old.trace() + shift @ shift)
    if count < 2 or any_pair <= 0:
        return Chance(math.nan, math.nan, 0.0)
    # Of all pairs, one in n is right.
    wrong = (count * any_pair - own) / (count - 1)
    agreement = float((weight * cross).sum())
    variance = float((mapped * old).sum()) / (count - 1)
    spread = float(mapped.trace()) > ROUNDING * float(mapped.trace() + middle @ middle)
    spread = spread and float(old.trace()) > ROUNDING * held.power and variance > 0
    deviations = agreement / math.sqrt(variance) if spread else 0.0
    relative = math.sqrt(wrong / held.power) if held.power else math.nan
    return Chance(relative, math.sqrt(own / wrong), deviations)
