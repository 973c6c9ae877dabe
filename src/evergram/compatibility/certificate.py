"""Bounds on the error of reading a version as an older one, without old models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.compatibility.chain import Chain
from evergram.errors import ShapeError

# Minimum number of objects for measuring a step's error. With n objects, the relative error of
# √E‖δ‖² is about c / (2 √n), where c is the standard deviation of ‖δ‖² over its mean. For errors in
# two directions, c = 1, so twenty objects give an accuracy of 1/9; more directions make c smaller.
LEAST_OBJECTS = 20


@dataclass(frozen=True)
class StepError:
    """The error δ_i = B_i(z_i) − z_{i-1} of one step, measured when version i was published."""

    sigma: Tensor  # float64 [D_{i-1}, D_{i-1}], Σ_i = E[δ_i δ_iᵀ]
    objects: int  # the number of objects in the mean
    power: float  # E‖z_{i-1}‖² over these objects, for relative errors; NaN for an identity step

    @classmethod
    def of(cls, transformed: Tensor, past: Tensor) -> StepError:
        """Measure the error of B_i(z_i) against z_{i-1}, both [N, D_{i-1}]. Raises: ShapeError:
        their shapes differ."""
        if transformed.shape != past.shape:
            raise ShapeError(
                f"Transformed embeddings are {list(transformed.shape)}, past ones "
                f"{list(past.shape)}; they must be of the same objects and dim."
            )
        number = max(1, len(past))
        delta = transformed.double() - past.double()
        power = float(past.double().square().sum()) / number
        return cls(delta.T @ delta / number, len(past), power)

    @property
    def rms(self) -> float:
        """√E‖δ_i‖²."""
        return math.sqrt(max(float(self.sigma.trace()), 0.0))

    @property
    def is_known(self) -> bool:
        """True if it was measured on enough objects, or the step is the identity."""
        if math.isnan(self.power):  # the identity, or vectors were not finite
            return not bool(self.sigma.any())
        return self.objects >= LEAST_OBJECTS and bool(self.sigma.isfinite().all())


@dataclass(frozen=True)
class Guarantee:
    """The certificate of reading version k as version j."""

    version: int  # j
    bound: float  # upper bound of √E‖δ_k^j‖², for objects like those of the Σ_i
    estimate: float  # √E‖δ_k^j‖² if the steps' errors are uncorrelated
    # Estimate and bound, divided by √E‖z_j‖².
    relative: float
    relative_bound: float
    amplification: float  # the largest singular value of W_k^j
    # √E‖W_{i-1}^j δ_i‖² of each step i (Eq. 9). Their sum is the bound; the sum of their squares is
    # the square of the estimate.
    terms: dict[int, float]


def certify(
    chain: Chain, errors: Mapping[int, StepError], source: int, target: int
) -> Guarantee | None:
    """Return the certificate of reading version `source` as version `target`; None if there are
    reasons in `uncertified`.

    √E‖δ_k^j‖² ≤ Σ_i √tr((W_{i-1}^j)ᵀ W_{i-1}^j Σ_i) by Minkowski's inequality on Eq. (9).

    Args:
        errors: Σ_i of each version i.
    Raises: ShapeError: an error and its step differ in dim.
    Source: [BC] Eq. (9); docs/method.md, "Error accounting".
    """
    if uncertified(chain, errors, source, target):
        return None
    steps = range(target + 1, source + 1)
    terms: dict[int, float] = {}
    for i in steps:
        weight = chain.matrix(i - 1, target)
        if errors[i].sigma.shape != (weight.shape[1], weight.shape[1]):
            raise ShapeError(
                f"errors[{i}] is of {len(errors[i].sigma)} dims, and version {i - 1}, to which "
                f"that step leads, has {weight.shape[1]}; give each step's error under its version."
            )
        through = ((weight @ errors[i].sigma) * weight).sum()
        terms[i] = math.sqrt(max(float(through), 0.0))
    estimate = math.sqrt(sum(term**2 for term in terms.values()))
    powers = (errors[i].power for i in steps if not math.isnan(errors[i].power))
    length = math.sqrt(next(powers, 0.0)) if target < source else 1.0
    return Guarantee(
        target,
        sum(terms.values()),
        estimate,
        estimate / length if length else math.nan,
        sum(terms.values()) / length if length else math.nan,
        float(torch.linalg.matrix_norm(chain.matrix(source, target), 2)),
        terms,
    )


def uncertified(
    chain: Chain, errors: Mapping[int, StepError], source: int, target: int
) -> list[str]:
    """Return why reading version `source` as version `target` has no certificate: a reason for each
    step that is not affine, or whose error was not measured or on fewer than `LEAST_OBJECTS`."""
    reasons = []
    for i in range(target + 1, source + 1):
        if not chain.is_affine(i, i - 1):
            reasons.append(f"the transform of version {i} is not affine")
        elif i not in errors:
            reasons.append(f"version {i} was published without a measured error")
        elif not errors[i].is_known:
            reasons.append(
                f"the transform of version {i} was measured on {errors[i].objects} objects, and "
                f"{LEAST_OBJECTS} are needed"
            )
    return reasons
