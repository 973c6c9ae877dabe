"""How well every past version is read, and what the readers of each version should know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.certificate import (
    LEAST_OBJECTS,
    Guarantee,
    StepError,
    certify,
    uncertified,
)
from evergram.compatibility.chain import Chain
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError, EvergramError
from evergram.ids import id_hashes
from evergram.lineage.artefact import Block
from evergram.lineage.lineage import Lineage
from evergram.lineage.publication import CanarySample, is_belied
from evergram.lineage.record import STABLE, read_manifest
from evergram.vector_files.open_embeddings import open_embeddings

# A metric of fewer test queries is no ground to publish on: of thirty, one query that is found or
# lost is three percent of what can be reached.
LEAST_QUERIES = 30
# Relative; the same files give the same error but for rounding.
SAME = 1e-3
# ‖canary − vector‖ over ‖vector‖, at most.
CANARY_ROUNDING = 1e-3
# Of each version and side, ids (as strings) and vectors at publication.
Canaries = Mapping[int, Mapping[str, Block]]
# A published version never changes, so its warnings are read once for each opened lineage.
_cache: WeakKeyDictionary[Lineage, dict[int, list[str]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Measured:
    """The true error on the canaries of both versions: of z_k read as j, to z_j as published.

    Args:
        objects: how many.
        error: root of the mean of ‖z̃_j − z_j‖².
        relative: that over the root of the mean of ‖z_j‖².
        cosine: mean cosine of z̃_j and z_j.
    """

    objects: int
    error: float
    relative: float
    cosine: float


def measure_canaries(chain: Chain, canaries: Canaries, source: int, target: int) -> Measured | None:
    """Return the error of reading version `source` as `target`, on canaries of both; None if there
    are none."""
    rows = common_canaries(canaries, [source, target])
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
    )


def common_canaries(canaries: Canaries, versions: list[int]) -> dict[int, Tensor]:
    """Return the vectors, float64, that each version has of the canaries of all `versions`, in one
    order."""
    vectors: dict[int, list[Tensor]] = {n: [] for n in versions}
    for side in sorted(set.intersection(*(set(canaries[n]) for n in versions))):
        ids = canaries[versions[0]][side][0]
        rows = {n: Vocabulary(canaries[n][side][0]).rows(ids) for n in versions}
        kept = torch.stack(list(rows.values())).min(0).values >= 0
        for n in versions:
            vectors[n].append(canaries[n][side][1][rows[n][kept]].double())
    return {n: torch.cat(parts) if parts else torch.zeros(0, 1) for n, parts in vectors.items()}


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

    @property
    def belied(self) -> str | None:
        """A sentence, if the canaries belie the certificate; None if they do not."""
        known, witness = self.certificate, self.unseen
        # On all canaries, if too few are unseen, the error is seldom larger.
        if witness is None and self.measured and self.measured.objects >= LEAST_OBJECTS:
            witness = self.measured
        if (
            known is None
            or witness is None
            or not is_belied(known.relative_bound, witness.relative)
        ):
            return None
        which = "objects that alignment never saw" if self.unseen else "canaries"
        return (
            f"Version {self.version}: its certificate bounds the error by "
            f"{known.relative_bound:.4g}, and on {witness.objects} {which} it is "
            f"{witness.relative:.4g}; the transforms do not lead to these versions' vectors: "
            "upgrade again, and withdraw the newest version."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the reading as plain JSON, with its error first."""
        return {"error": self.error, **asdict(self)}


def diagnose_lineage(lineage: Lineage) -> list[Reading]:
    """Return a reading of each past version that is read, oldest first, and check all files.

    Raises: UnknownVersionError: nothing is published. IntegrityError: a file is damaged.
    """
    lineage.check()
    return read_versions(lineage, lineage.readable[:-1])


def read_versions(
    lineage: Lineage, versions: Iterable[int], source: int | None = None
) -> list[Reading]:
    """Return a reading of each of some versions, from `source` or from the newest."""
    newest = lineage.newest if source is None else source
    chain, errors, canaries = lineage.chain, lineage.step_errors, _canaries(lineage)
    shares = {n: unseen_share(lineage, n) for n in range(1, newest + 1)}
    readings = []
    for j in versions:
        unseen, problem = _measure_unseen(chain, canaries, shares, newest, j)
        unknown = {"error": problem} if problem else {}
        affine = chain.is_affine(newest, j)
        if reasons := uncertified(chain, errors, newest, j):
            unknown["certificate"] = "; ".join(reasons)
        if not affine:
            unknown["amplification"] = unknown["certificate"]
        history = {}
        for k in (n for n in canaries if j <= n <= newest):
            apart = _measure_unseen(chain, canaries, shares, k, j)[0] if k > j else None
            if found := apart or measure_canaries(chain, canaries, k, j):
                history[k] = found.relative
        readings.append(
            Reading(
                version=j,
                certificate=certify(chain, errors, newest, j),
                measured=measure_canaries(chain, canaries, newest, j),
                history=history,
                unseen=unseen,
                amplification=float(torch.linalg.matrix_norm(chain.matrix(newest, j), 2))
                if affine
                else None,
                unknown=unknown | _unmeasured_sides(canaries, newest, j),
            )
        )
    return readings


def _canaries(lineage: Lineage) -> Canaries:
    return {m.version: lineage.canaries(m.version) for m in lineage.versions}


def _unmeasured_sides(canaries: Canaries, source: int, target: int) -> dict[str, str]:
    """Return why nothing is known of a side: both versions have canaries of it, and next to none in
    common."""
    reasons = {}
    for side in sorted(set(canaries[source]) & set(canaries[target])):
        of_side = {n: {side: canaries[n][side]} for n in (target, source)}
        common = len(common_canaries(of_side, [target, source])[target])
        if common < LEAST_OBJECTS <= min(len(of_side[n][side][0]) for n in of_side):
            reasons[f"side {side}"] = (
                f"the two versions have {common} of its canaries in common, and {LEAST_OBJECTS} "
                "are needed"
            )
    return reasons


def _measure_unseen(
    chain: Chain,
    canaries: Canaries,
    shares: Mapping[int, float | None],
    source: int,
    target: int,
) -> tuple[Measured | None, str | None]:
    """Return the error on the canaries that no alignment from `target` to `source` saw; or None and
    why it is not known."""
    steps = range(target + 1, source + 1)
    if silent := [str(n) for n in steps if shares[n] is None]:
        versions = ", ".join(silent)
        return None, f"which objects alignment never saw is not recorded of version {versions}"
    share = min(float(shares[n] or 0.0) for n in steps)
    kept = {}
    for side, (ids, vectors) in canaries[target].items():
        apart = torch.from_numpy(id_hashes(ids)) < share * 2**32
        kept[side] = ids.filter(pa.array(apart.numpy())), vectors[apart]
    measured = measure_canaries(chain, {**canaries, target: kept}, source, target)
    objects = 0 if measured is None else measured.objects
    if objects < LEAST_OBJECTS:
        return None, (
            f"the two versions have {objects} canaries in common that alignment never saw, and "
            f"{LEAST_OBJECTS} are needed"
        )
    return measured, None


def unseen_share(lineage: Lineage, version: int) -> float | None:
    """Return the share of the objects that the alignment of a version never saw: those whose
    `id_hashes` are below this share of 2³². It is 1 if nothing was fitted, and None if it is not
    recorded."""
    if version in lineage.withdrawn:
        return 1.0  # an identity
    share = lineage.metrics(version).get("overlap", {}).get("held_out_share")
    return float(share) if isinstance(share, int | float) else None


def past_limits(
    readings: list[Reading], *, error: float | None = None, bound: float | None = None
) -> list[str]:
    """Return a sentence for each reading that is past a limit or is not known, or whose certificate
    the canaries belie; and one if there are limits and no reading.

    Args:
        error: the largest `Reading.error`; None is no limit.
        bound: the certificate's largest, over √E‖z_j‖².
    Raises: DataError: a limit is no number.
    """
    limits = {"error": error, "bound": bound}
    asked = {name: limit for name, limit in limits.items() if limit is not None}
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
        start, known = f"Version {reading.version}:", reading.certificate
        sentences += [reading.belied] if reading.belied else []
        sentences += [
            f"{start} nothing is known of its {side}, and there are limits: {reason}."
            for side, reason in reading.unknown.items()
            if asked and side.startswith("side ")
        ]
        values = {"error": reading.error, "bound": None if known is None else known.relative_bound}
        for name, limit in asked.items():
            value = values[name]
            if value is None or math.isnan(value):
                why = reading.unknown.get("certificate" if name == "bound" else name)
                sentences.append(
                    f"{start} nothing is known of its {name}, and the limit is "
                    f"{limit:g}{f': {why}' if why else ''}."
                )
            elif value > limit:
                sentences.append(f"{start} its {name} is {value:.4g}, past the limit of {limit:g}.")
    return sentences


# Metrics of a sample of queries.


def standard_errors(sampled: Any, model: str) -> dict[str, float]:
    """Return the standard error of each metric of a model that has one, from `sampled` of a
    version's metrics; none where all queries were ranked."""
    errors = sampled.get("errors") if isinstance(sampled, Mapping) else None
    of_model = errors.get(model) if isinstance(errors, Mapping) else None
    named = of_model.items() if isinstance(of_model, Mapping) else ()
    return {
        name: float(error)
        for name, error in named
        if isinstance(error, int | float) and math.isfinite(error) and error >= 0
    }


def sample_sentence(sampled: Any) -> str | None:
    """Return a sentence on the sample's size and on ±; None where all queries were ranked."""
    if not isinstance(sampled, Mapping):
        return None
    sizes = [sampled.get(name) for name in ("queries", "of")]
    if not all(isinstance(size, int) for size in sizes):
        return "Measured on a sample of the test queries; ± is a standard error."
    return (
        f"Measured on {sizes[0]:,} of {sizes[1]:,} test queries, drawn at random; ± is a standard "
        "error."
    )


def with_error(value: str, error: float | None) -> str:
    """Return a metric's text, with ± its standard error if it has one."""
    return value if error is None else f"{value} ±{error:.4f}"


# Warnings.


def version_warnings(lineage: Lineage) -> dict[int, list[str]]:
    """Return, for each version, a sentence on each thing that its readers should know."""
    numbers = [m.version for m in lineage.versions]
    known = _cache.get(lineage, {})
    if list(known) != numbers:
        errors = lineage.step_errors
        known = {n: known.get(n) or [*_warnings(lineage, n, errors.get(n))] for n in numbers}
        _cache[lineage] = known
    return known


def _warnings(lineage: Lineage, version: int, error: StepError | None) -> Iterable[str]:
    metrics = lineage.metrics(version)
    data, overlap = metrics.get("data", {}), metrics.get("overlap", {})
    if unknown := data.get("unknown_to_model"):
        yield (
            f"It has no vectors of {unknown['query']:,} queries and {unknown['candidate']:,} "
            "candidates of its data: its model was kept as it was (upgrade.start = 'frozen') and "
            "knows nothing of them."
        )
    few = few_test_queries(data)
    if "untested" in metrics:
        yield metrics["untested"]
    elif few:
        yield few
    else:
        yield from below_popularity(metrics.get("metrics", {}))
    if version == 0:
        return
    if overlap.get("small"):
        yield f"It has only {overlap['common']} objects in common with the version before it."
    if not metrics.get("alignment", {}).get("chance", {}).get("beaten", True):
        yield "Its transform is no better than chance: it errs as much with the objects mixed up."
    if error is None:
        yield "Its transform was published without a measured error, and has no certificate."
    elif not error.is_known:
        yield (
            f"The error of its transform was measured on {error.objects} objects, and "
            f"{LEAST_OBJECTS} are needed for a certificate."
        )
    elif error.rms**2 >= error.power:
        share = 100 * error.rms / math.sqrt(error.power) if error.power else math.inf
        yield (
            f"Its transform errs by {share:.0f} % of the length of the past vectors: vectors of "
            "zeros would be nearer to them."
        )


def few_test_queries(data: Mapping[str, Any]) -> str | None:
    """Return a warning that a model was tested on too few queries, by `data` of its metrics; None
    if they were enough, or if their number is not recorded."""
    queries = data.get("test_queries")
    if queries is None or queries >= LEAST_QUERIES:
        return None
    return f"It was tested on {queries} queries only; its metrics say little below {LEAST_QUERIES}."


def below_popularity(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a warning that a model ranks test pairs worse than counts do, by every metric."""
    model, counts = metrics.get("model", {}), metrics.get("popularity", {})
    lower = [name for name in model if name in counts and model[name] < counts[name]]
    if not lower or len(lower) < len(model):
        return []
    name = lower[0]
    return [
        f"It ranks test pairs worse than popularity does, by every metric ({name} is "
        f"{model[name]:.4f}, and {counts[name]:.4f} by popularity); try other values of the keys "
        "of [task], as evergram tune does, before its order is relied on."
    ]


# Contradictions.


def contradictions(lineage: Lineage) -> list[str]:
    """Return a sentence on each contradiction: of transforms and canaries, of stored vectors and
    canaries, of `stable` and stored vectors, and of `lineage.json` and the folders.

    Raises: IntegrityError: a file is damaged.
    """
    found = [*_transforms(lineage), *_stored(lineage), *_folders(lineage)]
    stable = lineage.labels.get(STABLE)
    if stable is not None and stable not in lineage.versions_with_embeddings:
        found.append(
            f"The label {STABLE!r} is on version {stable}, whose vectors are not stored, so that "
            "no service can start. Put it on another version by 'evergram lineage promote'."
        )
    return found


def _transforms(lineage: Lineage) -> Iterable[str]:
    """A transform has the error on canaries that it was published with."""
    canaries = _canaries(lineage)
    for before, n in pairwise(canaries):
        published = lineage.manifest(n).canary_error
        measured = measure_canaries(lineage.chain, canaries, n, before)
        if published is None or measured is None:
            continue
        if not abs(measured.relative - published) <= SAME * (1 + published):
            yield (
                f"The transform of version {n} errs by {measured.relative:.4g} on the canaries "
                f"that versions {before} and {n} kept, and by {published:.4g} when it was "
                "published: it is another transform, or the canaries are others. Restore the "
                "version from a copy."
            )


def _stored(lineage: Lineage) -> Iterable[str]:
    """The canaries are among the stored vectors."""
    for n in lineage.versions_with_embeddings:
        for side, (ids, vectors) in lineage.canaries(n).items():
            try:
                check_stored(ids, vectors, side, open_embeddings(lineage.stored(side, n)).blocks())
            except EvergramError as error:
                yield f"Version {n}: {error}"


def check_stored(ids: pa.Array, vectors: Tensor, side: str, blocks: Iterable[Block]) -> None:
    """Compare canaries with the stored vectors of their side.

    Raises: DataError: one is another vector, or has an id that is not stored.
    """
    sample = CanarySample(side, ids)
    for _ in sample.through(blocks):
        pass
    stored = sample.vectors[Vocabulary(sample.ids).rows(ids)]
    # A NaN is at no distance.
    near = (stored - vectors).norm(dim=1) <= CANARY_ROUNDING * stored.norm(dim=1)
    if not bool(near.all()):
        raise DataError(
            f"The canary {ids[int((~near).nonzero()[0])].as_py()!r} of the side {side} is not the "
            "vector that is stored; restore the version from a copy."
        )


def _folders(lineage: Lineage) -> Iterable[str]:
    """No whole version is there that the record does not know."""
    if lineage.remote is not None:
        return  # a mirror also has what was read before
    for folder in sorted((lineage.path / "versions").glob("[0-9]*")):
        number = int(folder.name) if folder.name.isdecimal() else -1
        if number < lineage.next_version:
            continue
        try:
            created = read_manifest(folder).created
        except EvergramError:
            continue
        yield (
            f"versions/{number} holds version {number}, created {created}, and lineage.json does "
            "not list it: lineage.json is an older copy, or a publication was killed. Restore the "
            "newest lineage.json; the next publication removes the version."
        )
