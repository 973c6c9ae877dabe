"""The inputs of encoders: a corpus's ids and features, as rows of an encoder's vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from evergram.data.corpus import Corpus, Side, Vocabulary, take_ragged
from evergram.data.feature_types import bucket_starts, is_measure, positions, type_name
from evergram.errors import DataError

SIDES = ("query", "candidate")


@dataclass(frozen=True)
class EntityInputs:
    """B entities as an encoder reads them, in rows of its own vocabularies.

    Args:
        ids: int64 [B], rows of the id vocabulary, -1 for an id that it does not have.
        bags: for each feature, ragged rows of its vocabulary: indices [nnz] and offsets [B + 1];
            of a number or time that is missing, none.
        has_all_ids: True where no id is -1, so that reading a table needs no mask.
        in_order: True where ids are 0 to B - 1, as of the corpus that the vocabularies are of.
    """

    ids: Tensor
    bags: Mapping[str, tuple[Tensor, Tensor]]
    has_all_ids: bool = False
    in_order: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_known(self) -> Tensor:
        """bool [B], True if the vocabularies have the entity's id or any of its features."""
        known = self.ids >= 0
        for _, offsets in self.bags.values():
            known = known | (offsets[1:] > offsets[:-1])
        return known

    def bag(self, name: str, of_missing: int | None) -> tuple[Tensor, Tensor]:
        """Return the ragged rows of a feature, in which an empty bag has the row `of_missing`.

        Args:
            of_missing: `Vocabulary.row_of_missing`; None leaves the bags as they are.
        """
        indices, offsets = self.bags[name]
        if of_missing is None:
            return indices, offsets
        empty = offsets[1:] == offsets[:-1]
        first = torch.cat([indices, indices.new_zeros(1)])[offsets[:-1]]
        rows = torch.where(empty, of_missing, first)
        return rows, torch.arange(len(rows) + 1, device=rows.device)

    def take(self, rows: Tensor) -> EntityInputs:
        bags = {name: take_ragged(*bag, rows) for name, bag in self.bags.items()}
        ids = rows if self.in_order else self.ids[rows]
        return EntityInputs(ids, bags, self.has_all_ids)

    def to(self, device: torch.device) -> EntityInputs:
        bags = {n: (i.to(device), o.to(device)) for n, (i, o) in self.bags.items()}
        return replace(self, ids=self.ids.to(device), bags=bags)


def table_name(vocabulary: str) -> str:
    """Return the name of an encoder's table of a vocabulary: a module's name has no dots."""
    return vocabulary.replace(".", "/")


@dataclass(frozen=True)
class Schema:
    """The vocabularies of an encoder, and which of them each side's inputs use.

    Args:
        vocabularies: by name.
        inputs: for each side, input name ("id" or a feature) to vocabulary name. Two inputs that
            name one vocabulary read the same keys.
    """

    vocabularies: Mapping[str, Vocabulary]
    inputs: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, corpus: Corpus, *, features: bool) -> Schema:
        """Return the schema of a corpus, with or without its features."""
        vocabularies: dict[str, Vocabulary] = {}
        inputs: dict[str, dict[str, str]] = {}
        for name, side in zip(SIDES, (corpus.queries, corpus.candidates), strict=True):
            id_name = "id" if corpus.shared_ids else f"{name}.id"
            vocabularies[id_name] = side.vocabulary
            inputs[name] = {"id": id_name}
            for feature in side.features if features else ():
                vocabularies[f"feature.{feature}"] = _vocabulary_of(corpus, feature)
                inputs[name][feature] = f"feature.{feature}"
        tables = [table_name(name) for name in vocabularies]
        if twice := {name for name in tables if tables.count(name) > 1}:
            names = sorted(name for name in vocabularies if table_name(name) in twice)
            same = [name.removeprefix("feature.") for name in names]
            raise DataError(
                f"The features {' and '.join(same)} would share one table, as names that differ in "
                "'.' and '/' alone do; rename one."
            )
        return cls(vocabularies, inputs)

    def ids(self, side: str) -> Vocabulary:
        return self.vocabularies[self.inputs[side]["id"]]

    def read(self, side: str, entities: Side) -> EntityInputs:
        """Return the inputs of entities of any corpus, in their order.

        Keys that a vocabulary lacks are left out; a feature that `entities` lack has empty bags.
        """
        bags: dict[str, tuple[Tensor, Tensor]] = {}
        for feature, vocabulary_name in self.inputs[side].items():
            if feature == "id":
                continue
            if feature not in entities.features:
                empty = torch.zeros(len(entities) + 1, dtype=torch.int64)
                bags[feature] = (torch.zeros(0, dtype=torch.int64), empty)
                continue
            column = entities.features[feature]
            vocabulary = self.vocabularies[vocabulary_name]
            refuse_other_types(feature, vocabulary, column.vocabulary)
            translated = vocabulary.rows(column.vocabulary.keys)
            indices = translated[column.indices]
            known = indices >= 0
            before = torch.zeros(len(known) + 1, dtype=torch.int64)
            torch.cumsum(known, 0, out=before[1:])
            bags[feature] = (indices[known], before[column.offsets])
        ids = self.ids(side).rows(entities.vocabulary.keys)
        # Once for a corpus: a batch could not tell without waiting for its device.
        in_order = torch.equal(ids, torch.arange(len(ids)))
        has_all = in_order or bool((ids >= 0).all())
        return EntityInputs(ids, bags, has_all, in_order)


def refuse_other_types(feature: str, mine: Vocabulary, other: Vocabulary) -> None:
    """Raises: DataError: a feature is a number or a time in one vocabulary and not in the other."""
    kinds = [mine.keys.type, other.keys.type]
    if kinds[0] != kinds[1] and any(is_measure(kind) for kind in kinds):
        raise DataError(
            f"The feature {feature!r} is a {type_name(kinds[1])} here, and the encoder was trained "
            f"with a {type_name(kinds[0])}: a cell that is not one makes its column a category. "
            "Write it as before, or set upgrade.start = 'fresh'."
        )


def _vocabulary_of(corpus: Corpus, feature: str) -> Vocabulary:
    """Return the keys of a feature, which both sides may have; of numbers and times their buckets,
    which depend on how many objects have which."""
    columns = [
        s.features[feature] for s in (corpus.queries, corpus.candidates) if feature in s.features
    ]
    vocabulary = columns[0].vocabulary
    if not is_measure(vocabulary.keys.type):
        return vocabulary
    values = positions(vocabulary.keys)
    given = np.concatenate([values[column.indices.numpy()] for column in columns])
    missing = any(bool((c.offsets[1:] == c.offsets[:-1]).any()) for c in columns)
    return Vocabulary(bucket_starts(given, vocabulary.keys.type, missing=missing))
