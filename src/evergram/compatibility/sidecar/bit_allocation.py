"""Which coordinates get how many bits, so that a budget of bits leaves the least error."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.compatibility.sidecar.normal_levels import MOST_BITS, rounding_errors


def bit_order(variances: Tensor) -> Tensor:
    """Return the order in which bits are given away, int64 [8 D]: places in [D, 8], of the bits of
    each coordinate.

    With b bits, coordinate j leaves λ_j e(b), where e are the `rounding_errors`. Each bit goes
    where it takes the most away. As e is convex, the first B of them leave the least that any B
    bits can leave. It is the water-filling of rate-distortion theory, in whole bits. Of
    coordinates on a path (`trellis`) it is nearly so: what they leave of e(1) is a larger share.

    Args:
        variances: λ, [D], none below 0. A coordinate that is always 0 comes last.
    Source: Gersho and Gray, "Vector Quantization and Signal Compression", 1992, section 8.4.
    """
    taken = -rounding_errors().diff()
    gains = variances.double()[:, None] * taken
    return torch.sort(gains.flatten(), descending=True, stable=True).indices


def allocated(order: Tensor, bits: int) -> Tensor:
    """Return how many of the first `bits` each coordinate has, int64 [D], 0 to 8."""
    return torch.bincount(order[:bits] // MOST_BITS, minlength=len(order) // MOST_BITS)
