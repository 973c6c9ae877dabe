"""What the report of a version shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evergram.evaluation.breakdown import Stratum
from evergram.evaluation.gramian_error import Histograms


@dataclass(frozen=True)
class NotMeasured:
    """Stands where a measure would be.

    Args:
        why: a sentence.
    """

    why: str


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of a side's second moment under its measure.

    Args:
        shares: of the sum of eigenvalues, the largest first, [D].
        effective_rank: exp of the entropy of `shares`.
        entities: embeddings of the side.
    """

    shares: Sequence[float]
    effective_rank: float
    entities: int


@dataclass(frozen=True)
class Neighbours:
    """A candidate and its nearest others.

    Args:
        name: of the candidate, or its id.
        pairs: training pairs of it.
        popular: True for one of the most popular, False for one drawn at random.
        nearest: names and cosines, the nearest first.
    """

    name: str
    pairs: int
    popular: bool
    nearest: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class WorstQuery:
    """A query whose test pairs rank far down.

    Args:
        pairs: training pairs of it.
        tested: test pairs of it, those outside the catalogue left out.
        best, worst: ranks of the first and of the last of them.
    """

    id: str
    pairs: int
    tested: int
    best: int
    worst: int


@dataclass(frozen=True)
class KeptPast:
    """What is kept of a past version, on the queries and candidates that it knew.

    Args:
        new: the selection metric of the new version itself on the same queries and candidates.
        strata: recall of the past version itself ("past"), of the new one through the chain
            ("chain") and of the new one itself ("new").
    """

    new: float
    strata: Sequence[Stratum]


@dataclass(frozen=True)
class VersionFacts:
    """The measures of one version.

    Args:
        lineage: its name.
        version: the number.
        metric: the selection metric.
        metrics: as published, JSON.
        spectra: by side.
        scores: of observed and of random pairs.
        worst: the worst query first.
        by_popularity, by_pairs: recall of the strata of candidates, and of queries.
        kept: by past version; empty for version 0.
        warnings: sentences.
    """

    lineage: str
    version: int
    metric: str
    metrics: Mapping[str, Any]
    spectra: Mapping[str, Spectrum] | NotMeasured
    scores: Histograms | NotMeasured
    neighbours: Sequence[Neighbours] | NotMeasured
    worst: Sequence[WorstQuery] | NotMeasured
    by_popularity: Sequence[Stratum] | NotMeasured
    by_pairs: Sequence[Stratum] | NotMeasured
    kept: Mapping[str, KeptPast | NotMeasured] = field(default_factory=dict)
    warnings: Sequence[str] = ()
