"""How well every past version can be read, and warnings for the readers of each version."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import torch

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
from evergram.lineage.publication import (
    CanarySample,
    Measured,
    common_canaries,
    contradicts,
    measure_canaries,
)
from evergram.lineage.record import STABLE, read_manifest
from evergram.vector_files.open_embeddings import open_embeddings

# Metrics on fewer test queries are too noisy to publish on: with 30, a single query makes a
# difference of 3 %.
LEAST_QUERIES = 30
SAME = 1e-3  # relative tolerance of an error computed again from the same files, for rounding
CANARY_ROUNDING = 1e-3  # maximum ‖canary − vector‖ / ‖vector‖
# By version and side: ids (as strings) and vectors at publication.
Canaries = Mapping[int, Mapping[str, Block]]
# Published versions never change, so their warnings are cached for each opened lineage.
_cache: WeakKeyDictionary[Lineage, dict[int, list[str]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Reading:
    """The quality of reading version j from the newest version k; None for unknown values.

    Args:
        measured: error on all canaries, most of which were used for alignment.
        history: relative error at every version since j, by version: on unseen canaries if there
            are enough, otherwise on all.
        unseen: error on canaries that no alignment between j and k used; None if there are fewer
            than `LEAST_OBJECTS`.
        unknown: why a value is missing, by name: "error" (on unseen canaries), "certificate", or a
            side such as "side candidate".
    """

    version: int
    certificate: Guarantee | None
    measured: Measured | None
    history: dict[int, float]
    unseen: Measured | None
    unknown: dict[str, str]

    @property
    def error(self) -> float | None:
        """The relative error to report and to limit: on canaries that alignment never saw or, if
        these are too few, the maximum of the certificate's estimate and the error on all canaries.
        None if there is no certificate either."""
        if self.unseen is not None:
            return self.unseen.relative
        if self.certificate is None:
            return None
        estimate = self.certificate.relative
        return estimate if self.measured is None else max(self.measured.relative, estimate)

    @property
    def contradiction(self) -> str | None:
        """A sentence if the canaries contradict the certificate, otherwise None."""
        certificate, observed = self.certificate, self.unseen
        # If too few are unseen, use all canaries: their error is rarely larger.
        if observed is None and self.measured and self.measured.objects >= LEAST_OBJECTS:
            observed = self.measured
        if not certificate or not observed:
            return None
        if not contradicts(certificate.relative_bound, observed.relative):
            return None
        which = "objects that alignment never saw" if self.unseen else "canaries"
        return (
            f"Version {self.version}: its certificate bounds the error by "
            f"{certificate.relative_bound:.4g}, but on {observed.objects} {which} it is "
            f"{observed.relative:.4g}; upgrade again, and withdraw the newest version."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the reading as plain JSON, with its error first."""
        return {"error": self.error, **asdict(self)}


def diagnose_lineage(lineage: Lineage) -> list[Reading]:
    """Return a reading of each readable past version, oldest first."""
    return read_versions(lineage, lineage.readable[:-1])


def read_versions(
    lineage: Lineage, versions: Iterable[int], source: int | None = None
) -> list[Reading]:
    """Return a reading of each of these versions from `source`, by default the newest."""
    newest = lineage.newest if source is None else source
    chain, errors, canaries = lineage.chain, lineage.step_errors, _canaries(lineage)
    shares = {n: unseen_share(lineage, n) for n in range(1, newest + 1)}
    readings = []
    for j in versions:
        unseen, problem = _measure_unseen(chain, canaries, shares, newest, j)
        unknown = {"error": problem} if problem else {}
        if reasons := uncertified(chain, errors, newest, j):
            unknown["certificate"] = "; ".join(reasons)
        history = {}
        for k in (n for n in canaries if j <= n <= newest):
            held_out = _measure_unseen(chain, canaries, shares, k, j)[0] if k > j else None
            if measured := held_out or measure_canaries(chain, canaries, k, j):
                history[k] = measured.relative
        # Sides where both versions have canaries, but too few in common.
        past, now = canaries[j], canaries[newest]
        pairs = common_canaries(past, now)
        for side in sorted(past.keys() & now.keys()):
            common = len(pairs[side][0]) if side in pairs else 0
            if common < LEAST_OBJECTS <= min(len(past[side][0]), len(now[side][0])):
                unknown[f"side {side}"] = (
                    f"the two versions have only {common} of its canaries in common; "
                    f"{LEAST_OBJECTS} are needed"
                )
        certificate = certify(chain, errors, newest, j)
        measured = measure_canaries(chain, canaries, newest, j)
        readings.append(Reading(j, certificate, measured, history, unseen, unknown))
    return readings


def _canaries(lineage: Lineage) -> Canaries:
    return {m.version: lineage.canaries(m.version) for m in lineage.versions}


def _measure_unseen(
    chain: Chain, canaries: Canaries, shares: Mapping[int, float | None], source: int, target: int
) -> tuple[Measured | None, str | None]:
    """Return the error on canaries that no alignment from `target` to `source` used; or None and
    the reason why it is unknown."""
    steps = range(target + 1, source + 1)
    if unrecorded := [str(n) for n in steps if shares[n] is None]:
        versions = ", ".join(unrecorded)
        return None, f"version {versions} does not record which objects alignment never saw"
    share = min(float(shares[n] or 0.0) for n in steps)
    held_out = {}
    for side, (ids, vectors) in canaries[target].items():
        mask = torch.from_numpy(id_hashes(ids)) < share * 2**32
        held_out[side] = ids.filter(pa.array(mask.numpy())), vectors[mask]
    measured = measure_canaries(chain, {**canaries, target: held_out}, source, target)
    objects = 0 if measured is None else measured.objects
    if objects >= LEAST_OBJECTS:
        return measured, None
    return None, (
        f"the two versions have only {objects} canaries in common that alignment never saw; "
        f"{LEAST_OBJECTS} are needed"
    )


def unseen_share(lineage: Lineage, version: int) -> float | None:
    """Return the share of objects that were held out from a version's alignment: those whose
    `id_hashes` are below this share of 2³². 1 if nothing was fitted, None if not recorded."""
    if version in lineage.withdrawn:
        return 1.0  # its transform is the identity
    share = lineage.metrics(version).get("overlap", {}).get("held_out_share")
    return float(share) if isinstance(share, int | float) else None


def past_limits(
    readings: list[Reading], *, error: float | None = None, bound: float | None = None
) -> list[str]:
    """Return a sentence for each reading that exceeds a limit, cannot be compared with it, or has a
    certificate that the canaries contradict; and one if there are limits but no readings.

    Args:
        error: maximum `Reading.error`, or None.
        bound: maximum bound of the certificate, relative to √E‖z_j‖², or None.
    Raises: DataError: a limit is not a number.
    """
    limits = {name: x for name, x in {"error": error, "bound": bound}.items() if x is not None}
    if any(map(math.isnan, limits.values())):
        raise DataError("A limit is nan; it must be a number.")
    if limits and not readings:
        return ["There is no readable past version to compare with the limits; leave them out."]
    sentences = []
    for reading in readings:
        certificate, reasons = reading.certificate, reading.unknown
        sentences += [reading.contradiction] if reading.contradiction else []
        unknown = [name for name in reasons if limits and name.startswith("side ")]
        relative_bound = None if certificate is None else certificate.relative_bound
        values = {"error": reading.error, "bound": relative_bound}
        for name, limit in limits.items():
            value = values[name]
            if value is None or math.isnan(value):
                unknown.append(name)
            elif value > limit:
                exceeded = f"its {name} is {value:.4g}, above the limit of {limit:g}"
                sentences.append(f"Version {reading.version}: {exceeded}.")
        for name in unknown:
            reason = reasons.get("certificate" if name == "bound" else name, "it was not measured")
            sentence = f"its {name} is unknown, so it cannot be compared with the limits: {reason}"
            sentences.append(f"Version {reading.version}: {sentence}.")
    return sentences


# Metrics measured on a sample of queries.


def standard_errors(sampled: Any, model: str) -> dict[str, float]:
    """Return the standard errors of a model's metrics, from `sampled` in a version's metrics; empty
    if all queries were ranked."""
    try:
        errors = {name: float(error) for name, error in sampled["errors"][model].items()}
    except (AttributeError, LookupError, TypeError, ValueError):
        return {}
    return {name: error for name, error in errors.items() if 0 <= error < math.inf}


def sample_sentence(sampled: Any) -> str | None:
    """Return a sentence on the sample's size and on ±; None if all queries were ranked."""
    if not isinstance(sampled, Mapping):
        return None
    drawn, sizes = "a sample of the test queries", [sampled.get(key) for key in ("queries", "of")]
    if all(isinstance(size, int) for size in sizes):
        drawn = f"{sizes[0]:,} of {sizes[1]:,} test queries, drawn at random"
    return f"Measured on {drawn}; ± is a standard error."


def with_error(value: str, error: float | None) -> str:
    """Append ± the standard error, if there is one, to a metric's text."""
    return value if error is None else f"{value} ±{error:.4f}"


# Warnings.


def version_warnings(lineage: Lineage) -> dict[int, list[str]]:
    """Return, for each version, warnings for its readers, one sentence each."""
    cached = _cache.setdefault(lineage, {})
    numbers = [m.version for m in lineage.versions]
    if new := [n for n in numbers if n not in cached]:
        errors = lineage.step_errors
        cached.update({n: [*_warnings(lineage, n, errors.get(n))] for n in new})
    return {n: cached[n] for n in numbers}


def _warnings(lineage: Lineage, version: int, error: StepError | None) -> Iterable[str]:
    metrics = lineage.metrics(version)
    data, overlap = metrics.get("data", {}), metrics.get("overlap", {})
    if unknown := data.get("unknown_to_model"):
        yield (
            f"It has no vectors for {unknown['query']:,} queries and {unknown['candidate']:,} "
            "candidates of its data, because its model was frozen (upgrade.start = 'frozen')."
        )
    queries = data.get("test_queries")
    if "untested" in metrics:
        yield metrics["untested"]
    elif queries is not None and queries < LEAST_QUERIES:
        yield f"It was tested on only {queries} queries; use at least {LEAST_QUERIES}."
    else:
        yield from below_popularity(metrics.get("metrics", {}))
    if version == 0:
        return
    if overlap.get("small"):
        yield f"It has only {overlap['common']} objects in common with the previous version."
    if not metrics.get("alignment", {}).get("chance", {}).get("beaten", True):
        yield "Its transform is no better than chance: its error is as large on shuffled objects."
    if error is None:
        yield "Its transform was published without a measured error, so it has no certificate."
    elif not error.is_known:
        measured = f"The error of its transform was measured on only {error.objects} objects"
        yield f"{measured}; a certificate needs {LEAST_OBJECTS}."
    elif error.rms**2 >= error.power:
        share = 100 * error.rms / math.sqrt(error.power) if error.power else math.inf
        yield f"Its transform's error is {share:.0f} % of the length of the past vectors."


def below_popularity(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a warning if a model ranks test pairs worse than popularity, by every metric."""
    model, counts = metrics.get("model", {}), metrics.get("popularity", {})
    lower = [name for name in model if name in counts and model[name] < counts[name]]
    if not lower or len(lower) < len(model):
        return []
    name = lower[0]
    return [
        f"It ranks test pairs worse than popularity, by every metric ({name} is "
        f"{model[name]:.4f}, popularity's {counts[name]:.4f}); see 'evergram tune'."
    ]


# Contradictions.


def contradictions(lineage: Lineage) -> list[str]:
    """Return a sentence on each contradiction between transforms and canaries, stored vectors and
    canaries, the label `stable` and stored vectors, or `lineage.json` and the folders."""
    found = [*_transforms(lineage), *_stored(lineage), *_folders(lineage)]
    stable = lineage.labels.get(STABLE)
    if stable is not None and stable not in lineage.versions_with_embeddings:
        what = f"The label {STABLE!r} is on version {stable}, whose vectors are not stored"
        found.append(f"{what}; move it with 'evergram lineage promote'.")
    return found


def _transforms(lineage: Lineage) -> Iterable[str]:
    """Check that each transform has the same error on canaries as at publication."""
    canaries = _canaries(lineage)
    for before, n in pairwise(canaries):
        published = lineage.manifest(n).canary_error
        measured = measure_canaries(lineage.chain, canaries, n, before)
        if published is None or measured is None:
            continue
        if not abs(measured.relative - published) <= SAME * (1 + published):
            yield (
                f"The transform of version {n} has the error {measured.relative:.4g} on canaries "
                f"of versions {before} and {n}, but had {published:.4g} when it was published; "
                "restore the version from a copy."
            )


def _stored(lineage: Lineage) -> Iterable[str]:
    """Check that the canaries equal their stored vectors."""
    for n in lineage.versions_with_embeddings:
        for side, (ids, vectors) in lineage.canaries(n).items():
            sample = CanarySample(side, ids)
            try:
                for _ in sample.through(open_embeddings(lineage.stored(side, n)).blocks()):
                    pass
            except EvergramError as error:
                yield f"Version {n}: {error}"
                continue
            stored = sample.vectors[Vocabulary(sample.ids).rows(ids)]
            # False for NaN.
            near = (stored - vectors).norm(dim=1) <= CANARY_ROUNDING * stored.norm(dim=1)
            if not bool(near.all()):
                canary = f"The canary {ids[int((~near).nonzero()[0])].as_py()!r} of the side {side}"
                what = "differs from its stored vector; restore the version from a copy"
                yield f"Version {n}: {canary} {what}."


def _folders(lineage: Lineage) -> Iterable[str]:
    """Check that there is no complete version that the record does not list."""
    if lineage.remote is not None:
        return  # a mirror may have old files
    for folder in sorted((lineage.path / "versions").glob("[0-9]*")):
        number = int(folder.name) if folder.name.isdecimal() else -1
        if number < lineage.next_version:
            continue
        try:
            created = read_manifest(folder).created
        except EvergramError:
            continue
        yield (
            f"versions/{number} holds version {number}, created {created}, but lineage.json does "
            "not list it. If a publication was killed, publish again, which removes it; otherwise "
            "first restore the newest lineage.json."
        )
