"""The figures that a paper prints, kept as JSON beside its recipes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@cache
def printed(paper: str) -> dict[str, Any]:
    """Return all figures that a folder's papers print, by their name there.

    Args:
        paper: the folder, "gramian" or "bc".
    """
    values: dict[str, Any] = json.loads((HERE / paper / "printed.json").read_text())
    return values
