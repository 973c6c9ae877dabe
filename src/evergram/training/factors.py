"""Entity measures, pair weights, prior factors and initial vectors, from a corpus and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus, Vocabulary, to_tensor
from evergram.data.sampling import measure
from evergram.data.tables import read_keyed
from evergram.encoders.encoder import SIDES, Encoder, Factorization
from evergram.encoders.kinds import FactorizationSettings
from evergram.errors import DataError, RecipeError
from evergram.ids import refuse_other_form
from evergram.mapped_tensors import zeros_beside

# Power iterations of the randomised decomposition.
POWER_STEPS = 4


def build_measures(chosen: Sequence[float | str], counts: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the R measures of a side, float64 [N, R]. Raises: DataError.

    Args:
        chosen: for each measure, γ of p_a ∝ count_a^γ, or the path of a file with columns `id` and
            `weight`.
        counts: int64 [N], interactions of each entity.
        vocabulary: the ids of the side.
    """
    columns = []
    for item in chosen:
        if not isinstance(item, str):
            columns.append(measure(counts, item))
            continue
        path = Path(item)
        ids, column = read_keyed(path, "weight", numbers=True)
        rows = _rows_of(ids, vocabulary, path)
        weight = torch.where(rows >= 0, to_tensor(column)[rows.clamp(min=0)], 0.0)
        if float(weight.sum()) == 0:
            raise DataError(f"{path} gives no weight to any entity of the corpus.")
        columns.append(weight / weight.sum())
    if len(columns) == 1:
        return columns[0][:, None]
    shape = len(counts), len(columns)
    table = zeros_beside(counts, *shape, dtype=torch.float64)
    return torch.stack(columns, dim=1, out=table)


def _rows_of(ids: pa.Array, vocabulary: Vocabulary, path: Path) -> Tensor:
    """Return the file row of each vocabulary id, int64 [N]; −1 for ids that the file lacks."""
    refuse_other_form(ids, vocabulary.keys, str(path), "the corpus")
    return Vocabulary(ids).rows(vocabulary.keys)


def read_vectors(path: Path, vocabulary: Vocabulary) -> Tensor:
    """Return the vectors of a file with columns `id` and `vector`, float32 [N, K]; zeros for ids
    that the file lacks. Raises: DataError."""
    ids, chunks = read_keyed(path, "vector")
    column = chunks.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    lists = isinstance(column.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
    numbers = column.type.value_type if lists else pa.null()
    if not (pa.types.is_floating(numbers) or pa.types.is_integer(numbers)):
        raise DataError(f"{path} column 'vector' is {column.type}; it must hold lists of numbers.")
    flat = to_tensor(column.flatten().cast(pa.float32()))
    lengths = pc.count_distinct(pc.list_value_length(column)).as_py()
    if column.null_count or lengths != 1 or not bool(torch.isfinite(flat).all()):
        raise DataError(
            f"{path} column 'vector' needs lists of finite numbers, all of the same length."
        )
    vectors = flat.view(len(column), -1)
    rows = _rows_of(ids, vocabulary, path)
    if not bool((rows >= 0).any()):
        raise DataError(f"{path} has none of the corpus's ids; is it for the other side?")
    return vectors[rows.clamp(min=0)] * (rows >= 0)[:, None]


def sparse_weights(
    sparse: str, penalty: Sequence[float], corpus: Corpus, measures: Mapping[str, Tensor]
) -> Tensor:
    """Return the weights w of observed pairs in (1/n) Σ w (s − π)², float64 [n]: for "weight",
    the column of that name; for "exclude", weights that cancel the penalty's terms."""
    if sparse == "weight":
        return corpus.column("weight").double()
    # Subtract each pair's penalty once, divided among repeated observations.
    query, candidate = corpus.column("query"), corpus.column("candidate")
    _, pair, times = torch.unique(
        query * len(corpus.candidates) + candidate, return_inverse=True, return_counts=True
    )
    total = torch.zeros(len(corpus), dtype=torch.float64)
    for r, strength in enumerate(penalty):
        total += strength * measures["query"][query, r] * measures["candidate"][candidate, r]
    weight: Tensor = -total * len(corpus) / times[pair]
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
    for each side. It is randomised, with 2 · rank Gaussian vectors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        samples = min(2 * rank, *matrix.shape)
        left, values, right = torch.svd_lowrank(matrix, q=samples, niter=POWER_STEPS)
    root = values[:rank].sqrt()
    return {"query": left[:, :rank] * root, "candidate": right[:, :rank] * root}


# After a projection, a float32 row smaller than this share of its old norm is only rounding.
ROUNDING = 1e-5


def smooth_start(matrix: NormalisedMatrix, dim: int, seed: int) -> dict[str, Tensor]:
    """Return Gaussian vectors smoothed over the graph, without popularity, [N, dim] for each side.

    With the matrix N and G ~ N(0, 1) for the candidates, candidates get NᵀN G and queries N NᵀN G,
    both projected off the first singular vectors, the direction of popularity.

    Returns: rows of norm 1; zeros for entities without pairs, and where only rounding is left.
    """
    product, transposed = matrix.matrix, matrix.transposed
    noise = torch.randn(
        transposed.shape[0], dim, generator=torch.Generator().manual_seed(seed), dtype=product.dtype
    )
    candidates = transposed @ (product @ noise)
    raw = {"query": product @ candidates, "candidate": candidates}
    vectors = {}
    for side, direction in zip(SIDES, matrix.leading_pair(), strict=True):
        rest = raw[side] - torch.outer(direction, direction @ raw[side])
        rounding = rest.norm(dim=1) <= ROUNDING * raw[side].norm(dim=1)
        vectors[side] = functional.normalize(rest, dim=1).masked_fill(rounding[:, None], 0.0)
    return vectors


def start_tables(encoder: Encoder, model: FactorizationSettings, corpus: Corpus, seed: int) -> None:
    """Write the initial vectors of `model.start` into an encoder's tables, in place.

    Entities without a pair keep their random rows: the matrix has no information about them, and
    rows of zeros would get no gradient. The same seed and number of threads give identical bits.

    Raises: RecipeError: the tables are mapped from files.
    """
    assert isinstance(encoder, Factorization)
    if encoder.tables_folder is not None:
        raise RecipeError(
            f"model.start = {model.start!r} needs tables in memory, and they are mapped from files "
            "because of training.tables or too little memory; set model.start = 'random', or keep "
            "the tables in memory."
        )
    vectors = smooth_start(NormalisedMatrix.of(corpus), encoder.dim, seed)
    scale = model.start_scale * encoder.dim**0.5
    scene = encoder.read(corpus)
    for side, table in (("query", encoder.query), ("candidate", encoder.candidate)):
        rows = vectors[side]
        has_vector = (corpus.counts(side) > 0) & rows.any(dim=1)
        rows = rows if model.normalize else rows * scale
        with torch.no_grad():
            table.weight[scene.ids(side)[has_vector]] = rows[has_vector].to(table.weight)


def distinct_pairs(corpus: Corpus) -> Tensor:
    """Return the distinct observed pairs, sorted by query and candidate, int64 [2, n]."""
    size = len(corpus.candidates)
    keys = torch.unique(corpus.column("query") * size + corpus.column("candidate"))
    return torch.stack([keys // size, keys % size])


# Added to the degrees, so that entities with few pairs do not get large weights.
DAMPING = 5.0
LEADING_STEPS = 20


@dataclass(frozen=True)
class NormalisedMatrix:
    """(D_u + 5)^-½ R (D_i + 5)^-½, where R is 1 for observed pairs, and D_u, D_i are its row and
    column sums.

    The matrices are sparse COO; `degrees` has the number of distinct pairs per entity, [N] a side.
    """

    matrix: Tensor
    transposed: Tensor
    degrees: dict[str, Tensor]

    @classmethod
    def of(cls, corpus: Corpus, dtype: torch.dtype = torch.float32) -> NormalisedMatrix:
        """Return the matrix of a corpus; repeated pairs count once."""
        shape, pairs = (len(corpus.queries), len(corpus.candidates)), distinct_pairs(corpus)
        degrees = {
            side: torch.bincount(rows, minlength=size).to(dtype)
            for side, rows, size in zip(SIDES, pairs, shape, strict=True)
        }
        roots = [(degrees[side] + DAMPING).rsqrt() for side in SIDES]
        values = roots[0][pairs[0]] * roots[1][pairs[1]]
        matrix = torch.sparse_coo_tensor(pairs, values, shape, check_invariants=False).coalesce()
        return cls(matrix, matrix.t().coalesce(), degrees)

    def leading_pair(self) -> tuple[Tensor, Tensor]:
        """Return the first singular vectors, [queries] and [candidates], of norm 1: the direction
        of popularity, about √counts. Power iteration from √counts finds them."""
        right = self.degrees["candidate"].sqrt()[:, None]
        for _ in range(LEADING_STEPS):
            right = functional.normalize(self.transposed @ (self.matrix @ right), dim=0)
        left = functional.normalize(self.matrix @ right, dim=0)
        return left[:, 0], right[:, 0]
