"""Embeddings of objects that no store holds, encoded from their features on request."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch

from evergram.encoders.encoder_inputs import ID, inputs_of_columns, names_of
from evergram.encoders.factory import restore_encoder
from evergram.encoders.features import EntityInputs
from evergram.encoders.kinds import ENCODERS
from evergram.encoders.row_encoder import RowEncoder
from evergram.errors import DataError, LineageError
from evergram.kinds import kinds_where
from evergram.lineage.lineage import Lineage
from evergram.serving.object_features import Features
from evergram.stores.store import Floats

Key = int | str


class FeatureEncoders:
    """The encoders of a lineage's versions, each loaded when it is first needed.

    Several threads may use one.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._loaded: dict[int, RowEncoder] = {}
        self._lock = threading.Lock()

    def encode(self, version: int, side: str, objects: Sequence[Features]) -> Floats:
        """Return the embeddings [n, D] of objects, as a version encodes them.

        Raises: LineageError: the version has no encoder, or its encoder needs the whole graph.
            DataError: the side or a feature is unknown, or an object has no feature that the
            encoder knows.
        """
        encoder = self._encoder(version)
        inputs = _inputs(encoder, version, side, objects)
        blocks = [block.numpy() for block in encoder.blocks(side, inputs)]
        return np.concatenate(blocks).astype(np.float32)

    def _encoder(self, version: int) -> RowEncoder:
        with self._lock:
            if version not in self._loaded:
                manifest = self._lineage.manifest(version)
                if manifest.encoder is None and manifest.text_encoder is not None:
                    raise LineageError(
                        f"Version {version} encodes texts, not features; send strings."
                    )
                if manifest.encoder is None:
                    raise LineageError(
                        f"Version {version} came from a file and has no encoder; ask for the "
                        "embeddings of ids."
                    )
                record, state, vocabularies = self._lineage.encoder_parts(version)
                if record.kind == "module":
                    raise LineageError(
                        f"Version {version} is encoded by modules of its makers, which the lineage "
                        "does not hold; ask for the embeddings of ids."
                    )
                if record.kind in kinds_where(ENCODERS, "needs_graph"):
                    raise LineageError(
                        f"Version {version} is encoded by {record.kind}, which needs the whole "
                        "graph; ask for the embeddings of ids."
                    )
                encoder = restore_encoder(
                    record.kind,
                    record.options,
                    record.inputs,
                    state,
                    vocabularies,
                    f"version {version}",
                )
                assert isinstance(encoder, RowEncoder)
                self._loaded[version] = encoder
            return self._loaded[version]


def _inputs(
    encoder: RowEncoder, version: int, side: str, objects: Sequence[Features]
) -> EntityInputs:
    names = [name for name in names_of(side, encoder.schema) if name != ID]
    for described in objects:
        unknown = sorted(set(described.features) - set(names))
        if unknown:
            has = ", ".join(names) or "none, but ids"
            raise DataError(
                f"Version {version} has no feature {unknown[0]!r} of side {side!r}; it has {has}."
            )
    inputs = inputs_of_columns(_columns(objects, names), len(objects), side, encoder.schema)
    unknown_rows = torch.nonzero(~inputs.is_known).flatten()
    if len(unknown_rows):
        raise DataError(
            f"Version {version} knows none of the features of object {int(unknown_rows[0])}, so "
            "its embedding would say nothing; leave the object out, or describe it by features "
            "that the version was trained on."
        )
    return inputs


def _columns(objects: Sequence[Features], names: Sequence[str]) -> dict[str, pa.Array]:
    """Return the ids and the features of objects, all as text: a request may mix it with numbers.

    Vocabularies of numbers know them as text too.
    """
    ids = [None if described.id is None else str(described.id) for described in objects]
    columns = {ID: pa.array(ids, pa.string())}
    for name in names:
        keys = [_texts(described.features.get(name, [])) for described in objects]
        columns[name] = pa.array(keys, pa.list_(pa.string()))
    return columns


def _texts(keys: Key | float | list[Key] | None) -> list[str]:
    given = keys if isinstance(keys, list) else [] if keys is None else [keys]
    return [str(key) for key in given]
