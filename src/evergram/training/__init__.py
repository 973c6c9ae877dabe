"""Fit one model: from a recipe and a corpus to a trained encoder.

Read in this order:

1. `recipe/`: everything that a run is made of, in one TOML file (`docs/recipes.md`).
2. `corpora`: from a recipe to a corpus, and to the pairs that one version trains and is tested on.
   `build`: from settings to encoder, task, estimators, samplers and `optimizers`; `priors/`.
3. `step`: one step, in the order that the estimators ask for ([G2] Algorithms 1 and 2). `joint`:
   the alignment to the version before, in the same step ([BC] Eq. 3).
4. `fit`: one training, which keeps its best epoch. `loop`: its epochs of steps; `callbacks` and
   `monitors/` stop, measure and report; `checkpoints/` restore an interrupted run bit for bit.
   `checkpoint` turns a trained encoder into an artefact and back.
5. `diagnose`: the spectrum, the scores and the estimators' errors of a trained version.
6. `first_recipe/`: a recipe for a file that nobody has described yet.

Sources: [G2] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
ICLR 2019; [BC] Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.training.build import Companions, pick_device
    from evergram.training.callbacks import Budget, Callback, Point
    from evergram.training.checkpoint import load_encoder
    from evergram.training.checkpoints.settings import CheckpointSettings
    from evergram.training.corpora import load_corpus, split_for
    from evergram.training.diagnose import Diagnosis, diagnose
    from evergram.training.fit import RunContext, Trained, fit_encoder
    from evergram.training.loop import Trainer
    from evergram.training.monitors.early_stopping import EarlyStopping
    from evergram.training.monitors.gramian_tracking import Tracking
    from evergram.training.progress import Progress
    from evergram.training.recipe import Recipe

__all__ = [
    "Budget",
    "Callback",
    "CheckpointSettings",
    "Companions",
    "Diagnosis",
    "EarlyStopping",
    "Point",
    "Progress",
    "Recipe",
    "RunContext",
    "Tracking",
    "Trained",
    "Trainer",
    "diagnose",
    "fit_encoder",
    "load_corpus",
    "load_encoder",
    "pick_device",
    "split_for",
]

export_lazily(
    __name__,
    {
        "build": "Companions pick_device",
        "callbacks": "Budget Callback Point",
        "checkpoints.settings": "CheckpointSettings",
        "checkpoint": "load_encoder",
        "corpora": "load_corpus split_for",
        "diagnose": "Diagnosis diagnose",
        "fit": "RunContext Trained fit_encoder",
        "loop": "Trainer",
        "monitors.early_stopping": "EarlyStopping",
        "monitors.gramian_tracking": "Tracking",
        "progress": "Progress",
        "recipe": "Recipe",
    },
)
