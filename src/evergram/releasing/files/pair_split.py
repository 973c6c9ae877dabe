"""Choose which objects of two files are fitted to, measured on and looked up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.closed_form_fit import pairs_needed
from evergram.compatibility.row_groups import Groups, pair_groups
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError
from evergram.lineage.unseen_objects import id_hash

__all__ = [
    "Groups",
    "id_hashes",
    "pair_groups",
    "refuse_few",
    "sampled_rows",
]

# Queries whose neighbours are looked up, and the catalogue that they are looked up in.
QUERIES, CATALOGUE = 1000, 20_000


def id_hashes(ids: pa.Array, size: int = 1 << 20) -> Tensor:
    """Return `id_hash` of many ids, a part at a time: Python's strings are large."""
    parts = range(0, len(ids), size)
    return torch.cat([id_hash(Vocabulary(ids.slice(start, size))) for start in parts])


def refuse_few(
    groups: Groups,
    dims: tuple[int, int],
    kind: str,
    rank: int,
    *,
    allow_small: bool = False,
    vectors: Tensor | None = None,
) -> bool:
    """Refuse too few pairs to fit a transform, or to measure its error on.

    Args:
        dims: old and new.
        allow_small: go on with few; nothing can be done with next to none.
        vectors: a hash of each new vector, int64 [N]: objects that share one then count once. None
            before the files are read.
    Returns: whether they are too few, and were allowed.
    Raises: DataError: with what could be done.
    """
    keys = torch.arange(len(groups.held)) if vectors is None else vectors
    held, fitted = (len(np.unique(keys[rows].numpy())) for rows in (groups.held, ~groups.held))
    what = "common objects" if vectors is None else "different new vectors of common objects"
    needed = pairs_needed(kind, *dims, rank)
    if fitted >= needed and held >= LEAST_OBJECTS and bool(groups.chosen.any()):
        return False
    some = all(bool(rows.any()) for rows in (groups.held, groups.chosen, groups.seen))
    if some and allow_small:
        return True
    option = ", or go on with so few by --allow-small-overlap" if some else ""
    if fitted < needed:
        raise DataError(
            f"{fitted} {what} are there to fit to ({held} more are held out), and a "
            f"{kind} transform from {dims[1]} to {dims[0]} dims needs {needed}; "
            f"give files with more objects in common{_instead(fitted, dims)}{option}."
        )
    again = "" if vectors is None else "leave out objects that are there under another id, too, or "
    raise DataError(
        f"Only {held} of {held + fitted} {what} are held out to measure on, and "
        f"{LEAST_OBJECTS} are needed; {again}raise --held-out{option}."
    )


def _instead(fitted: int, dims: tuple[int, int]) -> str:
    """Return, as the end of a sentence, the transforms that so many pairs are enough for."""
    ranks = [r for r in range(1, min(dims)) if pairs_needed("low_rank", *dims, r) <= fitted]
    advice = [f"--transform low_rank --rank {ranks[-1]}"] if ranks else []
    advice += ["--transform orthogonal"] if pairs_needed("orthogonal", *dims) <= fitted else []
    return f", or use {' or '.join(advice)}" if advice else ""


def sampled_rows(hashes: Tensor, held: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return held-out rows to look up, and other rows, held out or not, to look among."""
    order = torch.argsort(hashes, stable=True)
    queries = order[held[order]][:QUERIES]
    drawn = torch.randperm(len(hashes), generator=torch.Generator().manual_seed(seed))
    return queries, drawn[~torch.isin(drawn, queries)][:CATALOGUE]
