"""The tables [data] and [split]: the interactions of a run, and the held-out ones."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from evergram.data.loaders import LOADERS, READ_FROM_A_PATH
from evergram.did_you_mean import did_you_mean
from evergram.kinds import Positive, Share, Weight
from evergram.training.recipe.table import RecipeTable

# The kind of data that a recipe cannot name: a corpus that was passed in Python.
PYTHON = "python"


def _is_kind(value: str) -> str:
    kinds = [*LOADERS, PYTHON]
    if value not in kinds:
        listed = ", ".join(map(repr, kinds[:-1]))
        raise ValueError(f"it must be one of {listed} or {kinds[-1]!r}{did_you_mean(value, kinds)}")
    return value


class DataRecipe(RecipeTable):
    """The kind of data, its files and its columns.

    Paths are relative to the recipe's folder, or begin with `$EVERGRAM_DATA/`, the folder of data
    sets. The kinds are those of `evergram.data.loaders`; and "python", for a corpus that is passed
    in Python.
    """

    kind: Annotated[str, AfterValidator(_is_kind)]
    path: str | None = None
    # amazon: where the metadata is, if not beside the reviews.
    metadata: str | None = None
    # amazon: brands and categories of fewer products are left out, and reviews of products that
    # the metadata lacks.
    minimum_products: Positive = 1
    described_only: bool = False
    # mediawiki: the prefix of the dumps' names.
    prefix: str | None = None
    # table, prepared: the file of test pairs. table: more files, and the files' own names of their
    # columns (prepared: those of the test file).
    test: str | None = None
    query_features: str | None = None
    candidate_features: str | None = None
    columns: dict[
        Literal["query", "candidate", "value", "time", "weight", "query_id", "candidate_id"], str
    ] = Field(default={})
    # table: the weight of each event, where the column of weights holds their names.
    weights: dict[str, Weight] = Field(default={})
    shared_ids: bool = False
    # table, adjacency_list: whether an error counts the rows that cannot be used, or they are left
    # out with a warning.
    bad_rows: Literal["refuse", "drop"] = "refuse"
    # synthetic: the size of the planted corpus.
    queries: Positive = 2000
    candidates: Positive = 1000
    interactions: Positive = 60_000
    drift: Weight = 0.3
    # Keep interactions whose value is at least this (all where it is absent).
    minimum_value: Annotated[float, Field(allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _needs_a_path(self) -> DataRecipe:
        if self.kind in READ_FROM_A_PATH and self.path is None:
            raise ValueError(f"data.kind = {self.kind!r} needs data.path")
        return self


class SplitRecipe(RecipeTable):
    """The split into training, selection and test; see `evergram.data.split`."""

    kind: Literal["random", "time", "given"] = "random"
    # random: the share held out. given: the share of training that selects epochs.
    share: Share = 0.1
    # time: version n has seen versions[n] of all interactions, in order of time.
    versions: Annotated[list[Share], Field(min_length=1)] = Field(default=[0.8, 0.9])
    # time: where the last interval ends; as far again as the one before it where it is absent.
    end: Annotated[float, Field(gt=0, le=1)] | None = None
    # time: every version sees all but the last "5 %", or "7 days", instead of `versions`.
    last: str | None = None
    selection: Literal["strict", "paper"] = "strict"
    # The start of the hash that holds pairs out; a lineage keeps that of its version 0.
    salt: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @model_validator(mode="after")
    def _ascending(self) -> SplitRecipe:
        if sorted(set(self.versions)) != self.versions:
            raise ValueError("split.versions must be one or more ascending shares")
        if self.kind == "time" and self.end is not None and self.end <= self.versions[-1]:
            raise ValueError(
                f"split.end is {self.end} and the last of split.versions {self.versions[-1]}; "
                "nothing would be left to test"
            )
        if self.last is not None:
            # It imports torch, which few recipes need to be checked.
            from evergram.data.rolling_window import RollingWindow

            RollingWindow.parse(self.last)
            # By value, as the recipe that a lineage stores has every key.
            if self.end is not None or self.versions != [0.8, 0.9]:
                raise ValueError(
                    "split.last and split.versions (or split.end) exclude each other: either "
                    "every version sees all but the last part, or each has a share of its own"
                )
        return self

    @property
    def ends(self) -> list[float]:
        """The start of each interval of time, and the end of the last one."""
        last = self.versions[-1]
        if self.end is not None:
            end = self.end
        elif len(self.versions) > 1:
            end = min(1.0, 2 * last - self.versions[-2])
        else:
            end = 1.0
        return [*self.versions, end]
