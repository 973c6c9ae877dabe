"""Fit one model: from a recipe and a corpus to a trained encoder.

Read in this order:

1. `recipe/`: everything that a run is made of, in one TOML file (`docs/recipes.md`).
2. `build`: from a recipe to a corpus, and to the pairs that one version trains and is tested on;
   and from settings, with numbers for "auto", to encoder, task, estimators, samplers and
   `optimizers`, and where tables are. `factors`: what the penalty weighs and pulls to.
3. `step`: one step, in the order that the estimators ask for ([G2] Algorithms 1 and 2). `joint`:
   the alignment to the version before, in the same step ([BC] Eq. 3). `distributed`: what
   processes tell each other.
4. `fit`: one training, which keeps its best epoch (`selection`). `loop`: its epochs of steps;
   `callbacks` stop and report, and `resuming` restores an interrupted run bit for bit.
   `checkpoint` turns a trained encoder into an artefact and back.
5. `diagnose`: the spectrum, the scores and the estimators' errors of a trained version.
6. `first_recipe`: a recipe for a file that nobody has described yet.

Sources: [G2] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
ICLR 2019; [BC] Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.training.build import load_corpus as load_corpus
    from evergram.training.build import pick_device as pick_device
    from evergram.training.build import split_for as split_for
    from evergram.training.callbacks import Callback as Callback
    from evergram.training.checkpoint import load_encoder as load_encoder
    from evergram.training.diagnose import Diagnosis as Diagnosis
    from evergram.training.diagnose import Tracking as Tracking
    from evergram.training.diagnose import diagnose as diagnose
    from evergram.training.fit import RunContext as RunContext
    from evergram.training.fit import Trained as Trained
    from evergram.training.fit import fit_encoder as fit_encoder
    from evergram.training.loop import Trainer as Trainer
    from evergram.training.progress import Progress as Progress
    from evergram.training.recipe import Recipe as Recipe
    from evergram.training.resuming import CheckpointSettings as CheckpointSettings

export_lazily(__name__)
