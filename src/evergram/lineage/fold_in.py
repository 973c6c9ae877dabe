"""Vectors of new queries, from the stored candidates that each of them met."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn import functional

from evergram.errors import DataError, LineageError, ShapeError
from evergram.gramian.new_queries.query_form import Interactions, QueryForm
from evergram.ids import Lists, as_lists

Missing = Literal["error", "skip"]
# From n ids to bool [n], which of them are stored, and to their vectors [n, D].
Lookup = Callable[[list[Any]], tuple[Tensor, Tensor]]
# Ids that an error names, at most.
NAMED = 5


def fold_in(
    form: QueryForm | None,
    lookup: Lookup,
    candidates: Lists,
    weights: Lists | None = None,
    values: Lists | None = None,
    *,
    missing: Missing = "error",
    owner: str = "This version",
) -> Tensor:
    """Return the vectors of Q queries that come after training, float32 [Q, D].

    Args:
        form: of the version that `lookup` reads; None if it was published without one.
        candidates: ids that a query met; or a list of such lists, one a query.
        weights: how often each was met, above 0; by default once. An id twice is weight 2.
        values: the value of each pair, of a version that was trained on values.
        missing: "skip" leaves out ids that are not stored.
        owner: the version, to call it in an error, such as "Version 1 of films".
    Raises: LineageError: there is no form. DataError: an id is not stored, a list is empty, or
        weights or values are wrong. ShapeError: weights or values are not as long as the ids.
    Source: docs/method.md, "A new query".
    """
    if form is None:
        raise LineageError(
            f"{owner} was published without what folding in needs: it came from files, or "
            "from a training loop of your own. The next version that a recipe trains has it."
        )
    lists = as_lists(candidates, "candidates")
    ids = [key for row in lists for key in row]
    query = torch.repeat_interleave(torch.tensor([len(row) for row in lists]))
    weight = _numbers(weights, lists, "weights")
    if not bool((weight > 0).all()):
        row = int((~(weight > 0)).nonzero()[0])
        raise DataError(
            f"The weight of {ids[row]!r} is {float(weight[row]):g}; weights must be above 0."
        )
    if form.values != (values is not None):
        raise DataError(
            f"{owner} was trained on the values of pairs; give values=, one for each candidate."
            if form.values
            else f"{owner} was trained with the target 1 for every pair; leave values out."
        )
    target = _numbers(values, lists, "values")
    known, vectors = lookup(ids)
    if missing not in ("error", "skip"):
        raise DataError(f"missing is {missing!r}; it must be 'error' or 'skip'.")
    if missing == "error" and not bool(known.all()):
        unknown = [key for key, is_known in zip(ids, known.tolist(), strict=True) if not is_known]
        raise unknown_candidates(unknown, len(ids))
    empty = torch.bincount(query[known], minlength=len(lists)) == 0
    if bool(empty.any()):
        row = int(empty.nonzero()[0])
        raise DataError(
            f"Query {row + 1} of {len(lists)} has no candidate that is stored; its vector is made "
            "of at least one."
        )
    met_vectors = vectors[known]
    if form.length != "free":  # the loss saw unit rows, without the factor of `model.popularity`
        met_vectors = functional.normalize(met_vectors.double())
    met = Interactions(query[known], met_vectors, weight[known], target[known])
    folded = form.minimise(met).float()
    if not bool(folded.isfinite().all()):
        raise DataError("A vector would not be finite; give smaller weights or values.")
    return folded


def unknown_candidates(unknown: list[Any], count: int) -> DataError:
    """Return the refusal of candidates that are not stored, of `count` that were given."""
    named = ", ".join(repr(key)[:40] for key in unknown[:NAMED])
    return DataError(
        f"{len(unknown)} of {count} candidates are not stored: {named}"
        f"{', …' if len(unknown) > NAMED else ''}; leave them out, or set missing = 'skip'."
    )


def stored_lookup(block: Callable[[], tuple[pa.Array, Tensor]]) -> Lookup:
    """Return a lookup in stored ids [N] and vectors [N, D], which are read when it is called."""

    def lookup(asked: list[Any]) -> tuple[Tensor, Tensor]:
        ids, vectors = block()
        are_numbers = pa.types.is_integer(ids.type)
        # Arrow would cut 2.9 to 2.
        wrong = [x for x in asked if isinstance(x, bool | float)] if are_numbers else []
        try:
            if wrong:
                raise TypeError
            keys = pa.array(asked, ids.type)
        except (pa.ArrowException, OverflowError, TypeError):
            expected = "whole numbers" if are_numbers else "texts"
            named = f", and {wrong[0]!r} is none" if wrong else ""
            raise DataError(f"Ids of candidates are {expected} here{named}; give such.") from None
        rows = torch.from_numpy(np.array(pc.fill_null(pc.index_in(keys, value_set=ids), -1))).long()
        return rows >= 0, vectors[rows.clamp(min=0)]

    return lookup


def _numbers(numbers: Lists | None, lists: list[list[Any]], what: str) -> Tensor:
    """Return one number for each id, float64 [n]; ones where none are given."""
    sizes = [len(row) for row in lists]
    if numbers is None:
        return torch.ones(sum(sizes), dtype=torch.float64)
    rows = as_lists(numbers, what)
    if [len(row) for row in rows] != sizes:
        raise ShapeError(f"{what} are not as long as the candidates; give one for each of them.")
    flat = [x for row in rows for x in row]
    for x in flat:
        if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
            raise DataError(f"{what} has {x!r}; give finite numbers.")
    return torch.tensor(flat, dtype=torch.float64)
