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
    is_belied,
    measure_canaries,
)
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
class Reading:
    """The quality of reading version j from the newest, k; a value that is not known is None.

    Args:
        measured: on all canaries, most of which alignment saw.
        history: the relative error at every version since j, by version: of `error`, where it is
            known, or else on all canaries.
        unseen: on the canaries that no alignment between saw; None if they are fewer than
            `LEAST_OBJECTS`.
        unknown: by name, why there is no "error" (on unseen canaries) or "certificate", or nothing
            is known of a side, "side candidate".
    """

    version: int
    certificate: Guarantee | None
    measured: Measured | None
    history: dict[int, float]
    unseen: Measured | None
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
        if not known or not witness or not is_belied(known.relative_bound, witness.relative):
            return None
        which = "objects that alignment never saw" if self.unseen else "canaries"
        return (
            f"Version {self.version}: its certificate bounds the error by "
            f"{known.relative_bound:.4g}, and on {witness.objects} {which} it is "
            f"{witness.relative:.4g}; upgrade again, and withdraw the newest version."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the reading as plain JSON, with its error first."""
        return {"error": self.error, **asdict(self)}


def diagnose_lineage(lineage: Lineage) -> list[Reading]:
    """Return a reading of each past version that is read, oldest first."""
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
        if reasons := uncertified(chain, errors, newest, j):
            unknown["certificate"] = "; ".join(reasons)
        history = {}
        for k in (n for n in canaries if j <= n <= newest):
            apart = _measure_unseen(chain, canaries, shares, k, j)[0] if k > j else None
            if found := apart or measure_canaries(chain, canaries, k, j):
                history[k] = found.relative
        # Sides that both versions have canaries of, and next to none in common.
        past, now = canaries[j], canaries[newest]
        pairs = common_canaries(past, now)
        for side in sorted(past.keys() & now.keys()):
            common = len(pairs[side][0]) if side in pairs else 0
            if common < LEAST_OBJECTS <= min(len(past[side][0]), len(now[side][0])):
                unknown[f"side {side}"] = (
                    f"the two versions have {common} of its canaries in common, and "
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
    if objects >= LEAST_OBJECTS:
        return measured, None
    return None, (
        f"the two versions have {objects} canaries in common that alignment never saw, and "
        f"{LEAST_OBJECTS} are needed"
    )


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
    if any(map(math.isnan, asked.values())):
        raise DataError("A limit is nan; it must be a number.")
    if asked and not readings:
        return ["No past version is read, so nothing can be held to a limit; leave them out."]
    sentences = []
    for reading in readings:
        known, why = reading.certificate, reading.unknown
        sentences += [reading.belied] if reading.belied else []
        silent = [name for name in why if asked and name.startswith("side ")]
        values = {"error": reading.error, "bound": None if known is None else known.relative_bound}
        for name, limit in asked.items():
            value = values[name]
            if value is None or math.isnan(value):
                silent.append(name)
            elif value > limit:
                past = f"its {name} is {value:.4g}, past the limit of {limit:g}"
                sentences.append(f"Version {reading.version}: {past}.")
        for name in silent:
            reason = why.get("certificate" if name == "bound" else name, "it was not measured")
            unknown = f"nothing is known of its {name}, and there are limits: {reason}"
            sentences.append(f"Version {reading.version}: {unknown}.")
    return sentences


# Metrics of a sample of queries.


def standard_errors(sampled: Any, model: str) -> dict[str, float]:
    """Return the standard error of each metric of a model that has one, from `sampled` of a
    version's metrics; none where all queries were ranked."""
    try:
        errors = {name: float(error) for name, error in sampled["errors"][model].items()}
    except (AttributeError, LookupError, TypeError, ValueError):
        return {}
    return {name: error for name, error in errors.items() if 0 <= error < math.inf}


def sample_sentence(sampled: Any) -> str | None:
    """Return a sentence on the sample's size and on ±; None where all queries were ranked."""
    if not isinstance(sampled, Mapping):
        return None
    drawn, sizes = "a sample of the test queries", [sampled.get(key) for key in ("queries", "of")]
    if all(isinstance(size, int) for size in sizes):
        drawn = f"{sizes[0]:,} of {sizes[1]:,} test queries, drawn at random"
    return f"Measured on {drawn}; ± is a standard error."


def with_error(value: str, error: float | None) -> str:
    """Return a metric's text, with ± its standard error if it has one."""
    return value if error is None else f"{value} ±{error:.4f}"


# Warnings.


def version_warnings(lineage: Lineage) -> dict[int, list[str]]:
    """Return, for each version, a sentence on each thing that its readers should know."""
    known = _cache.setdefault(lineage, {})
    numbers = [m.version for m in lineage.versions]
    if new := [n for n in numbers if n not in known]:
        errors = lineage.step_errors
        known.update({n: [*_warnings(lineage, n, errors.get(n))] for n in new})
    return {n: known[n] for n in numbers}


def _warnings(lineage: Lineage, version: int, error: StepError | None) -> Iterable[str]:
    metrics = lineage.metrics(version)
    data, overlap = metrics.get("data", {}), metrics.get("overlap", {})
    if unknown := data.get("unknown_to_model"):
        yield (
            f"It has no vectors of {unknown['query']:,} queries and {unknown['candidate']:,} "
            "candidates of its data, as its model was kept as it was (upgrade.start = 'frozen')."
        )
    queries = data.get("test_queries")
    if "untested" in metrics:
        yield metrics["untested"]
    elif queries is not None and queries < LEAST_QUERIES:
        yield f"It was tested on {queries} queries only; metrics say little below {LEAST_QUERIES}."
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
        measured = f"The error of its transform was measured on {error.objects} objects"
        yield f"{measured}, and {LEAST_OBJECTS} are needed for a certificate."
    elif error.rms**2 >= error.power:
        share = 100 * error.rms / math.sqrt(error.power) if error.power else math.inf
        yield f"Its transform errs by {share:.0f} % of the length of the past vectors."


def below_popularity(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a warning that a model ranks test pairs worse than counts do, by every metric."""
    model, counts = metrics.get("model", {}), metrics.get("popularity", {})
    lower = [name for name in model if name in counts and model[name] < counts[name]]
    if not lower or len(lower) < len(model):
        return []
    name = lower[0]
    return [
        f"It ranks test pairs worse than popularity does, by every metric ({name} is "
        f"{model[name]:.4f}, and {counts[name]:.4f} by popularity); see 'evergram tune'."
    ]


# Contradictions.


def contradictions(lineage: Lineage) -> list[str]:
    """Return a sentence on each contradiction: of transforms and canaries, of stored vectors and
    canaries, of `stable` and stored vectors, and of `lineage.json` and the folders."""
    found = [*_transforms(lineage), *_stored(lineage), *_folders(lineage)]
    stable = lineage.labels.get(STABLE)
    if stable is not None and stable not in lineage.versions_with_embeddings:
        what = f"The label {STABLE!r} is on version {stable}, whose vectors are not stored"
        found.append(f"{what}; move it by 'evergram lineage promote'.")
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
                f"The transform of version {n} errs by {measured.relative:.4g} on canaries of "
                f"versions {before} and {n}, and by {published:.4g} when it was published; restore "
                "the version from a copy."
            )


def _stored(lineage: Lineage) -> Iterable[str]:
    """The canaries are among the stored vectors."""
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
            # A NaN is at no distance.
            near = (stored - vectors).norm(dim=1) <= CANARY_ROUNDING * stored.norm(dim=1)
            if not bool(near.all()):
                canary = f"The canary {ids[int((~near).nonzero()[0])].as_py()!r} of the side {side}"
                what = "is not the vector that is stored; restore the version from a copy"
                yield f"Version {n}: {canary} {what}."


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
            "not list it; restore the newest lineage.json, as a publication removes the version."
        )
