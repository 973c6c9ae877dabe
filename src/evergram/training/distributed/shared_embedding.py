"""Embeddings of all entities, of which each process computes a share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergram.collectives import Collectives
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder, Scene
from evergram.encoders.features import SIDES
from evergram.encoders.module_encoder import ModuleEncoder
from evergram.encoders.row_encoder import RowEncoder
from evergram.encoders.tables.embedding_tables import ROWS


def embed_together(
    encoder: Encoder, what: Corpus | Scene, together: Collectives
) -> dict[str, Tensor]:
    """Return what `encoder.embed_all(what)` does, the same numbers in every process.

    Where entities pass through layers one by one, in towers or in modules of a user's, each process
    embeds some of the blocks that one process would, and all blocks are exchanged. Rows of tables
    alone are read faster than they would be exchanged, and a graph encoder embeds all entities in
    one pass: these every process embeds whole.

    Args:
        together: the processes that call this, each with the same encoder and entities.
    """
    most = _rows_at_once(encoder)
    if together.size == 1 or most is None or not has_layers(encoder):
        return encoder.embed_all(what)
    scene = what if isinstance(what, Scene) else encoder.read(what).to(encoder.device)
    vectors = {}
    with encoder.evaluating():
        embeddings = encoder.published(scene)
        for side in SIDES:
            size = scene.size(side)
            rows = torch.zeros(size, encoder.dim, device=encoder.device)
            blocks = [slice(start, min(start + most, size)) for start in range(0, size, most)]
            for block in blocks[together.share(len(blocks))]:
                ids = torch.arange(block.start, block.stop, device=encoder.device)
                rows[block] = embeddings.rows(side, ids)
            for block in blocks:  # one by one, so that no second copy of all is made
                rows[block] = together.sum(rows[block], "embeddings")
            vectors[side] = rows if isinstance(what, Scene) else rows.cpu()
    return vectors


def _rows_at_once(encoder: Encoder) -> int | None:
    """Return the rows of a block of `embed_all`; None if entities are not embedded one by one."""
    if isinstance(encoder, ModuleEncoder):
        return min(ROWS, encoder.encoder_modules.batch_size)
    return ROWS if isinstance(encoder, RowEncoder) else None


def has_layers(encoder: Encoder) -> bool:
    """Return whether an encoder has parameters beside tables, of which an entity reads a row."""
    tables = {id(m.weight) for m in encoder.modules() if isinstance(m, nn.Embedding)}
    return any(id(p) not in tables for p in encoder.parameters())
