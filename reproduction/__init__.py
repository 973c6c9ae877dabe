"""Every table and figure of the three papers; `python -m reproduction` lists them.

It uses Evergram's public names only, like a user's program, except in `comparison/` and `loaders/`
(a test checks the imports). Read in this order:

1. `experiment`: describes an experiment. Its presets are lists of trainings, each a recipe with
   settings, and `readings/` measure each training while it runs.
2. `run`: runs trainings without a result. `results`: one JSON file per training, keyed by settings.
3. `gramian/`, `bc/`: the recipes and experiments (one file each) of [G1], [G2] and of [BC].
   `comparison/`: compares methods, used by `bc/`.
   `catalogue`: all experiments, including those that cannot be run.
4. `claims`: the papers' claims, judged by the results. `report/`: the page and its figures.
   `commands`: the functions behind `python -m reproduction`.
5. `loaders/`: additional kinds of data.

Sources: [G1] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
2018; [G2] the same, ICLR 2019; [BC] Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

# The import registers the additional kinds of data.
from reproduction import loaders as loaders
