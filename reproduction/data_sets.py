"""The data sets of the papers' experiments and of benchmarks, by folder, as those of `recipes/`."""

from __future__ import annotations

from evergram.data.data_sets import DATA_SETS

DATA_SETS |= dict.fromkeys(
    ["amazon-beauty", "amazon-musical-instruments", "wikispeedia", "scifact"], ""
)
