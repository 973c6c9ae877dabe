"""Retrieval: stored embeddings at any version, and vectors of objects that are not stored.

`Reader` fetches, searches and recommends at any version of a lineage, from stores that hold one
version or several; `PretrainedEncoder` embeds an object by its id and features; `Backfill` brings a
store to a newer version.

To read the room, begin with `version_maps` (from one version to another, for rows and for queries)
and `metric_search` (three metrics on one index of inner products); then `reader`, `store_check` and
`fill`; then `backfill` with its journal. `pretrained/` stands alone.

One index serves all versions because the maps are affine: `docs/method.md`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.retrieval.backfill import Backfill
    from evergram.retrieval.embedded import Embedded
    from evergram.retrieval.pretrained.pretrained_encoder import PretrainedEncoder
    from evergram.retrieval.reader import Reader

__all__ = [
    "Backfill",
    "Embedded",
    "PretrainedEncoder",
    "Reader",
]

# Imported when first used: a client of the service needs `Embedded` and no torch.
_HOME = {
    "Backfill": "backfill",
    "Embedded": "embedded",
    "PretrainedEncoder": "pretrained.pretrained_encoder",
    "Reader": "reader",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
