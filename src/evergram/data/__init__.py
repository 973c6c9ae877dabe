"""Load interactions as a corpus in columns, split it for a version, and draw batches.

Read in this order:

1. `corpus`: `Corpus`, two sides of entities and the pairs between them, by rows and not by ids;
   its `features` and their `vocabulary`. `Corpus.of` reads frames, matrices and lists in memory.
2. `reading/`: the one reader of tables, in files and in memory; its `rules` are those of types,
   units, zones and bad rows.
3. The loaders, each from one kind of file to a `Corpus`: `tables` (any Parquet, Arrow, CSV or TSV,
   and adjacency lists), `movielens`, `amazon`, `wikipedia/` (MediaWiki's dumps and Wikispeedia),
   and `synthetic`, a corpus whose answer is known. `loaders` is the table of them by the kind that
   a recipe names.
4. `prepared/`: corpora that do not fit into memory; `prepare` writes a folder of columns by DuckDB.
5. `split`: pairs that are held out, by a hash (`pair_hash`), by time, or by a published file.
6. `sampling`: batches, with the weights that make them stand for a measure ([G2] Section 3.3);
   `pools`: entities that are drawn by what they contribute to the penalty.

[G2]: Krichene et al., *Efficient training on very large corpora via Gramian estimation*, ICLR 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.data.amazon import load_amazon
    from evergram.data.corpus import Corpus
    from evergram.data.data_sets import existing
    from evergram.data.features import Feature, Side
    from evergram.data.movielens import load_movielens
    from evergram.data.pair_hash import PairHash, TrainedPairs
    from evergram.data.pools import Pool, PoolSampler
    from evergram.data.prepared.prepare import prepare
    from evergram.data.prepared.settings import PrepareSettings, PrepareSummary
    from evergram.data.rolling_window import RollingWindow
    from evergram.data.sampling import EntitySampler, ExampleSampler, PairDraws
    from evergram.data.split import (
        HeldOut,
        Split,
        given_split,
        random_split,
        time_split,
        window_split,
    )
    from evergram.data.synthetic import Planted, generate
    from evergram.data.tables import load_adjacency_list, load_table
    from evergram.data.vocabulary import Vocabulary
    from evergram.data.wikipedia.dump import load_mediawiki
    from evergram.data.wikipedia.wikispeedia import load_wikispeedia

__all__ = [
    "Corpus",
    "EntitySampler",
    "ExampleSampler",
    "Feature",
    "HeldOut",
    "PairDraws",
    "PairHash",
    "Planted",
    "Pool",
    "PoolSampler",
    "PrepareSettings",
    "PrepareSummary",
    "RollingWindow",
    "Side",
    "Split",
    "TrainedPairs",
    "Vocabulary",
    "existing",
    "generate",
    "given_split",
    "load_adjacency_list",
    "load_amazon",
    "load_mediawiki",
    "load_movielens",
    "load_table",
    "load_wikispeedia",
    "prepare",
    "random_split",
    "time_split",
    "window_split",
]

export_lazily(
    __name__,
    {
        "amazon": "load_amazon",
        "corpus": "Corpus",
        "data_sets": "existing",
        "features": "Feature Side",
        "movielens": "load_movielens",
        "pair_hash": "PairHash TrainedPairs",
        "pools": "Pool PoolSampler",
        "prepared.prepare": "prepare",
        "prepared.settings": "PrepareSettings PrepareSummary",
        "rolling_window": "RollingWindow",
        "sampling": "EntitySampler ExampleSampler PairDraws",
        "split": "HeldOut Split given_split random_split time_split window_split",
        "synthetic": "Planted generate",
        "tables": "load_adjacency_list load_table",
        "vocabulary": "Vocabulary",
        "wikipedia.dump": "load_mediawiki",
        "wikipedia.wikispeedia": "load_wikispeedia",
    },
)
