"""Build encoders by their kind: new ones, and those of published versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evergram.data.corpus import Vocabulary
from evergram.encoders.encoder import Encoder, Schema
from evergram.encoders.kinds import ENCODERS
from evergram.errors import IntegrityError, LineageError, RecipeError


def build_encoder(
    kind: str,
    options: Mapping[str, Any],
    schema: Schema,
    generator: torch.Generator,
    folder: Path | None = None,
) -> Encoder:
    """Return a new encoder of a kind.

    Args:
        options: keywords of its class, as JSON; artefacts keep them.
        generator: draws the initial parameters.
        folder: where its tables are mapped from files, for a kind that `maps_tables`.
    Raises: RecipeError: the kind is unknown, or its class says that it is of another.
    """
    if kind not in ENCODERS:
        raise RecipeError(f"The encoder {kind!r} is none of {', '.join(ENCODERS)}.")
    built = ENCODERS[kind].encoder_class()
    if built.kind != kind:
        raise RecipeError(
            f"{built.__name__}.kind is {built.kind!r}, and ENCODERS has it as {kind!r}: a version "
            f"would be read again by another class. Set kind = {kind!r} in it."
        )
    make: Callable[..., Encoder] = built
    place = {} if folder is None else {"folder": folder}
    return make(schema, **options, **place, generator=generator)


def restore_encoder(
    kind: str,
    options: Mapping[str, Any],
    inputs: Mapping[str, Mapping[str, str]],
    state: Mapping[str, Tensor],
    vocabularies: Mapping[str, Vocabulary],
    what: str,
) -> Encoder:
    """Return a published encoder in evaluation mode, from the parts that its artefact keeps.

    Args:
        what: the encoder's owner, such as "version 1", for errors.
    Raises: LineageError: the kind is unknown in this process. IntegrityError: the parts do not fit
        together.
    """
    if kind not in ENCODERS:
        raise LineageError(
            f"The encoder of {what} is of kind {kind!r}, and there are {', '.join(ENCODERS)}; put "
            "its settings into evergram.encoders.kinds.ENCODERS first. Its embeddings can be read "
            "without it."
        )
    encoder = build_encoder(kind, options, Schema(vocabularies, inputs), torch.Generator())
    try:
        encoder.load_state_dict(state)
    except RuntimeError as error:
        raise IntegrityError(f"The encoder of {what} does not fit its manifest: {error}") from error
    return encoder.eval()
