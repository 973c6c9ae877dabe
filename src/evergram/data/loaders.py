"""The table of loaders: the function that makes the corpus of each `data.kind` of a recipe.

Importing this does not import torch: each entry imports its loader when it is called, so that a
recipe is checked at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from evergram.data.data_sets import existing
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus


class DataSettings(Protocol):
    """The table [data] of a recipe; docs/recipes.md explains each key."""

    @property
    def path(self) -> str | None: ...
    @property
    def metadata(self) -> str | None: ...
    @property
    def minimum_products(self) -> int: ...
    @property
    def described_only(self) -> bool: ...
    @property
    def prefix(self) -> str | None: ...
    @property
    def query_features(self) -> str | None: ...
    @property
    def candidate_features(self) -> str | None: ...
    @property
    def columns(self) -> Mapping[Any, str]: ...
    @property
    def shared_ids(self) -> bool: ...
    @property
    def weights(self) -> Mapping[str, float]: ...
    @property
    def bad_rows(self) -> Literal["refuse", "drop"]: ...
    @property
    def queries(self) -> int: ...
    @property
    def candidates(self) -> int: ...
    @property
    def interactions(self) -> int: ...
    @property
    def drift(self) -> float: ...


# Makes a corpus from the settings and the recipe's seed.
Loader = Callable[[DataSettings, int], "Corpus"]


def _movielens(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.movielens import load_movielens

    return load_movielens(path_of(data))


def _amazon(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.amazon import load_amazon

    return load_amazon(
        path_of(data),
        _optional(data.metadata),
        minimum_products=data.minimum_products,
        described_only=data.described_only,
    )


def _mediawiki(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.wikipedia.links import load_mediawiki

    corpus, report = load_mediawiki(path_of(data), data.prefix)
    for sentence in report.warnings():
        logging.getLogger(__name__).warning(sentence)
    return corpus


def _wikispeedia(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.wikispeedia import load_wikispeedia

    return load_wikispeedia(path_of(data))


def _adjacency_list(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.tables import load_adjacency_list

    return load_adjacency_list(path_of(data), data.bad_rows)


def _table(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.tables import load_table

    return load_table(
        path_of(data),
        query_features=_optional(data.query_features),
        candidate_features=_optional(data.candidate_features),
        shared_ids=data.shared_ids,
        columns=dict(data.columns),
        weights=data.weights,
        bad_rows=data.bad_rows,
    )


def _prepared(data: DataSettings, seed: int) -> Corpus:
    from evergram.data.prepared.prepared_corpus import load_prepared

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


def _optional(text: str | None) -> Path | None:
    return None if text is None else Path(text)
