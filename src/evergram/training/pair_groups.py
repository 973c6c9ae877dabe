"""Which objects of two files are fitted to, measured on, looked up and kept."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.closed_form import pairs_needed
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError
from evergram.training.checkpoint import CANARIES, id_hash

# What the neighbours are looked up for, and among.
QUERIES, CATALOGUE = 1000, 20_000
# Fewer held-out pairs than this say nothing.
LEAST_HELD_OUT = 20
# Of the pairs that are not held out, the share on which the ridge is chosen.
CHOOSING = 0.1


@dataclass(frozen=True)
class Groups:
    """Rows of a pairing, each bool [N]: `seen` is fitted to, on `chosen` the ridge is chosen (and
    they are then fitted to), `held` is measured on."""

    seen: Tensor
    chosen: Tensor
    held: Tensor


def id_hashes(ids: pa.Array, size: int = 1 << 20) -> Tensor:
    """`id_hash` of many ids, a part at a time: Python's strings are large."""
    parts = range(0, len(ids), size)
    return torch.cat([id_hash(Vocabulary(ids.slice(start, size))) for start in parts])


def pair_groups(hashes: Tensor, share: float) -> Groups:
    """By the hash of the id alone: the same objects in every version, on every machine."""
    held = hashes < share * 2**32
    chosen = ~held & (hashes < (share + (1 - share) * CHOOSING) * 2**32)
    return Groups(~held & ~chosen, chosen, held)


def refuse_few(groups: Groups, old_dim: int, new_dim: int, kind: str, rank: int) -> None:
    """Raises: DataError: too few pairs to fit, or to measure on; with what could be done."""
    held, fitted = int(groups.held.sum()), int((~groups.held).sum())
    needed = pairs_needed(kind, old_dim, new_dim, rank)
    if fitted < needed:
        ranks = [
            r
            for r in range(1, min(old_dim, new_dim))
            if pairs_needed("low_rank", old_dim, new_dim, r) <= fitted
        ]
        turn = pairs_needed("orthogonal", old_dim, new_dim)
        advice = [f"--transform low_rank --rank {ranks[-1]}"] if ranks else []
        advice += ["--transform orthogonal"] if turn <= fitted else []
        instead = f", or use {' or '.join(advice)}" if advice else ""
        raise DataError(
            f"{fitted} common objects are there to fit to ({held} more are held out), and a "
            f"{kind} transform from {new_dim} to {old_dim} dims needs {needed}; "
            f"give files with more objects in common{instead}."
        )
    if held < LEAST_HELD_OUT or not bool(groups.chosen.any()):
        raise DataError(
            f"Only {held} of {held + fitted} common objects are held out to measure on, and "
            f"{LEAST_HELD_OUT} are needed; raise --held-out."
        )


def sampled_rows(hashes: Tensor, held: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Held-out rows to look up, and rows of others, held out or not, to look among."""
    order = torch.argsort(hashes, stable=True)
    queries = order[held[order]][:QUERIES]
    drawn = torch.randperm(len(hashes), generator=torch.Generator().manual_seed(seed))
    return queries, drawn[~torch.isin(drawn, queries)][:CATALOGUE]


def canary_rows(
    ids: pa.Array, hashes: Tensor, held: Tensor, past: pa.Array | None = None
) -> Tensor:
    """Held-out rows whose vectors are kept for ever: past canaries first, then by hash."""
    order = torch.argsort(hashes, stable=True)
    order = order[held[order]]
    if past is not None:
        rows = Vocabulary(ids.cast(pa.string())).rows(past)
        rows = rows[rows >= 0]
        rows = rows[held[rows]]
        order = torch.cat([rows, order[~torch.isin(order, rows)]])
    return order[:CANARIES]
