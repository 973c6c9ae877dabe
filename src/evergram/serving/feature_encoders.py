"""Objects that no store has, encoded from their features when they are asked for."""

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
from evergram.serving.http.schemas import Features
from evergram.stores.store import Floats

Key = int | str


class Encoders:
    """The encoders of a lineage's versions, each read when it is first needed."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._read: dict[int, RowEncoder] = {}
        self._lock = threading.Lock()

    def encode(self, version: int, side: str, objects: Sequence[Features]) -> Floats:
        """Embeddings [n, D] of objects as a version encodes them.

        Raises: LineageError: the version has no encoder, or one that needs the whole graph.
            DataError: no such side or feature, or nothing of an object is known.
        """
        encoder = self._encoder(version)
        inputs = _inputs(encoder, version, side, objects)
        blocks = [block.numpy() for block in encoder.blocks(side, inputs)]
        return np.concatenate(blocks).astype(np.float32)

    def _encoder(self, version: int) -> RowEncoder:
        with self._lock:
            if version not in self._read:
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
                self._read[version] = encoder
            return self._read[version]


def _inputs(
    encoder: RowEncoder, version: int, side: str, objects: Sequence[Features]
) -> EntityInputs:
    schema = encoder.schema
    if side not in schema.inputs:
        raise DataError(f"There is no side {side!r}; there is {' and '.join(schema.inputs)}.")
    names = [name for name in schema.inputs[side] if name != "id"]
    for found in objects:
        unknown = sorted(set(found.features) - set(names))
        if unknown:
            has = ", ".join(names) or "none, but ids"
            raise DataError(
                f"Version {version} has no feature {unknown[0]!r} of side {side!r}; it has {has}."
            )
    bags = {
        name: _bag(
            schema.vocabularies[schema.inputs[side][name]],
            [_keys(found.features.get(name, [])) for found in objects],
        )
        for name in names
    }
    ids = torch.full((len(objects),), -1, dtype=torch.int64)
    for i, found in enumerate(objects):
        if found.id is not None:
            ids[i] = schema.ids(side).rows(pa.array([found.id]))[0]
    inputs = EntityInputs(ids, bags)
    untold = torch.nonzero(~inputs.is_known).flatten()
    if len(untold):
        raise DataError(
            f"Version {version} knows none of the features of object {int(untold[0])}; an "
            "embedding of it would say nothing."
        )
    return inputs


def _keys(given: Key | list[Key]) -> list[Key]:
    return given if isinstance(given, list) else [given]


def _bag(vocabulary: Vocabulary, given: list[list[Key]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ragged rows of a vocabulary; keys that it does not have are left out."""
    flat = [str(key) for keys in given for key in keys]
    rows = vocabulary.rows(pa.array(flat, pa.string()))
    known = rows >= 0
    owner = torch.repeat_interleave(
        torch.arange(len(given)), torch.tensor([len(keys) for keys in given])
    )
    counts = torch.bincount(owner[known], minlength=len(given))
    return rows[known], torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
