"""Encoders: models that map entities of two sides to vectors [B, D] of one space.

Read in this order:

1. `encoder`: `Encoder`, the interface, and `Scene`, a corpus as an encoder sees it; `popularity`:
   the factor of candidates in vectors that are published.
2. `features`: from a corpus's rows to an encoder's own rows of ids and of bags of features.
3. `row_encoder`, and its subclasses `factorization` (a free vector for each entity) and `two_tower`
   (ids and features through layers).
4. `graph`: `graph_encoder`, on the matrices of `adjacency`, and its subclasses `graphsage` and
   `lightgcn`; `mean_of_candidates`, whose queries have no table.
5. `encoder_inputs`: ids, features and tables of a user's objects, as an encoder reads them.
6. `module_encoder`: the user's own modules, as `encoder_modules` describes them.
7. `factory`: an encoder by its `kind`, new or from a published version; `kinds` has their settings;
   `tables`: tables of embeddings, and rows of unit norm; `mapped_tensors` keeps them in files;
   `candidates_at_hand` embeds all candidates for a loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.encoders.encoder import Embeddings, Encoder, Scene
    from evergram.encoders.factorization import Factorization
    from evergram.encoders.factory import build_encoder, restore_encoder
    from evergram.encoders.features import SIDES, EntityInputs, Schema
    from evergram.encoders.graph.graph_encoder import GraphEncoder
    from evergram.encoders.graph.graphsage import GraphSage
    from evergram.encoders.graph.lightgcn import LightGCN
    from evergram.encoders.graph.mean_of_candidates import MeanOfCandidates
    from evergram.encoders.kinds import ENCODERS, EncoderSettings
    from evergram.encoders.row_encoder import RowEncoder
    from evergram.encoders.two_tower import TwoTower

__all__ = [
    "ENCODERS",
    "SIDES",
    "Embeddings",
    "Encoder",
    "EncoderSettings",
    "EntityInputs",
    "Factorization",
    "GraphEncoder",
    "GraphSage",
    "LightGCN",
    "MeanOfCandidates",
    "RowEncoder",
    "Scene",
    "Schema",
    "TwoTower",
    "build_encoder",
    "restore_encoder",
]

export_lazily(
    __name__,
    {
        "encoder": "Embeddings Encoder Scene",
        "factorization": "Factorization",
        "factory": "build_encoder restore_encoder",
        "features": "EntityInputs SIDES Schema",
        "graph.graph_encoder": "GraphEncoder",
        "graph.graphsage": "GraphSage",
        "kinds": "ENCODERS EncoderSettings",
        "graph.lightgcn": "LightGCN",
        "graph.mean_of_candidates": "MeanOfCandidates",
        "row_encoder": "RowEncoder",
        "two_tower": "TwoTower",
    },
)
