"""The table of loaders: the function that makes the corpus of each `data.kind` of a recipe.

Importing this does not import torch: each entry imports its loader when it is called, so that a
recipe is checked at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from evergram.data.data_sets import existing
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus


class DataSettings(Protocol):
    """The table [data] of a recipe; docs/recipes.md explains each key."""

    path: str | None
    metadata: str | None
    minimum_products: int
    described_only: bool
    prefix: str | None
    query_features: str | None
    candidate_features: str | None
    shared_ids: bool
    bad_rows: Literal["refuse", "drop"]
    queries: int
    candidates: int
    interactions: int
    drift: float

    @property
    def columns(self) -> Mapping[Any, str]: ...
    @property
    def weights(self) -> Mapping[str, float]: ...


@dataclass
class LoaderSettings:
    """`DataSettings` outside of a recipe."""

    path: str | None
    metadata: str | None = None
    minimum_products: int = 1
    described_only: bool = False
    prefix: str | None = None
    query_features: str | None = None
    candidate_features: str | None = None
    shared_ids: bool = False
    bad_rows: Literal["refuse", "drop"] = "refuse"
    queries: int = 0
    candidates: int = 0
    interactions: int = 0
    drift: float = 0.0
    columns: Mapping[Any, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


# Makes a corpus from the settings and the recipe's seed.
Loader = Callable[[DataSettings, int], "Corpus"]


def _movielens(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.movielens import load_movielens

    return load_movielens(path_of(data))


def _amazon(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.amazon import load_amazon

    return load_amazon(
        path_of(data),
        None if data.metadata is None else Path(data.metadata),
        minimum_products=data.minimum_products,
        described_only=data.described_only,
    )


def _mediawiki(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.wikipedia.dump import load_mediawiki

    corpus, report = load_mediawiki(path_of(data), data.prefix)
    for sentence in report.warnings():
        logging.getLogger(__name__).warning(sentence)
    return corpus


def _wikispeedia(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.wikipedia.wikispeedia import load_wikispeedia

    return load_wikispeedia(path_of(data))


def _adjacency_list(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.tables import load_adjacency_list

    return load_adjacency_list(path_of(data), data.bad_rows)


def _table(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.tables import load_table

    return load_table(
        path_of(data),
        query_features=data.query_features,
        candidate_features=data.candidate_features,
        shared_ids=data.shared_ids,
        columns=dict(data.columns),
        weights=data.weights,
        bad_rows=data.bad_rows,
    )


def _prepared(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.prepared.mapped_corpus import load_prepared

    return load_prepared(path_of(data))


def _synthetic(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.synthetic import generate

    return generate(
        queries=data.queries,
        candidates=data.candidates,
        interactions=data.interactions,
        drift=data.drift,
        seed=seed,
    ).corpus


# In the order in which errors list them. A new loader is one line here: docs/extend/loader.md.
LOADERS: dict[str, Loader] = {
    "movielens": _movielens,
    "amazon": _amazon,
    "mediawiki": _mediawiki,
    "wikispeedia": _wikispeedia,
    "adjacency_list": _adjacency_list,
    "table": _table,
    "prepared": _prepared,
    "synthetic": _synthetic,
}

# The package's kinds that need `data.path`, and whose corpus does not depend on the seed.
READ_FROM_A_PATH = tuple(kind for kind in LOADERS if kind != "synthetic")


def load(kind: str, data: DataSettings, seed: int) -> Corpus:
    """Return all interactions that the settings name.

    Raises: DataError: a file is missing or cannot be used; or a loader returned no corpus.
    """
    from evergram.data.corpus import Corpus

    corpus = LOADERS[kind](data, seed)
    if not isinstance(corpus, Corpus):
        raise DataError(
            f"The loader of {kind!r} returned {type(corpus).__name__}; it must return a Corpus, "
            "and Corpus.of makes one of a table."
        )
    return corpus


def path_of(data: DataSettings) -> Path:
    """Return `data.path`. Raises: DataError: it is not set, or there is no such file or folder."""
    if data.path is None:
        raise DataError("The data is read from data.path, which is not set; set it in [data].")
    return existing(data.path)
