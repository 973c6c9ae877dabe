"""What whoever reads a version should know of how it was published."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.lineage.lineage import Lineage

# A published version never changes: what is to be said of it is read once for each opened lineage.
_said: WeakKeyDictionary[Lineage, dict[int, list[str]]] = WeakKeyDictionary()


def version_warnings(lineage: Lineage) -> dict[int, list[str]]:
    """Return, for each version, a sentence on each thing that its readers should know: that it has
    few objects in common with the version before, that its way back has no certificate, or that
    nothing was left to test it on."""
    numbers = [m.version for m in lineage.versions]
    known = _said.get(lineage, {})
    if list(known) != numbers:
        errors = lineage.step_errors
        known = {n: known.get(n) or _sentences(lineage, n, errors.get(n)) for n in numbers}
        _said[lineage] = known
    return known


def _sentences(lineage: Lineage, version: int, error: StepError | None) -> list[str]:
    if version == 0:
        return []
    found = []
    metrics = lineage.metrics(version)
    if "untested" in metrics:
        found.append(metrics["untested"])
    overlap = metrics.get("overlap", {})
    if overlap.get("small"):
        found.append(
            f"It has only {overlap['common']} objects in common with the version before it."
        )
    if error is None:
        found.append("Its way back was published without a measured error, and has no certificate.")
    elif not error.is_known:
        found.append(
            f"Its way back was measured on {error.objects} objects, and {LEAST_OBJECTS} are needed "
            "for a certificate."
        )
    return found
