"""Read what a version's metrics say of the sample of queries that they are of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


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
