"""Encoders by their closed kind: new ones, and those of published versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from evergram.data.corpus import Vocabulary
from evergram.encoders.encoder import Encoder
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import Schema
from evergram.encoders.graphsage import GraphSage
from evergram.encoders.lightgcn import LightGCN
from evergram.encoders.two_tower import TwoTower
from evergram.errors import IntegrityError, RecipeError


def build_encoder(
    kind: str, options: Mapping[str, Any], schema: Schema, generator: torch.Generator
) -> Encoder:
    """An encoder by its closed `kind`. Raises: RecipeError: there is none of that kind."""
    if kind == "factorization":
        return Factorization(schema, **options, generator=generator)
    if kind == "two_tower":
        return TwoTower(schema, **options, generator=generator)
    if kind == "graphsage":
        return GraphSage(schema, **options, generator=generator)
    if kind == "lightgcn":
        return LightGCN(schema, **options, generator=generator)
    raise RecipeError(
        f"The encoder {kind!r} is none of factorization, two_tower, graphsage and lightgcn."
    )


def restore_encoder(
    kind: str,
    options: Mapping[str, Any],
    inputs: Mapping[str, Mapping[str, str]],
    state: Mapping[str, Tensor],
    vocabularies: Mapping[str, Vocabulary],
    what: str,
) -> Encoder:
    """A published encoder from its parts, in evaluation mode.

    Args:
        what: to call it in an error.
    Raises: IntegrityError: its parts do not fit together.
    """
    encoder = build_encoder(kind, options, Schema(vocabularies, inputs), torch.Generator())
    try:
        encoder.load_state_dict(state)
    except RuntimeError as error:
        raise IntegrityError(f"The encoder of {what} does not fit its manifest: {error}") from error
    return encoder.eval()
