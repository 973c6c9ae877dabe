"""Measurements of this package, by itself and beside others; `python -m benchmarks` lists them.

Real data is read from $EVERGRAM_DATA, from a folder data/ in the repository, or from a folder
shared/data beside it, whichever exists first; docs/data-sets.md says how to download it.
"""

from __future__ import annotations

import os
from pathlib import Path

from reproduction import loaders as loaders  # adds the kinds of data of some recipes

ROOT = Path(__file__).parents[1]


def find_data() -> Path:
    """Return the folder of real data; `data` in the repository where there is none."""
    here = ROOT / "data"
    if chosen := os.environ.get("EVERGRAM_DATA"):
        return Path(chosen)
    return next((f for f in (here, ROOT.parent / "shared" / "data") if f.is_dir()), here)


DATA = find_data()
# Recipes say $EVERGRAM_DATA, and some sections run the command in processes of their own.
os.environ.setdefault("EVERGRAM_DATA", str(DATA))
