"""Sources in memory: the corpus of any loader, and Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from evergram.data.data_sets import whole_path
from evergram.data.reading.interaction_source import InteractionSource
from evergram.data.reading.table_stream import ROWS
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.data.columnar.features import Side
    from evergram.data.corpus import Corpus


@dataclass(frozen=True)
class LoaderSettings:
    """What a loader is told, as the table [data] of a recipe; see `evergram.data.loaders`."""

    path: str
    prefix: str | None = None
    metadata: str | None = None
    minimum_products: int = 1
    described_only: bool = False
    query_features: str | None = None
    candidate_features: str | None = None
    columns: Mapping[Any, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    shared_ids: bool = False
    bad_rows: Literal["refuse", "drop"] = "refuse"
    queries: int = 0
    candidates: int = 0
    interactions: int = 0
    drift: float = 0.0


def corpus_of_kind(kind: str, sources: Sequence[str | Path], prefix: str | None) -> Corpus:
    """Return the corpus that a loader makes of a file or folder.

    Raises: DataError: there is no such loader, more than one source, or one that it cannot read.
    """
    from evergram.data.loaders import READ_FROM_A_PATH, load

    kinds = [one for one in READ_FROM_A_PATH if one not in ("table", "prepared")]
    if kind not in kinds:
        raise DataError(
            f"kind (--kind) is {kind!r}; it is one of: table, {', '.join(kinds)}"
            f"{did_you_mean(kind, ['table', *kinds])}."
        )
    return load(kind, LoaderSettings(str(only_path(kind, sources)), prefix), 0)


def only_path(kind: str, sources: Sequence[str | Path]) -> Path:
    """Return the file or folder that a loader reads. Raises: DataError: more than one is named."""
    if len(sources) != 1:
        raise DataError(
            f"The kind {kind} reads one file or folder, and {len(sources)} sources are named; name "
            "one."
        )
    return whole_path(str(sources[0]), Path())


def source_of_corpus(corpus: Corpus) -> InteractionSource:
    """Return the interactions of a corpus, by their external ids."""
    table = corpus.interactions
    sides = {"query": corpus.queries, "candidate": corpus.candidates}

    def read() -> Iterator[pa.RecordBatch]:
        for batch in table.to_batches(max_chunksize=ROWS):
            columns = {name: batch[name] for name in batch.schema.names}
            for name, side in sides.items():
                columns[name] = side.vocabulary.keys.take(batch[name])
            yield pa.record_batch(columns)

    return InteractionSource(repr(corpus), {n: n for n in table.column_names}, read)


def features_of(corpus: Corpus) -> dict[str, Side]:
    """Return the sides of a corpus that have features; one side for both if they are the same.

    Raises: DataError: ids are shared, and the sides have different features of one name.
    """
    sides = {"query": corpus.queries, "candidate": corpus.candidates}
    sides = {name: side for name, side in sides.items() if side.features}
    if not corpus.shared_ids or len(sides) < 2:
        return sides
    query, candidate = (sides[name].features for name in ("query", "candidate"))
    for name in query.keys() & candidate.keys():
        one, other = query[name], candidate[name]
        same = one.vocabulary.same_keys(other.vocabulary) and all(
            bool((a == b).all()) if len(a) == len(b) else False
            for a, b in ((one.offsets, other.offsets), (one.indices, other.indices))
        )
        if not same:
            raise DataError(
                f"The feature {name!r} differs between queries and candidates, which share their "
                "ids; give it another name on one side."
            )
    if query.keys() == candidate.keys():
        sides["candidate"] = sides["query"]
    elif query.keys() & candidate.keys():
        raise DataError(
            "Queries and candidates, which share their ids, have some features in common and some "
            "not; give both sides all of them."
        )
    return sides
