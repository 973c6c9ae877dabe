"""LanceDB's index of a version's vectors: lists of them whole, as bytes or as bits, and its search.

The name of an index of codes says what they are, so both are of one version of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isqrt
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.errors import DataError
from evergram.stores.index_codes import (
    FLOAT32,
    IndexCodes,
    looked_at,
    tell_apart,
    too_few_found,
)
from evergram.stores.lance.lance_folder import best_of, ranked, vectors_of
from evergram.stores.rows import Floats, Space

# Vectors are in √n lists, and a search looks into the nearest fifth of them, and into lists with
# so many rows for each that is wanted.
PROBED = 0.2
ROWS_A_RESULT = 20

# So many stored rows are the queries by which codes are measured; codes must find this share of the
# ten best.
SAMPLE, NEAREST, RECALL = 100, 10, 0.95

COLUMN, WHOLE = "vector", "vector_idx"


@dataclass(frozen=True)
class LanceForm:
    """An index of one kind of codes.

    Args:
        config: its class in `lancedb.index`.
        step: what the length of vectors must be a multiple of.
    """

    config: str
    step: int


# binary is RaBitQ (Gao and Long, SIGMOD 2024).
FORMS = {
    FLOAT32.kind: LanceForm("IvfFlat", 1),
    "int8": LanceForm("IvfSq", 1),
    "binary": LanceForm("IvfRq", 8),
}


def check_codes(codes: IndexCodes, spaces: Sequence[Space], shown: str) -> None:
    """Refuse codes that LanceDB cannot make of the vectors of some spaces.

    Args:
        shown: how errors name the store.
    Raises: DataError: it has no such codes, or not in the version that is installed, or not for
        vectors of this length.
    """
    import lancedb.index

    codes.check(list(FORMS), shown)
    form = FORMS[codes.kind]
    if not hasattr(lancedb.index, form.config):
        raise DataError(
            f"LanceDB {lancedb.__version__} is installed, which has no index of {codes.kind}: "
            "pip install --upgrade lancedb."
        )
    for space in spaces:
        if space.dim % form.step:
            raise DataError(
                f"Rows of version {space.version} in {shown} have {space.dim} numbers, and LanceDB "
                f"makes an index of {codes.kind} of a multiple of {form.step} only; take int8."
            )


def codes_of(table: Any) -> IndexCodes:
    """Return the codes of a table's index; FLOAT32 if it has one of whole vectors, or none."""
    several = [codes for index in table.list_indices() if (codes := _codes(index.name))]
    return max(several, key=lambda codes: codes.oversample, default=FLOAT32)


def build_index(table: Any, space: Space, codes: IndexCodes) -> None:
    """Build the index of a table by inner product, in place of the one that it has.

    Raises: DataError: codes do not find enough of the best; the index is then the one before.
    """
    import lancedb.index

    name = WHOLE if codes.whole else f"{COLUMN}_{codes.kind}_{codes.oversample}"
    make = getattr(lancedb.index, FORMS[codes.kind].config)
    config = make(distance_type="dot", num_partitions=isqrt(table.count_rows()))
    before = table.version
    table.create_index(COLUMN, config=config, replace=True, name=name)
    # If the builder is killed before, LanceDB has two to choose from, and either will do.
    for index in table.list_indices():
        if list(index.columns) == [COLUMN] and index.name != name:
            table.drop_index(index.name)
    if codes.whole:
        return
    share = _share_found(table, codes)
    if share < RECALL:
        table.restore(before)
        raise too_few_found(codes, share, RECALL, space.version)


def nearest(
    table: Any, query: Floats, k: int, codes: IndexCodes, count: int
) -> tuple[pa.Array, Floats]:
    """Return the ids [≤k] of the rows with the largest inner products, and the products.

    Args:
        query: [D].
        codes: of the table's index.
        count: the table's rows, at least 1.
    """
    lists = isqrt(count) + 1
    probes = ceil(max(PROBED * lists, lists * min(1.0, k * ROWS_A_RESULT / count)))
    if codes.whole:
        ids, scores, _ = _search(table, query, min(k, count), probes)
        return ranked(ids, scores, k)
    chosen = _by_codes(table, query, k, codes, count, probes)
    return _all_compared(table, query, k) if chosen is None else chosen


def _by_codes(
    table: Any, query: Floats, k: int, codes: IndexCodes, count: int, probes: int
) -> tuple[pa.Array, Floats] | None:
    """Return the best of the rows with the largest estimates; None where a row that was left out
    may be better."""
    for size in looked_at(k, codes.oversample):
        ids, scores, estimates = _search(table, query, min(size, count), probes)
        # Where the lists have fewer rows, none was left out.
        if len(ids) < size or tell_apart(scores, estimates, k):
            return ranked(ids, scores, k)
    return None


def _search(table: Any, query: Floats, size: int, probes: int) -> tuple[pa.Array, Floats, Floats]:
    """Return the rows that the index chooses: their ids, their products, and its estimates."""
    search = table.search(query).distance_type("dot").limit(size)
    hits = _columns(search.minimum_nprobes(probes).maximum_nprobes(0))
    # Its distance is 1 - score, which loses digits of a small score.
    return _ids(hits), vectors_of(hits) @ query, 1 - hits["_distance"].to_numpy()


def _all_compared(table: Any, query: Floats, k: int) -> tuple[pa.Array, Floats]:
    hits = _columns(table.search(query).distance_type("dot").bypass_vector_index().limit(k))
    return best_of(_ids(hits), vectors_of(hits), query, k)


def _columns(search: Any) -> pa.Table:
    return search.select(["id", COLUMN, "_distance"]).to_arrow()


def _ids(hits: pa.Table) -> pa.Array:
    return hits["id"].combine_chunks()


def _share_found(table: Any, codes: IndexCodes) -> float:
    """Return which share of the ten best codes find for stored rows as queries. A query that they
    do not answer counts as missed: all rows are compared for it."""
    count = table.count_rows()
    drawn = np.random.default_rng(0).permutation(count)[:SAMPLE]
    rows = table.take_offsets(sorted(drawn.tolist())).select([COLUMN]).to_arrow()
    matched, wanted = 0, 0
    for query in vectors_of(rows):
        _, best = _all_compared(table, query, NEAREST)
        answer = _by_codes(table, query, NEAREST, codes, count, isqrt(count) + 1)
        wanted += len(best)
        if answer is not None:
            # Rows with the same vector are as good as one another.
            matched += int((answer[1] >= best[-1]).sum())
    return matched / wanted


def _codes(name: str) -> IndexCodes | None:
    """Return the codes that the name of an index says; None if it says none."""
    for kind in FORMS:
        oversample = name.removeprefix(f"{COLUMN}_{kind}_")
        if oversample != name and oversample.isdecimal():
            return IndexCodes(kind, int(oversample))
    return None
