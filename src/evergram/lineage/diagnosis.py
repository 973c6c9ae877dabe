"""What is known of every past version: by the certificate, and by the canaries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from evergram.compatibility.certificate import Guarantee, certify
from evergram.compatibility.chain import Chain
from evergram.data.corpus import Vocabulary
from evergram.lineage.artefact import Block
from evergram.lineage.lineage import Lineage


@dataclass(frozen=True)
class Measured:
    """The true error on canaries that both versions kept: z_j then, and z_k read as j.

    Args:
        objects: how many.
        error: root of the mean of ‖z̃_j − z_j‖².
        relative: that over the root of the mean of ‖z_j‖².
        cosine: mean cosine of z̃_j and z_j.
        terms: for each step i, root of the mean of ‖W_{i-1}^j δ_i‖² on the canaries that all the
            versions on the way kept; empty where the way is not affine. Source: [BC] Eq. (9).
    """

    objects: int
    error: float
    relative: float
    cosine: float
    terms: dict[int, float]


@dataclass(frozen=True)
class Reading:
    """Version j, as the newest one reads it. None is what nothing is known of.

    Args:
        history: the canaries' relative error at every version since j, by version.
    """

    version: int
    certificate: Guarantee | None
    measured: Measured | None
    history: dict[int, float]


@dataclass(frozen=True)
class Limits:
    """What a reading may be at most; None is no limit.

    Args:
        error: relative error, on canaries, or by the estimate where there are none.
        bound: of the certificate, over √E‖z_j‖².
        amplification: the largest singular value of W_k^j.
    """

    error: float | None = None
    bound: float | None = None
    amplification: float | None = None


def diagnose_lineage(lineage: Lineage) -> list[Reading]:
    """A reading for each past version that is read, oldest first. All published files are checked
    on the way.

    Raises: UnknownVersionError: nothing is published. IntegrityError: a file is damaged.
    """
    newest, chain, errors = lineage.newest, lineage.chain, lineage.errors
    lineage.check()
    canaries = {m.version: lineage.canaries(m.version) for m in lineage.versions}
    found = []
    for j in lineage.readable[:-1]:
        history = {}
        for k in (n for n in canaries if n >= j):
            measured = measure_canaries(chain, canaries, k, j)
            if measured is not None:
                history[k] = measured.relative
        found.append(
            Reading(
                j,
                certify(chain, errors, newest, j),
                measure_canaries(chain, canaries, newest, j),
                history,
            )
        )
    return found


def measure_canaries(
    chain: Chain, canaries: Mapping[int, Mapping[str, Block]], source: int, target: int
) -> Measured | None:
    """The error of version `source` read as `target`, on canaries; None where none are common.

    Args:
        canaries: by version and side, ids and vectors at publication; of withdrawn versions there
            are none.
    """
    rows = _common(canaries, [source, target])
    past, now = rows[target], rows[source]
    if not len(past):
        return None
    back = chain.apply(now, source, target)
    power = float(past.square().sum(1).mean())
    error = float((back - past).square().sum(1).mean())
    return Measured(
        len(past),
        math.sqrt(error),
        math.sqrt(error / power) if power else math.nan,
        float(torch.nn.functional.cosine_similarity(back, past).mean()),
        _terms(chain, canaries, source, target),
    )


def _terms(
    chain: Chain, canaries: Mapping[int, Mapping[str, Block]], source: int, target: int
) -> dict[int, float]:
    if source == target or not chain.is_affine(source, target):
        return {}
    way = [n for n in range(target, source + 1) if n in canaries]
    rows = _common(canaries, way)
    if not len(rows[target]):
        return {}
    terms = {}
    for before, i in pairwise(way):
        delta = chain.apply(rows[i], i, before) - rows[before]
        through = delta @ chain.matrix(before, target).T
        terms[i] = math.sqrt(float(through.square().sum(1).mean()))
    return terms


def _common(canaries: Mapping[int, Mapping[str, Block]], versions: list[int]) -> dict[int, Tensor]:
    """Of the canaries that all `versions` kept, the vectors of each, float64, in one order."""
    found: dict[int, list[Tensor]] = {n: [] for n in versions}
    sides = set.intersection(*(set(canaries[n]) for n in versions))
    for side in sorted(sides):
        ids = canaries[versions[0]][side][0]
        rows = {n: Vocabulary(canaries[n][side][0]).rows(ids) for n in versions}
        kept = torch.stack(list(rows.values())).min(0).values >= 0
        for n in versions:
            found[n].append(canaries[n][side][1][rows[n][kept]].double())
    return {n: torch.cat(parts) if parts else torch.zeros(0, 1) for n, parts in found.items()}


def past_limits(readings: list[Reading], limits: Limits) -> list[str]:
    """A sentence for each reading that is past a limit, or that nothing is known of."""
    sentences = []
    for reading in readings:
        known = reading.certificate
        values = {
            "error": _error(reading),
            "bound": None if known is None else known.relative_bound,
            "amplification": None if known is None else known.amplification,
        }
        for name, limit in asdict(limits).items():
            if limit is None:
                continue
            value = values[name]
            if value is None or math.isnan(value):
                sentences.append(
                    f"Version {reading.version}: nothing is known of its {name}, and the limit "
                    f"is {limit:g}."
                )
            elif value > limit:
                sentences.append(
                    f"Version {reading.version}: its {name} is {value:.4g}, past the limit of "
                    f"{limit:g}."
                )
    return sentences


def _error(reading: Reading) -> float | None:
    if reading.measured is not None:
        return reading.measured.relative
    return None if reading.certificate is None else reading.certificate.relative


def as_json(reading: Reading) -> dict[str, Any]:
    """A reading as plain JSON."""
    return asdict(reading)
