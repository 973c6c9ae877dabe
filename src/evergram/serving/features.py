"""Objects that no store holds: described by their features, and encoded on request."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from evergram.encoders.encoder import RowEncoder
from evergram.encoders.encoder_inputs import ID, inputs_of_columns, names_of, refuse_unknown
from evergram.encoders.factory import restore_encoder
from evergram.encoders.kinds import ENCODERS
from evergram.errors import DataError, LineageError
from evergram.kinds import kinds_where
from evergram.lineage.lineage import Lineage
from evergram.stores.rows import Floats
from evergram.tracing import span

Int64 = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
LONGEST_VALUE = 1024
Text = Annotated[StrictStr, Field(max_length=LONGEST_VALUE)]
Id = Int64 | Text
# Features of one object.
MOST_FEATURES = 256


class Features(BaseModel):
    """An object that an encoder embeds on the spot.

    Args:
        features: feature name to a number, a time as text, a key or several; null is missing.
        id: the object's id, which the encoder uses where it knows it; no store is asked for it.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False
    )

    features: Annotated[
        dict[str, Id | StrictFloat | Annotated[list[Id], Field(fail_fast=True)] | None],
        Field(max_length=MOST_FEATURES),
    ]
    id: Id | None = None

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        """Count before anything is validated: the errors of all could take much memory."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            raise ValueError("an object has the fields 'features' and 'id', and no other")
        return value

    @field_validator("features", mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        """Likewise."""
        if isinstance(value, dict) and len(value) > MOST_FEATURES:
            raise ValueError(f"an object has at most {MOST_FEATURES} features")
        return value


class FeatureEncoders:
    """The encoders of a lineage's versions, each loaded when it is first needed, for any thread."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._loaded: dict[int, RowEncoder] = {}
        self._lock = threading.Lock()

    def encode(self, version: int, side: str, objects: Sequence[Features]) -> Floats:
        """Return the embeddings [n, D] of objects, as a version encodes them."""
        with span("encoder", version=version, side=side, rows=len(objects)):
            encoder = self._encoder(version)
            names = [name for name in names_of(side, encoder.schema) if name != ID]
            unknown = {name for described in objects for name in described.features} - set(names)
            if unknown:
                has = ", ".join(names) or "none, but ids"
                raise DataError(
                    f"Version {version} has no feature {min(unknown)!r} of side {side!r}; it has "
                    f"{has}."
                )
            # As text: vocabularies of numbers know their text, and a request may mix both.
            ids = [None if described.id is None else str(described.id) for described in objects]
            columns = {ID: pa.array(ids, pa.string())}
            for name in names:
                keys = [_texts(described.features.get(name)) for described in objects]
                columns[name] = pa.array(keys, pa.list_(pa.string()))
            inputs = inputs_of_columns(columns, len(objects), side, encoder.schema)
            refuse_unknown(inputs.is_known, columns)
            blocks = [block.numpy() for block in encoder.blocks(side, inputs)]
            return np.concatenate(blocks).astype(np.float32)

    def _encoder(self, version: int) -> RowEncoder:
        with self._lock:
            if version not in self._loaded:
                encoder = self._lineage.manifest(version).encoder
                graph = kinds_where(ENCODERS, "needs_graph")
                if encoder is None or encoder.kind in ("module", *graph):
                    raise LineageError(
                        f"Version {version} has no encoder that embeds objects by their features; "
                        "ask for the embeddings of ids, or send strings where it records an "
                        "encoder of text."
                    )
                record, state, vocabularies = self._lineage.reader(version).encoder()
                parts = (record.kind, record.options, record.inputs, state, vocabularies)
                restored = restore_encoder(*parts, f"version {version}")
                assert isinstance(restored, RowEncoder)
                self._loaded[version] = restored
            return self._loaded[version]


def _texts(keys: int | str | float | list[int | str] | None) -> list[str]:
    given = keys if isinstance(keys, list) else [] if keys is None else [keys]
    return [str(key) for key in given]
