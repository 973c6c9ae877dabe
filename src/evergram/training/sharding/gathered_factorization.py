"""The encoder that a run with divided tables publishes: whole in the first process, from files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from evergram.atomic_files import make_folder
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Scene
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import SIDES, Schema
from evergram.encoders.mapped_tensors import mapped_zeros


def mapped_rows(blocks: Iterable[Tensor], shape: tuple[int, int], folder: Path | None) -> Tensor:
    """Return blocks [b, D] of N rows in all as one tensor [N, D] that is mapped from a file.

    The file has no name: its room on disk is free again when nothing refers to the tensor, or when
    the process ends.

    Args:
        shape: N and D.
        folder: on the disk that has room for it; None is that of temporary files.
    Raises: TrainingError: the disk has no room.
    """
    place = Path(tempfile.gettempdir()) if folder is None else folder
    make_folder(place)
    whole: Tensor | None = None
    start = 0
    for block in blocks:
        if whole is None:
            whole = mapped_zeros(shape, place, block.dtype)
        whole[start : start + len(block)] = block
        start += len(block)
    return torch.zeros(shape) if whole is None else whole


class GatheredFactorization(Factorization):
    """A factorization whose tables are files in one process, and in others have shapes alone.

    Args:
        schema, dim, normalize: as of `Factorization`.
    Attributes:
        folder: where embeddings are mapped from files.
    """

    folder: Path | None = None

    def __init__(self, schema: Schema, dim: int, *, normalize: bool = False) -> None:
        with torch.device("meta"):
            super().__init__(schema, dim, generator=torch.Generator("cpu"), normalize=normalize)

    def set_rows(self, side: str, rows: Tensor) -> None:
        """Make rows [N, D] a side's table."""
        table: nn.Embedding = self.query if side == "query" else self.candidate
        table.weight = nn.Parameter(rows, requires_grad=False)

    def embed_all(self, what: Corpus | Scene) -> dict[str, Tensor]:
        """Return all embeddings, [N, D] of each side: the tables themselves where they are of the
        corpus that the encoder was trained on, else mapped from files; on the device "meta", which
        has no numbers, in processes that have none."""
        scene = what if isinstance(what, Scene) else self.read(what)
        return {side: self._all(side, scene) for side in SIDES}

    def _all(self, side: str, scene: Scene) -> Tensor:
        table: nn.Embedding = self.query if side == "query" else self.candidate
        inputs = scene.inputs[side]
        if table.weight.is_meta:
            return table.weight.new_empty(len(inputs), self.dim)
        if inputs.in_order and not self.normalize and len(inputs) == len(table.weight):
            return table.weight.detach()
        return mapped_rows(self.blocks(side, inputs), (len(inputs), self.dim), self.folder)
