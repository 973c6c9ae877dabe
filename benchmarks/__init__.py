"""Benchmarks of this package, alone and against other libraries; `python -m benchmarks --list`.

Real data is read from $EVERGRAM_DATA if set, otherwise from data/ in the repository or shared/data
next to the repository. docs/data-sets.md says how to download it.
"""

from __future__ import annotations

import os
from pathlib import Path

from reproduction import loaders as loaders  # registers the data kinds that some recipes use

ROOT = Path(__file__).parents[1]


def find_data() -> Path:
    """Return the folder of real data, or `data` in the repository if there is none."""
    here = ROOT / "data"
    if chosen := os.environ.get("EVERGRAM_DATA"):
        return Path(chosen)
    return next((f for f in (here, ROOT.parent / "shared" / "data") if f.is_dir()), here)


DATA = find_data()
# Recipes refer to $EVERGRAM_DATA, and some sections run `evergram` in subprocesses.
os.environ.setdefault("EVERGRAM_DATA", str(DATA))
