"""The inputs of encoders: a corpus's ids and features, as rows of an encoder's vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.data.corpus import Corpus, Side, Vocabulary, take_ragged

SIDES = ("query", "candidate")


@dataclass(frozen=True)
class EntityInputs:
    """B entities as an encoder reads them, in rows of its own vocabularies.

    Args:
        ids: int64 [B], rows of the id vocabulary, -1 for an id that it does not have.
        bags: for each feature, ragged rows of its vocabulary: indices [nnz] and offsets [B + 1].
    """

    ids: Tensor
    bags: Mapping[str, tuple[Tensor, Tensor]]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_known(self) -> Tensor:
        """bool [B], True if the vocabularies have the entity's id or any of its features."""
        known = self.ids >= 0
        for _, offsets in self.bags.values():
            known = known | (offsets[1:] > offsets[:-1])
        return known

    def take(self, rows: Tensor) -> EntityInputs:
        bags = {name: take_ragged(*bag, rows) for name, bag in self.bags.items()}
        return EntityInputs(self.ids[rows], bags)

    def to(self, device: torch.device) -> EntityInputs:
        bags = {n: (i.to(device), o.to(device)) for n, (i, o) in self.bags.items()}
        return EntityInputs(self.ids.to(device), bags)


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
            for feature, column in side.features.items() if features else ():
                vocabularies[f"feature.{feature}"] = column.vocabulary
                inputs[name][feature] = f"feature.{feature}"
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
            translated = self.vocabularies[vocabulary_name].rows(column.vocabulary.keys)
            indices = translated[column.indices]
            known = indices >= 0
            before = torch.zeros(len(known) + 1, dtype=torch.int64)
            torch.cumsum(known, 0, out=before[1:])
            bags[feature] = (indices[known], before[column.offsets])
        return EntityInputs(self.ids(side).rows(entities.vocabulary.keys), bags)
