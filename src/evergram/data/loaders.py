"""The table of loaders: for each `data.kind` of a recipe, its keys and how its corpus is made.

Importing this does not import torch: each class imports its loader when it loads, so that a recipe
is checked at once.
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

# The name of a column in a file, by what it holds.
Columns = dict[
    Literal["query", "candidate", "value", "time", "weight", "query_id", "candidate_id"], str
]
# What is done about rows that cannot be used: an error counts them, or they are left out with a
# warning.
BadRows = Literal["refuse", "drop"]


class DataSettings(KindSettings):
    """The settings of one kind of data; docs/recipes.md explains each key.

    Paths are relative to the recipe's folder, or begin with `$EVERGRAM_DATA/`, the folder of data
    sets.
    """

    # Whether the corpus depends on the recipe's seed.
    is_drawn: ClassVar[bool] = True

    @abstractmethod
    def load(self, seed: int) -> Corpus:
        """Return all interactions."""


class NamedData(DataSettings):
    """Data that a recipe names; interactions of a value below `minimum_value` are left out."""

    minimum_value: Finite | None = None


class PathData(NamedData):
    """Data in a file or a folder."""

    path: str
    is_drawn = False

    @property
    def source(self) -> Path:
        return existing(self.path)


class MovieLensData(PathData):
    """A folder or zip of MovieLens."""

    kind: Literal["movielens"] = "movielens"

    def load(self, seed: int) -> Corpus:
        from evergram.data.tables import load_movielens

        return load_movielens(self.source)


class AdjacencyListData(PathData):
    """Lines of a query and its candidates, divided by spaces."""

    kind: Literal["adjacency_list"] = "adjacency_list"
    bad_rows: BadRows = "refuse"

    def load(self, seed: int) -> Corpus:
        from evergram.data.tables import load_adjacency_list

        return load_adjacency_list(self.source, self.bad_rows)


class TableData(PathData):
    """A table of interactions in Parquet, Arrow or CSV, with files of features.

    `columns`: the file's own names; `test`: the file of test pairs.
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
            columns={str(name): own for name, own in self.columns.items()},
            bad_rows=self.bad_rows,
        )


class PairsFile(DataSettings):
    """Data whose keys of a table are of the file of test pairs alone."""

    columns: Annotated[Columns, Needs(Trait.GIVEN_SPLIT)] = Field(default={})
    bad_rows: Annotated[BadRows, Needs(Trait.GIVEN_SPLIT)] = "refuse"
    test: Annotated[str | None, Needs(Trait.GIVEN_SPLIT)] = None

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where({Trait.TEST_FILE: self.test is not None})


class PreparedData(PairsFile, PathData):
    """The folder that `evergram prepare` wrote."""

    kind: Literal["prepared"] = "prepared"

    def load(self, seed: int) -> Corpus:
        from evergram.data.prepared.mapped_corpus import load_prepared

        return load_prepared(self.source)


class PythonData(PairsFile):
    """A corpus that is passed in Python, which a recipe cannot name."""

    kind: Literal["python"] = "python"

    def load(self, seed: int) -> Corpus:
        raise DataError(
            "data.kind = 'python' stands for a corpus that is passed in Python, which a recipe "
            "cannot hold; pass it, as in train(recipe, corpus), or name files in [data]."
        )


class SyntheticData(NamedData):
    """A planted corpus."""

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


# In the order in which errors list them. A new loader is one class: docs/extend/loader.md.
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
