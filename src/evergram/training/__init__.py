"""Fit one model: from a recipe and a corpus to an encoder.

Read in this order: `recipe` (the settings), `corpora` (data and splits), `step` (one training
step), `loop` (`Trainer`: epochs of steps), `callbacks` (selection, resumption and progress hang on
them), `fit` (a recipe's run of the loop), `checkpoint` (from an encoder to an artefact and back).

[BC] Hu et al., Learning backward compatible embeddings, KDD 2022. [G1] Krichene et al., Efficient
training on very large corpora via Gramian estimation, 2018; [G2] the same, ICLR 2019.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.training.callbacks import Budget, Callback, Point
    from evergram.training.checkpoint import load_encoder
    from evergram.training.corpora import load_corpus, split_for
    from evergram.training.fit import Companions, RunContext, Trained, fit_encoder
    from evergram.training.loop import Trainer
    from evergram.training.monitors.early_stopping import EarlyStopping
    from evergram.training.progress import Progress
    from evergram.training.recipe import Recipe

__all__ = [
    "Budget",
    "Callback",
    "Companions",
    "EarlyStopping",
    "Point",
    "Progress",
    "Recipe",
    "RunContext",
    "Trained",
    "Trainer",
    "fit_encoder",
    "load_corpus",
    "load_encoder",
    "split_for",
]

# Imported when first used: to read a recipe does not wait for torch.
_HOME = {
    "Budget": "evergram.training.callbacks",
    "Callback": "evergram.training.callbacks",
    "Companions": "evergram.training.fit",
    "EarlyStopping": "evergram.training.monitors.early_stopping",
    "Point": "evergram.training.callbacks",
    "Progress": "evergram.training.progress",
    "Recipe": "evergram.training.recipe",
    "RunContext": "evergram.training.fit",
    "Trained": "evergram.training.fit",
    "Trainer": "evergram.training.loop",
    "fit_encoder": "evergram.training.fit",
    "load_corpus": "evergram.training.corpora",
    "load_encoder": "evergram.training.checkpoint",
    "split_for": "evergram.training.corpora",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'evergram.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
