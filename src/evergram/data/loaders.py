"""The table of loaders: the keys of each `data.kind` of a recipe, and how to load its corpus.

Importing this module does not import torch, so that checking a recipe is fast: each class imports
its loader in `load`.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from evergram.data.data_sets import existing
from evergram.errors import DataError
from evergram.kinds import Finite, Kinds, KindSettings, Needs, Positive, Trait, traits_where

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus

# The name of a file's column, by its role.
Columns = dict[
    Literal["query", "candidate", "value", "time", "weight", "query_id", "candidate_id"], str
]
# Bad rows raise an error that counts them, or are left out with a warning.
BadRows = Literal["refuse", "drop"]


class DataSettings(KindSettings):
    """The settings of one kind of data; docs/recipes.md explains each key.

    Paths are relative to the recipe's folder, or begin with `$EVERGRAM_DATA/`, the folder of data
    sets.
    """

    # True if the corpus depends on the recipe's seed.
    is_drawn: ClassVar[bool] = True

    @abstractmethod
    def load(self, seed: int) -> Corpus:
        """Return all interactions."""


class NamedData(DataSettings):
    """Data that a recipe names; interactions with a value below `minimum_value` are left out."""

    minimum_value: Finite | None = None


class PathData(NamedData):
    """Data in a file or folder."""

    path: str
    is_drawn = False

    @property
    def source(self) -> Path:
        return existing(self.path)


class MovieLensData(PathData):
    """MovieLens, as a folder or zip file."""

    kind: Literal["movielens"] = "movielens"

    def load(self, seed: int) -> Corpus:
        from evergram.data.tables import load_movielens

        return load_movielens(self.source)


class AdjacencyListData(PathData):
    """A text file: each line has a query and its candidates, separated by spaces."""

    kind: Literal["adjacency_list"] = "adjacency_list"
    bad_rows: BadRows = "refuse"

    def load(self, seed: int) -> Corpus:
        from evergram.data.tables import load_adjacency_list

        return load_adjacency_list(self.source, self.bad_rows)


class TableData(PathData):
    """A table of interactions in Parquet, Arrow or CSV, with files of features.

    `columns`: the file's column names; `test`: the file of test pairs.
    """

    kind: Literal["table"] = "table"
    columns: Columns = Field(default={})
    bad_rows: BadRows = "refuse"
    test: Annotated[str | None, Needs(Trait.GIVEN_SPLIT)] = None
    query_features: str | None = None
    candidate_features: str | None = None
    shared_ids: bool = False

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where({Trait.TEST_FILE: self.test is not None})

    def load(self, seed: int) -> Corpus:
        from evergram.data.tables import load_table

        return load_table(
            self.source,
            query_features=self.query_features,
            candidate_features=self.candidate_features,
            shared_ids=self.shared_ids,
            columns={str(role): name for role, name in self.columns.items()},
            bad_rows=self.bad_rows,
        )


class PairsFile(DataSettings):
    """Data without a table of its own: these keys describe the file of test pairs."""

    columns: Annotated[Columns, Needs(Trait.GIVEN_SPLIT)] = Field(default={})
    bad_rows: Annotated[BadRows, Needs(Trait.GIVEN_SPLIT)] = "refuse"
    test: Annotated[str | None, Needs(Trait.GIVEN_SPLIT)] = None

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where({Trait.TEST_FILE: self.test is not None})


class PreparedData(PairsFile, PathData):
    """A folder written by `evergram prepare`."""

    kind: Literal["prepared"] = "prepared"

    def load(self, seed: int) -> Corpus:
        from evergram.data.prepared.mapped_corpus import load_prepared

        return load_prepared(self.source)


class PythonData(PairsFile):
    """A corpus passed in Python, which a recipe cannot name."""

    kind: Literal["python"] = "python"

    def load(self, seed: int) -> Corpus:
        raise DataError(
            "data.kind = 'python' stands for a corpus passed in Python, which a recipe cannot "
            "contain; pass it, as in train(recipe, corpus), or name files in [data]."
        )


class SyntheticData(NamedData):
    """A synthetic corpus with known ground truth."""

    kind: Literal["synthetic"] = "synthetic"
    queries: Positive = 2000
    candidates: Positive = 1000
    interactions: Positive = 60_000

    def load(self, seed: int) -> Corpus:
        from evergram.data.synthetic import generate

        return generate(
            queries=self.queries,
            candidates=self.candidates,
            interactions=self.interactions,
            seed=seed,
        ).corpus


# Errors list them in this order. To add a loader, write one class: docs/extend/loader.md.
LOADERS: Kinds[DataSettings] = Kinds(
    "data",
    (
        MovieLensData,
        AdjacencyListData,
        TableData,
        PreparedData,
        SyntheticData,
        PythonData,
    ),
    required=True,
)


def path_kinds() -> list[str]:
    return [kind for kind, settings in LOADERS.items() if issubclass(settings, PathData)]
