"""Train embeddings without negative sampling, and ship new versions without breaking anyone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from evergram.data.corpus import Corpus
    from evergram.encoders.encoder_modules import EncoderModules
    from evergram.errors import EvergramError
    from evergram.lineage.artefact import Artefact
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.view import View
    from evergram.releasing.comparison.compare import compare
    from evergram.releasing.publish import publish
    from evergram.releasing.upgrade import evaluate, train, upgrade
    from evergram.retrieval.pretrained.pretrained_encoder import PretrainedEncoder
    from evergram.retrieval.reader import Reader
    from evergram.serving.client import Client
    from evergram.training.checkpoint import load_encoder
    from evergram.training.corpora import load_corpus, split_for
    from evergram.training.recipe import Recipe

__all__ = [
    "Artefact",
    "Client",
    "Corpus",
    "EncoderModules",
    "EvergramError",
    "Lineage",
    "PretrainedEncoder",
    "Reader",
    "Recipe",
    "View",
    "__version__",
    "compare",
    "evaluate",
    "load_corpus",
    "load_encoder",
    "publish",
    "split_for",
    "train",
    "upgrade",
]

# Imported when first used: `import evergram` does not wait for torch.
_HOME = {
    "Artefact": "evergram.lineage.artefact",
    "Client": "evergram.serving.client",
    "Corpus": "evergram.data.corpus",
    "EncoderModules": "evergram.encoders.encoder_modules",
    "EvergramError": "evergram.errors",
    "Lineage": "evergram.lineage.lineage",
    "PretrainedEncoder": "evergram.retrieval.pretrained.pretrained_encoder",
    "load_encoder": "evergram.training.checkpoint",
    "Reader": "evergram.retrieval.reader",
    "Recipe": "evergram.training.recipe",
    "View": "evergram.lineage.view",
    "compare": "evergram.releasing.comparison.compare",
    "evaluate": "evergram.releasing.upgrade",
    "load_corpus": "evergram.training.corpora",
    "publish": "evergram.releasing.publish",
    "split_for": "evergram.training.corpora",
    "train": "evergram.releasing.upgrade",
    "upgrade": "evergram.releasing.upgrade",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Read from the installed package when it is asked for: it takes longer than the import.
        return import_module("importlib.metadata").version("evergram")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'evergram' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
