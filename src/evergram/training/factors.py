"""Measures of entities, weights of pairs and factors of priors, from counts and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary, to_tensor
from evergram.data.sampling import measure
from evergram.data.tables import read_keyed
from evergram.encoders.features import SIDES
from evergram.errors import DataError
from evergram.ids import refuse_other_form

# Power steps of the randomised decomposition.
POWER_STEPS = 4


def build_measures(chosen: Sequence[float | str], counts: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the R measures of a side, float64 [N, R]: p_a ∝ count_a^γ for each number chosen, or
    from a file of weights for each path. Raises: DataError.

    Args:
        counts: int64 [N], interactions of each entity.
        vocabulary: the ids of the side.
    """
    columns = [
        _weights_of(Path(item), vocabulary) if isinstance(item, str) else measure(counts, item)
        for item in chosen
    ]
    return torch.stack(columns, dim=1)


def _weights_of(path: Path, vocabulary: Vocabulary) -> Tensor:
    """Return the measure of a file with columns `id` and `weight`, float64 [N]; an id that it lacks
    weighs 0. Raises: DataError: the file cannot be used."""
    ids, column = read_keyed(path, "weight", numbers=True)
    value = to_tensor(column)
    rows = _rows_of(ids, vocabulary, path)
    weight = torch.where(rows >= 0, value[rows.clamp(min=0)], 0.0)
    if float(weight.sum()) == 0:
        raise DataError(f"{path} gives no weight to any entity of the corpus.")
    return weight / weight.sum()


def _rows_of(ids: pa.Array, vocabulary: Vocabulary, path: Path) -> Tensor:
    """Return the row of a file for each entity of a corpus, −1 without one."""
    refuse_other_form(ids, vocabulary.keys, str(path), "the corpus")
    return Vocabulary(ids).rows(vocabulary.keys)


def read_vectors(path: Path, vocabulary: Vocabulary) -> Tensor:
    """Return the vectors of a file with columns `id` and `vector`, float32 [N, K]; an id that it
    lacks has zeros. Raises: DataError.
    """
    ids, chunks = read_keyed(path, "vector")
    column = chunks.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    kind = column.type
    listed = any(
        is_kind(kind)
        for is_kind in (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    )
    if not listed or not (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    ):
        raise DataError(f"{path} column 'vector' is {kind}; it must hold lists of numbers.")
    flat = to_tensor(column.flatten().cast(pa.float32()))
    alike = not column.null_count and pc.count_distinct(pc.list_value_length(column)).as_py() == 1
    if not alike or not bool(torch.isfinite(flat).all()):
        raise DataError(f"{path} column 'vector' needs lists of finite numbers, all of one length.")
    vectors = flat.view(len(column), -1)
    rows = _rows_of(ids, vocabulary, path)
    if not bool((rows >= 0).any()):
        raise DataError(f"{path} knows none of the corpus's ids; is it of the other side?")
    return vectors[rows.clamp(min=0)] * (rows >= 0)[:, None]


def sparse_weights(
    sparse: str, penalty: Sequence[float], corpus: Corpus, measures: Mapping[str, Tensor]
) -> Tensor:
    """Return weights w of observed pairs in (1/n) Σ w (s − π)², float64 [n]."""
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


def prior_constant(
    prior: Mapping[str, Tensor], measures: Mapping[str, Tensor], strengths: list[float]
) -> float:
    """Return Σ_r λ_r Σ_ab p_a q_b ⟨q_a, r_b⟩², summed in float64."""
    total = 0.0
    for r, strength in enumerate(strengths):
        query, candidate = (
            (prior[s].double() * measures[s][:, r, None]).T @ prior[s].double() for s in SIDES
        )
        total += strength * float((query * candidate).sum())
    return total


def svd_factors(matrix: Tensor, rank: int, seed: int) -> dict[str, Tensor]:
    """Return U √Σ and V √Σ of a sparse matrix's truncated singular value decomposition, [N, rank]
    of each side, randomised, from twice as many Gaussian vectors as it keeps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        most = min(2 * rank, *matrix.shape)
        left, values, right = torch.svd_lowrank(matrix, q=most, niter=POWER_STEPS)
    root = values[:rank].sqrt()
    return {"query": left[:, :rank] * root, "candidate": right[:, :rank] * root}
