"""Values that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain_numbers(value: Any) -> Any:
    """Return the same value with None for every NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {k: plain_numbers(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
