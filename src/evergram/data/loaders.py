"""The table of loaders: the function that makes the corpus of each `data.kind` of a recipe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from evergram.data.amazon import load_amazon
from evergram.data.corpus import Corpus
from evergram.data.data_sets import existing
from evergram.data.movielens import load_movielens
from evergram.data.synthetic import generate
from evergram.data.tables import load_table
from evergram.data.wikipedia.links import load_mediawiki
from evergram.data.wikispeedia import load_wikispeedia


class DataSettings(Protocol):
    """The table [data] of a recipe; docs/recipes.md explains each key."""

    @property
    def path(self) -> str | None: ...
    @property
    def metadata(self) -> str | None: ...
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
    def queries(self) -> int: ...
    @property
    def candidates(self) -> int: ...
    @property
    def interactions(self) -> int: ...
    @property
    def drift(self) -> float: ...


# Makes a corpus from the settings and the recipe's seed.
Loader = Callable[[DataSettings, int], Corpus]


def _movielens(data: DataSettings, seed: int) -> Corpus:
    return load_movielens(_path(data))


def _amazon(data: DataSettings, seed: int) -> Corpus:
    return load_amazon(_path(data), _optional(data.metadata))


def _mediawiki(data: DataSettings, seed: int) -> Corpus:
    corpus, report = load_mediawiki(_path(data), data.prefix)
    for sentence in report.warnings():
        logging.getLogger(__name__).warning(sentence)
    return corpus


def _wikispeedia(data: DataSettings, seed: int) -> Corpus:
    return load_wikispeedia(_path(data))


def _table(data: DataSettings, seed: int) -> Corpus:
    return load_table(
        _path(data),
        query_features=_optional(data.query_features),
        candidate_features=_optional(data.candidate_features),
        shared_ids=data.shared_ids,
        columns=dict(data.columns),
    )


def _synthetic(data: DataSettings, seed: int) -> Corpus:
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
    "table": _table,
    "synthetic": _synthetic,
}

# The kinds that need `data.path`.
READ_FROM_A_PATH = tuple(kind for kind in LOADERS if kind != "synthetic")

# The values of `data.kind`.
if TYPE_CHECKING:
    LoaderKind = str
else:
    LoaderKind = Literal[tuple(LOADERS)]


def load(kind: str, data: DataSettings, seed: int) -> Corpus:
    """Return all interactions that the settings name.

    Raises: DataError: a file is missing or cannot be used.
    """
    return LOADERS[kind](data, seed)


def _path(data: DataSettings) -> Path:
    return existing(str(data.path))


def _optional(text: str | None) -> Path | None:
    return None if text is None else Path(text)
