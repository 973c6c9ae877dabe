"""Fit one model: from a recipe and a corpus to a trained encoder.

Read in this order:

1. `recipe/`: all settings of a run, in one TOML file (`docs/recipes.md`).
2. `build`: loads the recipe's corpus, splits it for one version, replaces "auto" by numbers, and
   builds the encoder, task, estimators, samplers and `optimizers`. `factors`: entity measures, pair
   weights, priors and starting vectors.
3. `step`: one training step, in the order that the estimators require ([G2] Algorithms 1 and 2).
   `joint`: the alignment to the previous version, in the same step ([BC] Eq. 3). `distributed`:
   communication between processes.
4. `fit`: one training run, which keeps its best epoch (`selection`). `loop`: the epochs;
   `callbacks` stop and report, and `resuming` restores an interrupted run bit for bit.
   `checkpoint` turns a trained encoder into an artefact and back.
5. `diagnose`: a trained version's spectrum and scores, and the errors of its estimators.
6. `first_recipe`: writes a first recipe for a file of interactions; `corpus_plan` plans the time,
   memory and disk of a large one.

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
    from evergram.training.corpus_plan import CorpusPlan as CorpusPlan
    from evergram.training.corpus_plan import plan_corpus as plan_corpus
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
