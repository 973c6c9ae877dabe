"""The error of reading every past version: by its certificate, and measured on its canaries."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.certificate import LEAST_OBJECTS, Guarantee, certify, uncertified
from evergram.compatibility.chain import Chain
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError
from evergram.lineage.artefact import Block
from evergram.lineage.catalog import Catalog

# An error contradicts a certificate if it is more than this multiple of its bound plus rounding.
BELIED = 2.0
ROUNDING = 1e-5


@dataclass(frozen=True)
class Measured:
    """The true error on the canaries of both versions: of z_k read as j, to z_j as published.

    Args:
        objects: how many.
        error: root of the mean of ‖z̃_j − z_j‖².
        relative: that over the root of the mean of ‖z_j‖².
        cosine: mean cosine of z̃_j and z_j.
        terms: for each step i, root of the mean of ‖W_{i-1}^j δ_i‖² on the canaries that all the
            versions between kept; empty if a transform is not affine. Source: [BC] Eq. (9).
    """

    objects: int
    error: float
    relative: float
    cosine: float
    terms: dict[int, float]


@dataclass(frozen=True)
class Reading:
    """The quality of reading version j from the newest, k; a value that is not known is None.

    Args:
        measured: on all canaries, most of which alignment saw.
        history: the relative error at every version since j, by version: of `error`, where it is
            known, or else on all canaries.
        unseen: on the canaries that no alignment between saw; None if they are fewer than
            `LEAST_OBJECTS`.
        amplification: the largest singular value of W_k^j; None if a transform is not affine.
        unknown: by name, why there is no "error" (on unseen canaries), "certificate" or
            "amplification", or nothing is known of a side, "side candidate".
    """

    version: int
    certificate: Guarantee | None
    measured: Measured | None
    history: dict[int, float]
    unseen: Measured | None
    amplification: float | None
    unknown: dict[str, str]

    @property
    def error(self) -> float | None:
        """The relative error that is shown first and held to a limit: on canaries that alignment
        never saw, or if they are too few the larger of the certificate's estimate and of what is
        measured on all canaries; None if neither is known."""
        if self.unseen is not None:
            return self.unseen.relative
        if self.certificate is None:
            return None
        estimate = self.certificate.relative
        return estimate if self.measured is None else max(self.measured.relative, estimate)


@dataclass(frozen=True)
class CompatibilityLimits:
    """The largest values that a reading may have; None is no limit.

    Args:
        error: of `Reading.error`.
        bound: the certificate's, over √E‖z_j‖².
        amplification: the largest singular value of W_k^j.
    """

    error: float | None = None
    bound: float | None = None
    amplification: float | None = None


def diagnose_lineage(lineage: Catalog) -> list[Reading]:
    """Return a reading of each past version that is read, oldest first, and check all files.

    Raises: UnknownVersionError: nothing is published. IntegrityError: a file is damaged.
    """
    lineage.check()
    return read_versions(lineage, lineage.readable[:-1])


def read_versions(
    lineage: Catalog, versions: Iterable[int], source: int | None = None
) -> list[Reading]:
    """Return a reading of each of some versions, from `source` or from the newest."""
    newest = lineage.newest if source is None else source
    chain, errors = lineage.chain, lineage.step_errors
    canaries = {m.version: lineage.canaries(m.version) for m in lineage.versions}
    shares = {n: unseen_share(lineage, n) for n in range(1, newest + 1)}
    readings = []
    for j in versions:
        unseen, problem = _measure_unseen(chain, canaries, shares, newest, j)
        certificate = certify(chain, errors, newest, j)
        reasons = uncertified(chain, errors, newest, j)
        affine = chain.is_affine(newest, j)
        unknown = {"error": problem} if problem else {}
        if reasons:
            unknown["certificate"] = "; ".join(reasons)
        if not affine:
            unknown["amplification"] = unknown["certificate"]
        unknown |= _unmeasured_sides(canaries, newest, j)
        measured = measure_canaries(chain, canaries, newest, j)
        history = {}
        for k in (n for n in canaries if j <= n <= newest):
            apart = _measure_unseen(chain, canaries, shares, k, j)[0] if k > j else None
            found = apart or measure_canaries(chain, canaries, k, j)
            if found is not None:
                history[k] = found.relative
        stretch = float(torch.linalg.matrix_norm(chain.matrix(newest, j), 2)) if affine else None
        readings.append(Reading(j, certificate, measured, history, unseen, stretch, unknown))
    return readings


def _unmeasured_sides(
    canaries: Mapping[int, Mapping[str, Block]], source: int, target: int
) -> dict[str, str]:
    """Return why nothing is known of a side: both versions have canaries of it, and next to none in
    common, so that all figures are of the other side."""
    reasons = {}
    for side in sorted(set(canaries[source]) & set(canaries[target])):
        ours, theirs = (canaries[version][side] for version in (target, source))
        of_side = {target: {side: ours}, source: {side: theirs}}
        common = len(_common(of_side, [target, source])[target])
        if common < LEAST_OBJECTS <= min(len(ours[0]), len(theirs[0])):
            reasons[f"side {side}"] = (
                f"the two versions have {common} of its canaries in common, and {LEAST_OBJECTS} "
                "are needed"
            )
    return reasons


def _measure_unseen(
    chain: Chain,
    canaries: Mapping[int, Mapping[str, Block]],
    shares: Mapping[int, float | None],
    source: int,
    target: int,
) -> tuple[Measured | None, str | None]:
    """Return the error on the canaries that no alignment from `target` to `source` saw; or None and
    why it is not known.

    Args:
        shares: of each version, see `unseen_share`.
    """
    steps = range(target + 1, source + 1)
    silent = [i for i in steps if shares[i] is None]
    if silent:
        versions = ", ".join(map(str, silent))
        return None, f"which objects alignment never saw is not recorded of version {versions}"
    share = min(float(shares[i] or 0.0) for i in steps)
    kept = {}
    for side, (ids, vectors) in canaries[target].items():
        apart = id_hash(Vocabulary(ids)) < share * 2**32
        kept[side] = ids.filter(pa.array(apart.numpy())), vectors[apart]
    measured = measure_canaries(chain, {**canaries, target: kept}, source, target)
    objects = 0 if measured is None else measured.objects
    if objects < LEAST_OBJECTS:
        return None, (
            f"the two versions have {objects} canaries in common that alignment never saw, and "
            f"{LEAST_OBJECTS} are needed"
        )
    return measured, None


def measure_canaries(
    chain: Chain, canaries: Mapping[int, Mapping[str, Block]], source: int, target: int
) -> Measured | None:
    """Return the error of reading version `source` as `target`, on canaries of both; None if there
    are none.

    Args:
        canaries: by version and side, ids and vectors at publication; without withdrawn versions.
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
    """Return the vectors, float64, that each version has of the canaries of all `versions`, in one
    order."""
    vectors: dict[int, list[Tensor]] = {n: [] for n in versions}
    sides = set.intersection(*(set(canaries[n]) for n in versions))
    for side in sorted(sides):
        ids = canaries[versions[0]][side][0]
        rows = {n: Vocabulary(canaries[n][side][0]).rows(ids) for n in versions}
        kept = torch.stack(list(rows.values())).min(0).values >= 0
        for n in versions:
            vectors[n].append(canaries[n][side][1][rows[n][kept]].double())
    return {n: torch.cat(parts) if parts else torch.zeros(0, 1) for n, parts in vectors.items()}


def past_limits(readings: list[Reading], limits: CompatibilityLimits) -> list[str]:
    """Return a sentence for each reading that is past a limit or is not known, or whose certificate
    the canaries belie; and one if there are limits and no reading.

    Raises: DataError: a limit is no number.
    """
    asked = {name: limit for name, limit in asdict(limits).items() if limit is not None}
    for name, limit in asked.items():
        if math.isnan(limit):
            raise DataError(f"The limit of the {name} is nan; it must be a number.")
    if asked and not readings:
        return [
            "No past version is read, so nothing can be held to a limit; leave the limits out "
            "until there is one."
        ]
    sentences = []
    for reading in readings:
        known, witness = reading.certificate, _witness(reading)
        if known is not None and is_belied(known.relative_bound, witness):
            assert witness is not None
            which = "objects that alignment never saw" if reading.unseen else "canaries"
            sentences.append(
                f"Version {reading.version}: its certificate bounds the error by "
                f"{known.relative_bound:.4g}, and on {witness.objects} {which} it is "
                f"{witness.relative:.4g}; the transforms do not lead to these versions' vectors: "
                "upgrade again, and withdraw the newest version."
            )
        sides = {k: v for k, v in reading.unknown.items() if asked and k.startswith("side ")}
        for side, reason in sides.items():
            sentences.append(
                f"Version {reading.version}: nothing is known of its {side}, and there are limits: "
                f"{reason}."
            )
        values = {
            "error": reading.error,
            "bound": None if known is None else known.relative_bound,
            "amplification": reading.amplification,
        }
        for name, limit in asked.items():
            value = values[name]
            if value is None or math.isnan(value):
                why = reading.unknown.get("certificate" if name == "bound" else name)
                sentences.append(
                    f"Version {reading.version}: nothing is known of its {name}, and the limit "
                    f"is {limit:g}{f': {why}' if why else ''}."
                )
            elif value > limit:
                sentences.append(
                    f"Version {reading.version}: its {name} is {value:.4g}, past the limit of "
                    f"{limit:g}."
                )
    return sentences


def _witness(reading: Reading) -> Measured | None:
    """Return the error on unseen canaries; if they are too few, on all, which is seldom larger."""
    if reading.unseen is not None or reading.measured is None:
        return reading.unseen
    return reading.measured if reading.measured.objects >= LEAST_OBJECTS else None


def is_belied(bound: float, witness: Measured | None) -> bool:
    """Whether the error is far above the bound; errors of other objects differ by some tenths."""
    return witness is not None and witness.relative > BELIED * bound + ROUNDING


def as_json(reading: Reading) -> dict[str, Any]:
    """Return a reading as plain JSON, with its error first."""
    return {"error": reading.error, **asdict(reading)}


# Canaries of each side: enough for a mean, and few enough to keep for ever.
CANARIES = 1000


def id_hash(vocabulary: Vocabulary) -> Tensor:
    """Return a number in [0, 2³²) for each id, the same on every machine, int64 [N]."""
    texts = vocabulary.keys.cast(pa.string()).to_pylist()
    return torch.tensor([zlib.crc32(text.encode()) for text in texts], dtype=torch.int64)


def canary_rows(ids: pa.Array, hashes: Tensor, past: pa.Array | None = None) -> Tensor:
    """Return the rows of the objects whose vectors are kept, at most `CANARIES`: those that the
    version before kept, then those with the lowest and the highest hashes.

    Alignment holds out low hashes and is fitted to high ones, so that canaries are of both kinds.

    Args:
        hashes: `id_hash` of the ids, int64 [N].
        past: ids that the version before kept, as strings.
    """
    order = torch.argsort((hashes - 2**31).abs(), descending=True, stable=True)
    if past is not None:
        rows = Vocabulary(ids.cast(pa.string())).rows(past)
        rows = rows[rows >= 0]
        order = torch.cat([rows, order[~torch.isin(order, rows)]])
    return order[:CANARIES]


def unseen_share(lineage: Catalog, version: int) -> float | None:
    """Return the share of the objects that the alignment of a version never saw: those whose
    `id_hash` is below this share of 2³². It is 1 if nothing was fitted, and None if the
    version's metrics do not record it."""
    if version in lineage.withdrawn:
        return 1.0  # an identity
    share = lineage.metrics(version).get("overlap", {}).get("held_out_share")
    return float(share) if isinstance(share, int | float) else None
