"""Skip tests where an optional library is not installed, without importing it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need(*packages: str) -> None:
    """Skip the calling test or module if one of the packages is missing."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
