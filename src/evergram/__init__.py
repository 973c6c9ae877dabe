"""Train embeddings without negative sampling, and ship new versions without breaking anyone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus
    from evergram.errors import EvergramError
    from evergram.lineage.artefact import Artefact
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.reader import Reader
    from evergram.lineage.view import View
    from evergram.serving.client import Client
    from evergram.training.compare import compare
    from evergram.training.corpora import load_corpus
    from evergram.training.publish import publish
    from evergram.training.recipe import Recipe
    from evergram.training.upgrade import evaluate, train, upgrade

__all__ = [
    "Artefact",
    "Client",
    "Corpus",
    "EvergramError",
    "Lineage",
    "Reader",
    "Recipe",
    "View",
    "compare",
    "evaluate",
    "load_corpus",
    "publish",
    "train",
    "upgrade",
]

# Imported when first used: `import evergram` does not wait for torch.
_HOME = {
    "Artefact": "evergram.lineage.artefact",
    "Client": "evergram.serving.client",
    "Corpus": "evergram.data.corpus",
    "EvergramError": "evergram.errors",
    "Lineage": "evergram.lineage.lineage",
    "Reader": "evergram.lineage.reader",
    "Recipe": "evergram.training.recipe",
    "View": "evergram.lineage.view",
    "compare": "evergram.training.compare",
    "evaluate": "evergram.training.upgrade",
    "load_corpus": "evergram.training.corpora",
    "publish": "evergram.training.publish",
    "train": "evergram.training.upgrade",
    "upgrade": "evergram.training.upgrade",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'evergram' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
