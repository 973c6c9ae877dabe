"""Embeddings of objects that no store holds, encoded from their features on request."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch

from evergram.data.corpus import Vocabulary
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
                if self._lineage.manifest(version).encoder is None:
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
    schema = encoder.schema
    if side not in schema.inputs:
        raise DataError(f"There is no side {side!r}; there is {' and '.join(schema.inputs)}.")
    names = [name for name in schema.inputs[side] if name != "id"]
    for described in objects:
        unknown = sorted(set(described.features) - set(names))
        if unknown:
            has = ", ".join(names) or "none, but ids"
            raise DataError(
                f"Version {version} has no feature {unknown[0]!r} of side {side!r}; it has {has}."
            )
    bags = {
        name: _bag(
            schema.vocabularies[schema.inputs[side][name]],
            [_keys(described.features.get(name, [])) for described in objects],
        )
        for name in names
    }
    ids = torch.full((len(objects),), -1, dtype=torch.int64)
    for i, described in enumerate(objects):
        if described.id is not None:
            ids[i] = schema.ids(side).rows(pa.array([described.id]))[0]
    inputs = EntityInputs(ids, bags)
    unknown_rows = torch.nonzero(~inputs.is_known).flatten()
    if len(unknown_rows):
        raise DataError(
            f"Version {version} knows none of the features of object {int(unknown_rows[0])}, so "
            "its embedding would say nothing; leave the object out, or describe it by features "
            "that the version was trained on."
        )
    return inputs


def _keys(keys: Key | list[Key]) -> list[Key]:
    return keys if isinstance(keys, list) else [keys]


def _bag(vocabulary: Vocabulary, keys: list[list[Key]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each object's keys as rows of a vocabulary, ragged; unknown keys are left out."""
    flat = [str(key) for of_object in keys for key in of_object]
    rows = vocabulary.rows(pa.array(flat, pa.string()))
    known = rows >= 0
    owner = torch.repeat_interleave(
        torch.arange(len(keys)), torch.tensor([len(of_object) for of_object in keys])
    )
    counts = torch.bincount(owner[known], minlength=len(keys))
    return rows[known], torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
