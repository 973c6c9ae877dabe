"""The public splits of Gowalla and Yelp2018 as tables, for recipes and benchmarks."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import DATA, ROOT

__all__ = ["DATA", "ROOT", "available", "convert"]


def available(name: str = "gowalla") -> bool:
    return (DATA / name / "train.txt.gz").is_file()


def convert(target: Path | None = None, name: str = "gowalla") -> Path:
    """Convert the split of LightGCN and NGCF, whose lines are `user item item …`, to train.parquet
    and test.parquet (columns `query`, `candidate`) in `target` (default: build/<name>).

    Returns: the folder.
    """
    target = ROOT / "build" / name if target is None else target
    target.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        query: list[np.ndarray] = []
        candidate: list[np.ndarray] = []
        with gzip.open(DATA / name / f"{part}.txt.gz", "rt") as lines:
            for line in lines:
                user, *items = line.split()
                query.append(np.full(len(items), int(user)))
                candidate.append(np.array(items, dtype=np.int64))
        table = pa.table({"query": np.concatenate(query), "candidate": np.concatenate(candidate)})
        pq.write_table(table, target / f"{part}.parquet")
    return target


if __name__ == "__main__":
    chosen = sys.argv[1] if sys.argv[1:] else "gowalla"
    if not available(chosen):
        sys.exit(
            f"{DATA}/{chosen} does not exist; download it (see docs/data-sets.md), or set "
            f"EVERGRAM_DATA to the folder that contains {chosen}/."
        )
    print(convert(name=chosen))
