"""Distances of pgvector as SQL, with quoted names, and the scores of searches that they are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from psycopg.sql import SQL, Composed, Identifier, Literal

from evergram.stores.store import Floats

# A row of zeros has no cosine, and the distance is NaN: its cosine is 0.
DISTANCES = {
    "ip": "({stored} <#> {query})",
    "cosine": "coalesce(nullif({stored} <=> {query}, 'NaN'), 1)",
    "l2": "({stored} <-> {query})",
}


def name_of(column: str) -> Identifier:
    """Return a column's name as it is written in a statement with parameters, where % is %%."""
    return Identifier(column.replace("%", "%%"))


def distance_of(metric: str, column: str, dim: int) -> Composed:
    """Return the distance of a column of vectors [D] to a parameter, smallest first.

    Args:
        metric: "ip", "cosine" or "l2".
    """
    # Half precision is compared as what it is in single precision.
    cast = SQL("vector({dim})").format(dim=Literal(dim))
    return SQL(DISTANCES[metric]).format(
        stored=name_of(column) + SQL("::") + cast, query=SQL("%s::") + cast
    )


def scores_of(metric: str, distances: npt.NDArray[np.float64]) -> Floats:
    """Return the scores [n] of distances [n]: ⟨q, z⟩, the cosine, or −‖q − z‖²."""
    scores = {"ip": -distances, "cosine": 1 - distances, "l2": 0.0 - distances**2}[metric]
    return scores.astype(np.float32)
