"""The exact softmax over all candidates, with an optional pull on a candidate's neighbours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from evergram.data.corpus import offsets_of, take_ragged
from evergram.data.sampling import Batch
from evergram.errors import DataError
from evergram.tasks.task import Encoded, Moments, Task, score

# Similarities in memory at a time.
BLOCK = 1 << 24
# Buffers of a matrix in CSR format.
CSR = ("starts", "columns", "values")


class CandidateNeighbours(nn.Module):
    """The k nearest neighbours of each candidate by shared queries, with weights K that sum to 1.

    The similarity of b and c is n_c^-½ Σ_a n_a^-½ over the queries a that both share, where n
    counts distinct pairs: a cosine in which a query weighs n_a^-½, without n_b^-½, which cancels
    in the shares.

    Args:
        nearest: int64 [N, k], rows of candidates.
        share: float [N, k]; rows sum to 1. A candidate without shared queries is its own neighbour.
    """

    def __init__(self, nearest: Tensor, share: Tensor) -> None:
        super().__init__()
        size, k = nearest.shape
        columns, values = nearest.flatten(), share.flatten()
        order = torch.argsort(columns, stable=True)
        starts = offsets_of(torch.bincount(columns, minlength=size))
        transpose = starts, order // k, values[order]
        buffers = k * torch.arange(size + 1), columns, values, *transpose
        names = (*CSR, *(f"back_{name}" for name in CSR))
        for name, buffer in zip(names, buffers, strict=True):
            self.register_buffer(name, buffer, persistent=False)

    @classmethod
    def of(cls, query: Tensor, candidate: Tensor, queries: int, candidates: int, k: int) -> Self:
        """Return the neighbours in a corpus; repeated pairs count once.

        Args:
            query, candidate: int64 [P], rows of the pairs.
            queries, candidates: number of entities.
            k: neighbours per candidate; fewer if there are fewer other candidates.
        """
        key = torch.unique(query * candidates + candidate)
        query, candidate = key // candidates, key % candidates
        query_counts = torch.bincount(query, minlength=queries)
        counts = torch.bincount(candidate, minlength=candidates)
        shape = queries, candidates
        by_query = _csr(offsets_of(query_counts), candidate, query_counts[query].rsqrt(), shape)
        order, starts = torch.argsort(candidate, stable=True), offsets_of(counts)
        # For each candidate, an upper bound of the number of candidates that share a query with it.
        most = torch.zeros(candidates, dtype=torch.int64)
        most = most.index_add_(0, candidate, query_counts[query]).clamp_(max=candidates)
        k = max(1, min(k, candidates - 1))
        nearest = torch.empty(candidates, k, dtype=torch.int64)
        share = torch.empty(candidates, k)
        scale = counts.clamp(min=1).rsqrt()
        for rows in _blocks(most.clamp_(min=k)):
            pairs, block_starts = take_ragged(order, starts, rows)  # sorted by candidate
            block = _csr(block_starts, query[pairs], torch.ones(len(pairs)), (len(rows), queries))
            similarity = torch.sparse.mm(block, by_query)
            values, nearest[rows] = _top_entries(similarity, rows, scale, k)
            total = values.sum(1, keepdim=True)
            share[rows] = values / total.clamp(min=1e-30)
            isolated = rows[total[:, 0] == 0]
            nearest[isolated, 0], share[isolated, 0] = isolated, 1.0
        return cls(nearest, share)

    def forward(self, rows: Tensor) -> Tensor:
        """Return K X = Σ_c K_bc x_c for rows x [N, D], as [N, D]; differentiable."""
        matrix, transposed = ([getattr(self, p + name) for name in CSR] for p in ("", "back_"))
        product: Tensor = _Product.apply(rows, matrix, transposed)  # type: ignore[no-untyped-call]
        return product


class _Product(torch.autograd.Function):
    """K X, whose gradient multiplies by Kᵀ."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: list[Tensor], transposed: list[Tensor]) -> Tensor:
        ctx.transposed = transposed
        return _matmul(rows, *matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _matmul(grad, *ctx.transposed), None, None


def _matmul(rows: Tensor, starts: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Return a CSR matrix times rows; faster than torch.sparse.mm."""
    return functional.embedding_bag(
        columns,
        rows.contiguous(),
        starts,
        mode="sum",
        per_sample_weights=values.to(rows),
        include_last_offset=True,
    )


def _blocks(most: Tensor) -> Iterator[Tensor]:
    """Yield blocks of rows whose size times their largest `most` is at most `BLOCK`."""
    order = torch.argsort(most, stable=True)
    start = 0
    while start < len(order):
        rows = BLOCK // int(most[order[start]])
        last = order[min(start + max(rows, 1), len(order)) - 1]
        stop = start + max(1, BLOCK // int(most[last]))
        yield order[start:stop]
        start = stop


def _top_entries(matrix: Tensor, excluded: Tensor, scale: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of each row of a CSR matrix [B, N], and their columns. Columns
    are multiplied by `scale` [N]; one column per row, `excluded` [B], is left out."""
    starts, columns = matrix.crow_indices(), matrix.col_indices()
    lengths = starts.diff()
    row = torch.repeat_interleave(torch.arange(len(excluded)), lengths)
    position = torch.arange(len(columns)) - starts[row]
    values = matrix.values() * scale[columns]
    values[columns == excluded[row]] = 0.0
    # Rows with fewer than k entries are padded with zeros.
    shape = len(excluded), max(k, int(lengths.max()))
    padded = torch.zeros(shape)
    padded[row, position] = values
    largest, positions = padded.topk(k, dim=1)
    padded_columns = torch.zeros(shape, dtype=torch.int64)
    padded_columns[row, position] = columns
    return largest, padded_columns.gather(1, positions)


def _csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix from entries sorted by row."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


class SoftmaxAll(Task):
    """Cross entropy of each pair's candidate among all candidates, without sampling.

    The loss of a pair (a, b) is −s_ab/τ + κ log Z_a, where Z_a sums e^{s/τ} over all candidates and
    is computed once for each distinct query of the batch. The batch's loss is the sum over its
    pairs, divided by the average number of pairs in a batch.

    Args:
        temperature: τ.
        push: κ, the weight of the log-partition; 1 is the softmax.
        largest_share: q, the limit of a candidate's share of a query's softmax; None is no limit.
            There must be more than 1/q candidates.
        neighbours, neighbour_share: K and ε: a pair's score is (1 − ε) s_ab + ε Σ_c K_bc s_ac,
            which also pulls the candidate's neighbours.
    Source: docs/method.md, "The softmax over all candidates", and the sections below it. κ: the
        code of Wu et al. 2024, where it is the ratio of two temperatures.
    """

    wants_all_candidates = True
    is_mean_of_pairs = True

    def __init__(
        self,
        temperature: float = 1.0,
        *,
        push: float = 1.0,
        largest_share: float | None = None,
        neighbours: CandidateNeighbours | None = None,
        neighbour_share: float = 0.0,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.push = push
        self.largest_share = largest_share
        self.neighbours = neighbours
        self.neighbour_share = neighbour_share

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        assert encoded.all_candidates is not None
        if self.largest_share is not None:
            check_share(self.largest_share, len(encoded.all_candidates))
        _, query, times = torch.unique(batch.query, return_inverse=True, return_counts=True)
        first = torch.argsort(query, stable=True)[times.cumsum(0) - times]  # pair of each query
        weight = times.to(encoded.query)
        if batch.pair_share is not None:
            weight = weight * batch.pair_share[first].to(weight)
        pushed = log_partition_sum(
            encoded.queries[first],
            encoded.all_candidates,
            weight,
            self.temperature,
            largest_share=self.largest_share,
            lower_products=self.lower_products,
        )
        scores = self._scores(encoded, batch)
        mean = scores.new_zeros(len(times)).index_add(0, query, scores) / times
        pulled = (weight * (mean / self.temperature)).sum()
        loss: Tensor = (self.push * pushed - pulled) / len(batch.query)
        return loss

    def _scores(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return the pairs' scores, mixed with those of their neighbours if any, [B]."""
        scores = score(encoded)
        if self.neighbours is None:
            return scores
        assert encoded.all_candidates is not None
        neighbours = self.neighbours(encoded.all_candidates)[batch.candidate]
        return torch.lerp(scores, (encoded.query * neighbours).sum(-1), self.neighbour_share)


def check_share(share: float, candidates: int) -> None:
    """Raise DataError unless the shares of all candidates can add up to 1."""
    if share * candidates <= 1:
        raise DataError(
            f"task.largest_share is {share:g}, so the shares of {candidates:,} candidates cannot "
            f"add up to 1; it must be above 1/{candidates:,} and below 1, such as "
            f"{min(2 / candidates, (1 + 1 / candidates) / 2):.2g}."
        )


# Scores [T, N] in memory at a time.
TILE_SCORES = 1 << 24
# On a CPU, scores of a tile that are turned into shares at a time, to fit into the cache.
CACHED_SCORES = 1 << 18


def log_partition_sum(
    query: Tensor,
    candidates: Tensor,
    weight: Tensor,
    temperature: float,
    *,
    largest_share: float | None = None,
    lower_products: bool = False,
    tile_scores: int = TILE_SCORES,
) -> Tensor:
    """Return Σ_a w_a log Z_a, Z_a = Σ_b exp(⟨u_a, v_b⟩/τ) over all candidates b; differentiable.

    The scores [Q, N] are computed once, in tiles of queries, together with the gradients of the
    dense softmax, ∂/∂u_a = w_a Σ_b p_ab v_b/τ and ∂/∂v_b = Σ_a w_a p_ab u_a/τ. At most
    max(`tile_scores`, N) scores are in memory at a time.

    Args:
        query: [Q, D].
        candidates: [N, D].
        weight: w, [Q]; it gets no gradient.
        temperature: τ.
        largest_share: q, the limit of every p_ab; log Z_a is then the A of `limit_shares`. None is
            no limit. There must be more than 1/q candidates.
        lower_products: multiply matrices in bfloat16, with sums in float32, if the processor
            supports it; everything else is float32.
        tile_scores: number of scores in a tile.
    """
    rows = max(1, tile_scores // max(1, len(candidates)))
    value: Tensor = _LogPartitionSum.apply(  # type: ignore[no-untyped-call]
        query,
        candidates,
        weight.detach(),
        1 / temperature,
        rows,
        largest_share,
        lower_products,
    )
    return value


class _LogPartitionSum(torch.autograd.Function):
    """Computes the gradients in the forward pass, so that scores are only computed once."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        candidates: Tensor,
        weight: Tensor,
        scale: float,
        rows: int,
        largest_share: float | None,
        lower_products: bool,
    ) -> Tensor:
        total = query.new_zeros(())
        of_query, of_candidates = torch.empty_like(query), torch.zeros_like(candidates)
        buffer = query.new_empty(min(rows, len(query)), len(candidates))
        block = len(buffer)
        if buffer.device.type == "cpu":
            block = max(1, torch.get_num_threads() * CACHED_SCORES // max(1, len(candidates)))
        spare = None if largest_share is None else torch.empty_like(buffer[:block])
        with _products(lower=lower_products):
            for tile, scores in _tiles(query * scale, candidates, buffer):
                blocks = [
                    _into_shares(rows, largest_share, spare) for rows in torch.split(scores, block)
                ]
                value, partition = (torch.cat(columns) for columns in zip(*blocks, strict=True))
                total += (weight[tile] * value).sum()
                factor = (weight[tile] * scale / partition)[:, None]
                of_query[tile] = (scores @ candidates) * factor
                of_candidates.addmm_(scores.T, query[tile] * factor)
        ctx.save_for_backward(of_query, of_candidates)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_query, of_candidates = ctx.saved_tensors
        return of_query * grad, of_candidates * grad, *(None,) * 5


def _into_shares(
    scores: Tensor, largest_share: float | None, spare: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Turn scores [T, N] into unnormalised p, in place. Return log Z [T] and the rows' sums [T]."""
    most = scores.amax(1, keepdim=True)
    scores.sub_(most).exp_()
    if largest_share is not None and spare is not None:
        value, total = limit_shares(scores, largest_share, spare[: len(scores)])
    else:
        total = scores.sum(1)
        value = total.log()
    return value + most[:, 0], total


def _tiles(query: Tensor, candidates: Tensor, buffer: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of queries with their scores [T, N], in `buffer`."""
    for start in range(0, len(query), len(buffer)):
        tile = slice(start, min(start + len(buffer), len(query)))
        logits = buffer[: tile.stop - tile.start]
        torch.mm(query[tile], candidates.T, out=logits)
        yield tile, logits


@contextmanager
def _products(*, lower: bool) -> Iterator[None]:
    """If `lower`, multiply float32 matrices in bfloat16 inside the block."""
    before = torch.get_float32_matmul_precision()
    if lower:
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        if lower:
            torch.set_float32_matmul_precision(before)


# Newton's method takes one or two, and more only if most of the mass is at the limit.
MOST_ITERATIONS = 50
# Smallest float32 weight relative to the largest: if smaller ones underflowed to 0, the rest might
# not be enough for shares that sum to 1.
LEAST_WEIGHT = 2e-35
# Lower bound of log Z, near float32's smallest exponent: there the largest weights, 1, are at the
# limit anyway.
LEAST = -87.0


def limit_shares(weights: Tensor, limit: float, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Turn weights into shares p_b = e_b / (Z + e_b/q), in place, with Z such that they sum to 1.

    They maximise Σ p_b log e_b + H(p) over 0 ≤ p_b ≤ q, Σ p_b = 1, with the entropy
    H(p) = −1 − Σ (p_b log p_b + (q − p_b) log(1 − p_b/q)); for q → ∞ they are e_b / Σ e. The
    maximum is A = log Z + q Σ log(1 + e_b/(q Z)) − 1, whose derivative by log e_b is p_b.

    Args:
        weights: e, float [T, N], positive, with a maximum of 1 in each row; they become p.
        limit: q, above 1/N.
        spare: [T, N], overwritten.
    Returns: A [T]; and the sums of the rows of p [T], 1 up to the precision of Newton's method, by
        which the caller divides.
    Source: docs/method.md, "No candidate takes more than its share".
    """
    inverse = 1 / limit
    if weights.dtype == torch.float32:
        weights.clamp_(min=LEAST_WEIGHT)
    tolerance = torch.finfo(weights.dtype).eps ** 0.5
    # The sum of shares falls with log Z. At the softmax's Z it is below 1: an upper bound.
    upper = weights.sum(1, keepdim=True).log()
    lower = torch.full_like(upper, LEAST)
    # Start lower by the softmax's mean of p_b/q; the factor 0.6 saves an iteration.
    squares = torch.linalg.vector_norm(weights, dim=1, keepdim=True).square() * inverse
    log_z = upper - 0.6 * torch.log1p(squares * (-2 * upper).exp())
    for _ in range(MOST_ITERATIONS):
        torch.add(log_z.exp(), weights, alpha=inverse, out=spare)
        torch.div(weights, spare, out=spare)
        total = spare.sum(1, keepdim=True)
        if bool((total - 1).abs().max() < tolerance):
            break
        below = total < 1
        upper, lower = torch.where(below, log_z, upper), torch.where(below, lower, log_z)
        squares = torch.linalg.vector_norm(spare, dim=1, keepdim=True).square()
        newton = log_z + total.log() * total / (total - inverse * squares)
        # Bisect if Newton's step leaves the interval, as the sum need not be concave in log Z. A
        # converged row stays at an end of its interval while other rows continue.
        inside = (newton >= lower) & (newton <= upper)
        log_z = torch.where(inside, newton, (lower + upper) / 2)
    value = log_z[:, 0] - 1 + limit * weights.mul_(inverse * (-log_z).exp()).log1p_().sum(1)
    weights.copy_(spare)
    return value, total[:, 0]
