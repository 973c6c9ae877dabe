"""A consumer whose model is at hand, and what it is sensitive to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evergram.compatibility.consumers.input_fisher import (
    ConsumerModel,
    ConsumerOutput,
    input_fisher,
)
from evergram.encoders.features import SIDES
from evergram.errors import DataError, RecipeError, ShapeError

# Objects, or pairs, that a consumer's sensitivity is a mean over.
ROWS = 2048


@dataclass(frozen=True)
class KnownConsumer:
    """A consumer of past embeddings, given from Python.

    Args:
        name: for errors and reports.
        model: a module, or any function of torch, from embeddings [B, D] of one version to one
            number or C logits a row; it reads each row by itself.
        version: the version that it was fitted to.
        side: "query" or "candidate"; or "pair": it reads both ends of an interaction, [B, 2 D],
            the query's embedding first.
        output: "logits" of classes (one: of the second of two), or the "value" of a regression.
    Raises: RecipeError: the side or the output is none of these.
    """

    name: str
    model: ConsumerModel
    version: int = 0
    side: Literal["query", "candidate", "pair"] = "candidate"
    output: ConsumerOutput = "logits"

    def __post_init__(self) -> None:
        for key, allowed in (("side", (*SIDES, "pair")), ("output", ("logits", "value"))):
            if getattr(self, key) not in allowed:
                raise RecipeError(
                    f"The consumer {self.name!r} has {key} {getattr(self, key)!r}; it is one of "
                    f"{', '.join(allowed)}."
                )

    def fishers(
        self, vectors: Mapping[str, Tensor], rows: Mapping[str, Tensor], pairs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return its mean input Fisher matrix at each side that it reads, float64 [D, D].

        Of a pair these are the two diagonal blocks: errors of the two ends are taken to be
        independent.

        Args:
            vectors: of each side, [N, D] of the version that it reads.
            rows: of each side, int64 [n], the objects that it is asked about.
            pairs: of each side, int64 [m], the ends of the interactions.
        Raises: DataError: there are none, or the model cannot read them.
        """
        ends = SIDES if self.side == "pair" else (self.side,)
        chosen = pairs if self.side == "pair" else rows
        picked = {side: _spread(chosen[side]) for side in ends}
        inputs = torch.cat([vectors[side][picked[side]] for side in ends], dim=1)
        try:
            whole = input_fisher(self.model, inputs.float(), self.output)
        except (ShapeError, RuntimeError) as error:
            raise DataError(
                f"The consumer {self.name!r} cannot weigh errors at version {self.version}, whose "
                f"embeddings it was given as {list(inputs.shape)}: {error}"
            ) from error
        dim = inputs.shape[1] // len(ends)
        blocks = [slice(i * dim, (i + 1) * dim) for i in range(len(ends))]
        return {side: whole[block, block] for side, block in zip(ends, blocks, strict=True)}


def _spread(rows: Tensor) -> Tensor:
    """Return the rows, or `ROWS` of them, evenly spread; the same for every side of a pair."""
    if len(rows) <= ROWS:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, ROWS).long()]
