"""Load interactions as a columnar corpus, split it for a version, and draw batches.

Read in this order:

1. `corpus`: `Corpus` holds two sides of entities and the pairs between them as row numbers.
   Features are ragged rows. `Corpus.of` reads frames, matrices and lists in memory.
2. `reading/`: reads tables from files and memory; `interactions` has the rules for types, units,
   time zones and bad rows.
3. The loaders: `tables` for files (Parquet, Arrow, CSV or TSV, adjacency lists, MovieLens), and
   `synthetic`, a corpus with known ground truth. `loaders` lists them by a recipe's `data.kind`.
4. `prepared/`: corpora larger than memory; `prepare` uses DuckDB to write a folder of columns.
5. `split`: holds out pairs by hash, by time, or by a published file.
6. `sampling`: batches, with the weights that make them represent a measure ([G2] Section 3.3);
   adaptive sampling keeps the entities of a pool that contribute most to the penalty.
   `sorted_pairs`: blocks of one side's rows with all their pairs, for alternating least squares.

[G2]: Krichene et al., *Efficient training on very large corpora via Gramian estimation*, ICLR 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus as Corpus
    from evergram.data.corpus import Feature as Feature
    from evergram.data.corpus import Side as Side
    from evergram.data.corpus import Vocabulary as Vocabulary
    from evergram.data.data_sets import existing as existing
    from evergram.data.prepared.prepare import PrepareSettings as PrepareSettings
    from evergram.data.prepared.prepare import prepare as prepare
    from evergram.data.split import Split as Split
    from evergram.data.split import given_split as given_split
    from evergram.data.split import random_split as random_split
    from evergram.data.split import time_split as time_split
    from evergram.data.split import window_split as window_split
    from evergram.data.synthetic import generate as generate
    from evergram.data.tables import load_adjacency_list as load_adjacency_list
    from evergram.data.tables import load_movielens as load_movielens
    from evergram.data.tables import load_table as load_table

export_lazily(__name__)
