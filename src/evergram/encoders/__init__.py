"""Encoders: models that embed queries and candidates in one space.

Read `features` (a corpus as rows of an encoder's vocabularies), `encoder` (the interface), then
`row_encoder` with `factorization` and `two_tower`, which embed each entity from its own id and
features; or `adjacency` and `graph_encoder` with `graphsage` and `lightgcn`, which pass over the
graph of all interactions. `kinds` is the table of encoders that recipes and artefacts name, and
`factory` makes them by it; `docs/extend/encoder.md` adds one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.encoders.encoder import Embeddings, Encoder, Scene
    from evergram.encoders.factorization import Factorization
    from evergram.encoders.factory import build_encoder, restore_encoder
    from evergram.encoders.features import SIDES, EntityInputs, Schema
    from evergram.encoders.graph_encoder import GraphEncoder
    from evergram.encoders.graphsage import GraphSage
    from evergram.encoders.kinds import ENCODERS, EncoderSettings
    from evergram.encoders.lightgcn import LightGCN
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
    "RowEncoder",
    "Scene",
    "Schema",
    "TwoTower",
    "build_encoder",
    "restore_encoder",
]

# Imported when first used: `kinds` is read without torch.
_HOME = {
    "ENCODERS": "kinds",
    "Embeddings": "encoder",
    "Encoder": "encoder",
    "EncoderSettings": "kinds",
    "EntityInputs": "features",
    "Factorization": "factorization",
    "GraphEncoder": "graph_encoder",
    "GraphSage": "graphsage",
    "LightGCN": "lightgcn",
    "RowEncoder": "row_encoder",
    "SIDES": "features",
    "Scene": "encoder",
    "Schema": "features",
    "TwoTower": "two_tower",
    "build_encoder": "factory",
    "restore_encoder": "factory",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"evergram.encoders.{_HOME[name]}"), name)
    raise AttributeError(f"module 'evergram.encoders' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
