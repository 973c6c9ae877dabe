"""The corpus of a word and a context word that the objective is trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from evergram import Corpus
from reproduction.gramian.words.counts import Counts


def subsampled(counts: Counts, threshold: float) -> Counts:
    """Return the counts with frequent words thinned out.

    A word that makes a share f of the text counts √(threshold / f) where that is below 1: as often
    as word2vec's subsampling would leave it, on average. Source: Mikolov et al., "Distributed
    representations of words and phrases and their compositionality", 2013, §2.3.

    Args:
        threshold: a share of the text; 0 leaves the counts as they are.
    """
    if threshold == 0:
        return counts
    share = counts.frequency / counts.tokens
    kept = np.minimum(1.0, np.sqrt(threshold / share))
    return replace(counts, count=counts.count * kept[counts.query] * kept[counts.candidate])


def corpus_of(counts: Counts, *, rows: int, seed: int) -> Corpus:
    """Return a corpus in which a pair is repeated in proportion to its count.

    The loss of observed pairs is a plain mean over a corpus's interactions, so repeats are the
    weights. A pair of share c of all counts has ⌊rows·c + x⌋ of them, x uniform in [0, 1):
    rows·c on average, with less noise than drawing pairs.

    Args:
        rows: interactions of the corpus, about.
        seed: of x.
    Returns: ids are rows of the vocabulary.
    """
    wanted = counts.count * (rows / counts.count.sum())
    repeats = np.floor(wanted + np.random.default_rng(seed).random(len(wanted))).astype(np.int64)
    columns = {"query": counts.query, "candidate": counts.candidate}
    table = pa.table({name: np.repeat(column, repeats) for name, column in columns.items()})
    return Corpus.from_tables(table, source="The counted words")
