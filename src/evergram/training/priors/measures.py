"""Weights in the penalty: measures of entities, and sparse weights of observed pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary, to_tensor
from evergram.data.sampling import measure
from evergram.data.tables import read_keyed
from evergram.errors import DataError
from evergram.ids import refuse_other_form


def build_measures(chosen: Sequence[float | str], corpus: Corpus, side: str) -> Tensor:
    """Return the R measures of a side, p_a ∝ count_a^γ or from a file of weights, float64 [N, R].

    Args:
        chosen: of each measure, a power of the counts, or the path of a file of weights.
    Raises: DataError: a file of weights cannot be used.
    """
    entities = corpus.queries if side == "query" else corpus.candidates
    counts = corpus.counts(side)
    columns = [
        _weights_of(Path(item), entities.vocabulary)
        if isinstance(item, str)
        else measure(counts, item)
        for item in chosen
    ]
    return torch.stack(columns, dim=1)


def sparse_weights(
    sparse: str, penalty: Sequence[float], corpus: Corpus, measures: Mapping[str, Tensor]
) -> Tensor | None:
    """Return weights w of observed pairs in (1/n) Σ w (s − π)², float64 [n]; None without."""
    if sparse == "none":
        return None
    if sparse == "weight":
        return corpus.column("weight").double()
    # Take the penalty of a pair off again, once however often the pair was observed.
    query, candidate = corpus.column("query"), corpus.column("candidate")
    _, place, times = torch.unique(
        query * len(corpus.candidates) + candidate, return_inverse=True, return_counts=True
    )
    total = torch.zeros(len(corpus), dtype=torch.float64)
    for r, strength in enumerate(penalty):
        total += strength * measures["query"][query, r] * measures["candidate"][candidate, r]
    weight: Tensor = -total * len(corpus) / times[place]
    return weight


def _weights_of(path: Path, vocabulary: Vocabulary) -> Tensor:
    """Return the measure of a file with columns `id` and `weight`, float64 [N]; an id that it lacks
    weighs 0. Raises: DataError: the file cannot be used."""
    ids, column = read_keyed(path, "weight", numbers=True)
    value = to_tensor(column)
    refuse_other_form(ids, vocabulary.keys, str(path), "the corpus")
    rows = Vocabulary(ids).rows(vocabulary.keys)
    weight = torch.where(rows >= 0, value[rows.clamp(min=0)], 0.0)
    if float(weight.sum()) == 0:
        raise DataError(f"{path} gives no weight to any entity of the corpus.")
    return weight / weight.sum()
