"""The contents of one version before it is published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import Transform
from evergram.data.corpus import Vocabulary
from evergram.data.pair_hash import TrainedPairs
from evergram.gramian.new_queries.query_form import QueryForm
from evergram.lineage.publishing.block_check import checked_blocks
from evergram.texts.record import TextEncoderRecord

Block = tuple[pa.Array, Tensor]
# Ids and vectors as they may be given, see `Artefact`.
AnyBlock = tuple[Any, Any]


@dataclass(frozen=True)
class EncoderParts:
    """An encoder, taken apart.

    Args:
        kind, options: how to build it.
        state: its tensors.
        inputs, vocabularies: its schema.
    """

    kind: str
    options: Mapping[str, Any]
    state: Mapping[str, Tensor]
    inputs: Mapping[str, Mapping[str, str]]
    vocabularies: Mapping[str, Vocabulary]


@dataclass(frozen=True, repr=False)
class Artefact:
    """A version that is ready to be published.

    Args:
        dim: D.
        embeddings: for each side, ids [N], each once, and vectors [N, D] of floats; or a function
            that returns them block by block, for more than memory holds. A model has the sides
            "query" and "candidate". Ids are integers or texts, in an Arrow or NumPy array or a
            list; vectors are a torch tensor or a NumPy array.
        transform: B_k; None for version 0 alone.
        metrics: what was measured, as JSON.
        recipe: the recipe, as JSON.
        encoder: None if the embeddings came from a file.
        canaries: for each side, ids and vectors [n, D] of a few objects that are kept for ever.
        error: the error of B_k, for the certificate.
        trained: the salt of the hashes of the model's training pairs, and these; None if no model
            was trained.
        follows: fingerprint of the version that `transform` leads to; None for version 0 alone.
        query_form: how new queries get a vector from their candidates'; None if they cannot.
        text_encoder: the encoder that made the embeddings from texts; None if it is not known.
        unknown: for each side, how many of the embeddings are zeros because the model does not know
            the object; as many zeros more than usual are published.
    """

    dim: int
    embeddings: Mapping[str, AnyBlock | Callable[[], Iterable[AnyBlock]]]
    transform: Transform | None
    metrics: Mapping[str, Any]
    recipe: Mapping[str, Any]
    encoder: EncoderParts | None = None
    canaries: Mapping[str, Block] = field(default_factory=dict)
    error: StepError | None = None
    trained: tuple[str, TrainedPairs] | None = None
    follows: str | None = None
    query_form: QueryForm | None = None
    text_encoder: TextEncoderRecord | None = None
    unknown: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        model = "no encoder" if self.encoder is None else self.encoder.kind
        back = "no transform" if self.transform is None else f"{self.transform.kind} transform"
        return f"Artefact(dim {self.dim}, {model}, {back}, sides {', '.join(self.embeddings)})"

    def blocks(self, side: str) -> Iterator[Block]:
        """Yield the ids and vectors of a side, in one block or in several.

        Raises: DataError, ShapeError: they cannot be published.
        """
        source = self.embeddings[side]
        return checked_blocks(source() if callable(source) else [source], side, self.dim)

    def block(self, side: str) -> Block:
        """Return all ids [N] and vectors [N, D] of a side at once.

        Raises: DataError, ShapeError: they cannot be published.
        """
        blocks = list(self.blocks(side))
        if len(blocks) == 1:
            return blocks[0]
        return pa.concat_arrays([ids for ids, _ in blocks]), torch.cat([v for _, v in blocks])


def are_metrics(value: Any) -> bool:
    """Say whether a value has the form of a version's metrics: `metrics.model`, if there is one, is
    a number or null by name, and each of `probes`, if there are any, names a consumer."""
    if not isinstance(value, Mapping):
        return False
    tables, probes = value.get("metrics", {}), value.get("probes", [])
    model = tables.get("model", {}) if isinstance(tables, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(probes, list):
        return False
    numbers = all(x is None or isinstance(x, int | float) for x in model.values())
    named = all(isinstance(p, Mapping) and isinstance(p.get("consumer"), str) for p in probes)
    return numbers and named
