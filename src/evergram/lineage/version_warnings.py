"""What the readers of a version should know: warnings, and how metrics of a sample are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.kinds import TRANSFORMS
from evergram.errors import EvergramError
from evergram.lineage.canary_check import measure_canaries
from evergram.lineage.lineage import Lineage
from evergram.lineage.manifest import read_manifest
from evergram.lineage.publication_checks import CanaryCheck
from evergram.lineage.record import STABLE
from evergram.vector_files.open_embeddings import open_embeddings

# A metric of fewer test queries is no ground to publish on: of thirty, one query that is found or
# lost is three percent of what can be reached.
LEAST_QUERIES = 30
# A published version never changes, so its warnings are read once for each opened lineage.
_cache: WeakKeyDictionary[Lineage, dict[int, list[str]]] = WeakKeyDictionary()


def standard_errors(sampled: Any, model: str) -> dict[str, float]:
    """Return the standard error of each metric of a model that has one; none where all queries were
    ranked.

    Args:
        sampled: `sampled` of a version's metrics, or of a reading's; None where it has none.
    """
    errors = sampled.get("errors") if isinstance(sampled, Mapping) else None
    of_model = errors.get(model) if isinstance(errors, Mapping) else None
    if not isinstance(of_model, Mapping):
        return {}
    return {name: float(error) for name, error in of_model.items() if _is_error(error)}


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


def _is_error(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def version_warnings(lineage: Lineage) -> dict[int, list[str]]:
    """Return, for each version, a sentence on each thing that its readers should know: that it has
    no vectors of a part of its data, or few objects in common with the version before, that its way
    back has no certificate or errs by more than the vectors are long, that it ranks worse than
    popularity, or that nothing was left to test it on."""
    numbers = [m.version for m in lineage.versions]
    known = _cache.get(lineage, {})
    if list(known) != numbers:
        errors = lineage.step_errors
        known = {n: known.get(n) or _sentences(lineage, n, errors.get(n)) for n in numbers}
        _cache[lineage] = known
    return known


def few_test_queries(data: Mapping[str, Any]) -> str | None:
    """Return a warning that a model was tested on too few queries to be judged by; None if they
    were enough, or if their number is not recorded.

    Args:
        data: `data` of the metrics.
    """
    queries = data.get("test_queries")
    if queries is None or queries >= LEAST_QUERIES:
        return None
    dropped = [
        f"{data[name]} {why}"
        for name, why in (
            ("in_training", "are in the training data too"),
            ("trained_before", "were trained on by an earlier version"),
        )
        if data.get(name)
    ]
    left_out = f" (of the held-out pairs, {' and '.join(dropped)})" if dropped else ""
    return (
        f"It was tested on {queries} queries only{left_out}; its metrics say little below "
        f"{LEAST_QUERIES}."
    )


def objects_without_vectors(data: Mapping[str, Any]) -> str | None:
    """Return a warning that a version has no vectors of some objects of its data, as the model that
    it kept knows nothing of them; None if it has all.

    Args:
        data: `data` of the metrics.
    """
    unknown = data.get("unknown_to_model")
    if not unknown:
        return None
    return (
        f"It has no vectors of {unknown['query']:,} queries and {unknown['candidate']:,} "
        "candidates of its data: its model was kept as it was (upgrade.start = 'frozen') and knows "
        "nothing of them."
    )


def _of_the_test(metrics: Mapping[str, Any]) -> list[str]:
    if "untested" in metrics:
        return [metrics["untested"]]
    few = few_test_queries(metrics.get("data", {}))
    return [few] if few else below_popularity(metrics.get("metrics", {}))


def below_popularity(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a warning that a model ranks test pairs worse than counts do, by every metric.

    Args:
        metrics: by model ("model", "popularity"), of the same test queries.
    """
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


def _by_closed_form(recipe: Mapping[str, Any]) -> str:
    """Return, as the end of a sentence, that a transform which was fitted by gradient after its
    model has a closed form; "" where it is not so."""
    upgrade = recipe.get("upgrade", {})
    by_gradient = str(upgrade.get("method")).startswith("post-lin")
    transform = upgrade.get("transform")
    kind = transform.get("kind") if isinstance(transform, Mapping) else transform
    transform = TRANSFORMS.get(str(kind))
    if not by_gradient or transform is None or not transform.has_closed_form:
        return ""
    return "; upgrade.method = 'post-closed' gives the least error of a transform of its kind"


def _sentences(lineage: Lineage, version: int, error: StepError | None) -> list[str]:
    metrics = lineage.metrics(version)
    without = objects_without_vectors(metrics.get("data", {}))
    sentences = [*([without] if without else []), *_of_the_test(metrics)]
    if version == 0:
        return sentences
    overlap = metrics.get("overlap", {})
    if overlap.get("small"):
        sentences.append(
            f"It has only {overlap['common']} objects in common with the version before it."
        )
    if not metrics.get("alignment", {}).get("chance", {}).get("beaten", True):
        sentences.append(
            "Its transform is no better than chance: it errs as much with the objects mixed up."
        )
    if error is None:
        sentences.append(
            "Its transform was published without a measured error, and has no certificate."
        )
    elif not error.is_known:
        sentences.append(
            f"The error of its transform was measured on {error.objects} objects, and "
            f"{LEAST_OBJECTS} are needed for a certificate."
        )
    elif error.rms**2 >= error.power:
        share = 100 * error.rms / math.sqrt(error.power) if error.power else math.inf
        sentences.append(
            f"Its transform errs by {share:.0f} % of the length of the past vectors: vectors of "
            f"zeros would be nearer to them{_by_closed_form(lineage.manifest(version).recipe)}."
        )
    return sentences


# Relative; the same files give the same error but for rounding.
SAME = 1e-3


def contradictions(lineage: Lineage) -> list[str]:
    """Return a sentence on each contradiction: of transforms and canaries, of stored vectors and
    canaries, of `stable` and stored vectors, and of `lineage.json` and the folders.

    Raises: IntegrityError: a file is damaged.
    """
    return [*_transforms(lineage), *_stored(lineage), *_labels(lineage), *_folders(lineage)]


def _transforms(lineage: Lineage) -> list[str]:
    """A transform has the error on canaries that it was published with."""
    canaries = {m.version: lineage.canaries(m.version) for m in lineage.versions}
    found = []
    for before, n in pairwise(canaries):
        published = lineage.manifest(n).canary_error
        measured = measure_canaries(lineage.chain, canaries, n, before)
        now = None if measured is None else measured.relative
        if published is None or now is None:
            continue
        if not abs(now - published) <= SAME * (1 + published):
            found.append(
                f"The transform of version {n} errs by {now:.4g} on the canaries that versions "
                f"{before} and {n} kept, and by {published:.4g} when it was published: it is "
                "another transform, or the canaries are others. Restore the version from a copy."
            )
    return found


def _stored(lineage: Lineage) -> list[str]:
    """The canaries are among the stored vectors."""
    found = []
    for n in lineage.versions_with_embeddings:
        for side, (ids, vectors) in lineage.canaries(n).items():
            check = CanaryCheck(ids, vectors, side, lineage.manifest(n).dim)
            blocks = open_embeddings(lineage.stored(side, n)).blocks()
            try:
                for _ in check.through(blocks):
                    pass
            except EvergramError as error:
                found.append(f"Version {n}: {error}")
    return found


def _labels(lineage: Lineage) -> list[str]:
    stable = lineage.labels.get(STABLE)
    if stable is None or stable in lineage.versions_with_embeddings:
        return []
    return [
        f"The label {STABLE!r} is on version {stable}, whose vectors are not stored, so that no "
        "service can start. Put it on another version by 'evergram lineage promote'."
    ]


def _folders(lineage: Lineage) -> list[str]:
    """No whole version is there that the record does not know."""
    found: list[str] = []
    if lineage.address != str(lineage.path):
        return found  # a mirror also has what was read before
    for folder in sorted((lineage.path / "versions").glob("[0-9]*")):
        number = int(folder.name) if folder.name.isdecimal() else -1
        if number < lineage.next_version:
            continue
        try:
            manifest = read_manifest(folder)
        except EvergramError:
            continue
        found.append(
            f"versions/{number} holds version {number}, created {manifest.created}, and "
            "lineage.json does not list it: lineage.json is an older copy, or a publication was "
            "killed. Restore the newest lineage.json; the next publication removes the version."
        )
    return found
