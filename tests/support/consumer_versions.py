"""Versions and labels that consumers are pinned to, and a probe, without a lineage."""

from __future__ import annotations

from evergram.errors import UnknownVersionError

LABELS = {"stable": 1, "newest": 2}


def resolve(what: str) -> int:
    """Three versions and their labels."""
    digits = what.removeprefix("v")
    if digits.isdigit() and int(digits) < 3:
        return int(digits)
    if what not in LABELS:
        raise UnknownVersionError(f"no {what}")
    return LABELS[what]
