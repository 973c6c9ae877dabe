"""Warnings of a version, which its readers should see."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.lineage.lineage import Lineage

# A published version never changes, so its warnings are read once for each opened lineage.
_cache: WeakKeyDictionary[Lineage, dict[int, list[str]]] = WeakKeyDictionary()


def version_warnings(lineage: Lineage) -> dict[int, list[str]]:
    """Return the warnings of each version, in sentences: that it has few objects in common with the
    version before, that its transform has no certificate, or that it could not be tested."""
    numbers = [m.version for m in lineage.versions]
    known = _cache.get(lineage, {})
    if list(known) != numbers:
        errors = lineage.step_errors
        known = {n: known.get(n) or _sentences(lineage, n, errors.get(n)) for n in numbers}
        _cache[lineage] = known
    return known


def _sentences(lineage: Lineage, version: int, error: StepError | None) -> list[str]:
    if version == 0:
        return []
    sentences = []
    metrics = lineage.metrics(version)
    if "untested" in metrics:
        sentences.append(metrics["untested"])
    overlap = metrics.get("overlap", {})
    if overlap.get("small"):
        sentences.append(
            f"It has only {overlap['common']} objects in common with the version before it."
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
    return sentences
