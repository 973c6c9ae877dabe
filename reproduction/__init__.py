"""Every table and figure of the three papers; `python -m reproduction` lists them.

It uses Evergram's public names only, as a reader's own program would, but for `comparison/` and
`loaders/` (a test looks at its imports). Read in this order:

1. `experiment`: one description of every experiment: its presets are lists of trainings, each a
   recipe with settings, and `readings/` say what is read from each while it runs.
2. `run`: trains what is not there yet. `results`: one JSON a training, keyed by its settings.
3. `gramian/`, `bc/`: one folder a paper: its recipes, and a file an experiment. `comparison/`:
   methods side by side, of which `bc/` is made.
   `catalogue`: all experiments, with what cannot be run.
4. `claims`: the papers' sentences, judged by the results. `report/`: the pages and pictures.
   `commands`: what `python -m reproduction` calls.
5. `loaders/`: kinds of data that are added to the package's.

Sources: [G1] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
2018; [G2] the same, ICLR 2019; [BC] Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

# Importing them adds their kinds of data, and their sets.
from reproduction import loaders as loaders
