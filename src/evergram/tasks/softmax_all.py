"""The softmax over all candidates, exactly; and the candidates that the same queries met, to which
a pair's pull may be spread."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from evergram.data.sampling import Batch
from evergram.errors import DataError
from evergram.tasks.task import Encoded, Moments, Task, score

# Similarities that are in memory at once.
BLOCK = 1 << 24
# Of a matrix in compressed rows.
PARTS = ("starts", "columns", "values")


class CandidateNeighbours(nn.Module):
    """The k candidates nearest to each by the queries that they share, with shares that sum to one.

    The similarity of b and c is n_c^-½ Σ n_a^-½ over the queries a that met both, with the counts
    n of distinct pairs: a cosine without n_b^-½, which is the same in a row, to which a shared
    query counts n_a^-½.

    Args:
        nearest: int64 [N, k], rows of candidates.
        share: float [N, k]; rows sum to one. A candidate that shares no query is its own neighbour.
    """

    def __init__(self, nearest: Tensor, share: Tensor) -> None:
        super().__init__()
        size, k = nearest.shape
        near, values = nearest.flatten(), share.flatten()
        order = torch.argsort(near, stable=True)
        parts = (
            *(k * torch.arange(size + 1), near, values),
            *(_starts(near, size), order // k, values[order]),  # of the transpose
        )
        names = (*PARTS, *(f"back_{part}" for part in PARTS))
        for name, part in zip(names, parts, strict=True):
            self.register_buffer(name, part, persistent=False)

    @classmethod
    def of(cls, query: Tensor, candidate: Tensor, queries: int, candidates: int, k: int) -> Self:
        """Return the neighbours of a corpus; pairs count once, however often they were observed.

        Args:
            query, candidate: int64 [P], rows of pairs.
            queries, candidates: how many there are.
            k: of each candidate; fewer where there are fewer others.
        """
        key = torch.unique(query * candidates + candidate)
        query, candidate = key // candidates, key % candidates
        of_query = torch.bincount(query, minlength=queries)
        counts = torch.bincount(candidate, minlength=candidates)
        met = _csr(
            _starts(query, queries), candidate, of_query[query].rsqrt(), (queries, candidates)
        )
        order, ends = torch.argsort(candidate, stable=True), _starts(candidate, candidates)
        # Of each candidate, how many others share a query with it, at most.
        most = torch.zeros(candidates, dtype=torch.int64)
        most = most.index_add_(0, candidate, of_query[query]).clamp_(max=candidates)
        k = max(1, min(k, candidates - 1))
        nearest = torch.empty(candidates, k, dtype=torch.int64)
        share = torch.empty(candidates, k)
        scale = counts.clamp(min=1).rsqrt()
        for own in _blocks(most.clamp_(min=k)):
            starts = functional.pad(counts[own].cumsum(0), (1, 0))
            # The places of the pairs of each candidate, one candidate after the other.
            first = torch.repeat_interleave(ends[own] - starts[:-1], counts[own])
            pairs = order[torch.arange(len(first)) + first]
            block = _csr(starts, query[pairs], torch.ones(len(pairs)), (len(own), queries))
            alike = torch.sparse.mm(block, met)
            values, nearest[own] = _greatest(alike, own, scale, k)
            total = values.sum(1, keepdim=True)
            share[own] = values / total.clamp(min=1e-30)
            alone = own[total[:, 0] == 0]
            nearest[alone, 0], share[alone, 0] = alone, 1.0
        return cls(nearest, share)

    def forward(self, rows: Tensor) -> Tensor:
        """Return Σ_c K_bc rows_c, [N, D]; differentiable."""
        there, back = ([getattr(self, side + part) for part in PARTS] for side in ("", "back_"))
        spread: Tensor = _Sums.apply(rows, there, back)  # type: ignore[no-untyped-call]
        return spread


class _Sums(torch.autograd.Function):
    """K X, whose gradient is Kᵀ times that of the product: both are sums of rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: list[Tensor], back: list[Tensor]) -> Tensor:
        ctx.back = back
        return _sums(rows, *there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _sums(grad, *ctx.back), None, None


def _sums(rows: Tensor, starts: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Return the weighted sums of rows that a sparse matrix says; faster than the product."""
    return functional.embedding_bag(
        columns,
        rows.contiguous(),
        starts,
        mode="sum",
        per_sample_weights=values.to(rows),
        include_last_offset=True,
    )


def _blocks(most: Tensor) -> Iterator[Tensor]:
    """Yield rows in parts whose number times the greatest of their `most` is at most `BLOCK`."""
    order = torch.argsort(most, stable=True)
    start = 0
    while start < len(order):
        rows = BLOCK // int(most[order[start]])
        last = order[min(start + max(rows, 1), len(order)) - 1]
        stop = start + max(1, BLOCK // int(most[last]))
        yield order[start:stop]
        start = stop


def _greatest(alike: Tensor, own: Tensor, scale: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k greatest entries of each row of a sparse matrix, and their columns.

    Args:
        alike: [rows, N] in compressed rows; an entry counts `scale` of its column.
        own: the column of each row that is left out.
    """
    starts, columns = alike.crow_indices(), alike.col_indices()
    lengths = starts.diff()
    row = torch.repeat_interleave(torch.arange(len(own)), lengths)
    place = torch.arange(len(columns)) - starts[row]
    values = alike.values() * scale[columns]
    values[columns == own[row]] = 0.0
    # Entries side by side; where there are less than k, zeros of no column in particular.
    shape = len(own), max(k, int(lengths.max()))
    beside = torch.zeros(shape)
    beside[row, place] = values
    greatest, chosen = beside.topk(k, dim=1)
    at = torch.zeros(shape, dtype=torch.int64)
    at[row, place] = columns
    return greatest, at.gather(1, chosen)


def _starts(rows: Tensor, size: int) -> Tensor:
    """Return where the entries of each row begin, and the last one ends, int64 [size + 1]."""
    starts = torch.zeros(size + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(rows, minlength=size), 0, out=starts[1:])
    return starts


def _csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix of entries that are ordered by row."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


class SoftmaxAll(Task):
    """Cross entropy of each pair's candidate among all candidates: no negatives are sampled.

    A pair (a, b) costs −s_ab/τ + κ log Z_a, where Z_a is the sum of e^{s/τ} over all
    candidates, computed once for each different query of the batch. The loss is the sum over the
    batch's pairs, divided by how many a batch has on average.

    Args:
        temperature: τ.
        push: κ, how much the log-partition counts beside the pairs' scores; 1 is the softmax.
        largest_share: q, which no candidate's share of a query's softmax is above; None is no
            limit. There must be more than 1/q candidates.
        neighbours, neighbour_share: K and ε: a pair's score is (1 − ε) s_ab + ε Σ_c K_bc s_ac, so
            that candidates which the same queries met are pulled, too.
        lower_products: multiply the batch's queries and all candidates in bfloat16, with sums in
            float32, where the processor can.
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
        lower_products: bool = False,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.push = push
        self.largest_share = largest_share
        self.neighbours = neighbours
        self.neighbour_share = neighbour_share
        self.lower_products = lower_products

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        assert encoded.all_candidates is not None
        if self.largest_share is not None:
            check_share(self.largest_share, len(encoded.all_candidates))
        _, own, times = torch.unique(batch.query, return_inverse=True, return_counts=True)
        # The first pair of each query has the query's row.
        first = torch.argsort(own, stable=True)[times.cumsum(0) - times]
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
        mean = scores.new_zeros(len(times)).index_add(0, own, scores) / times
        pulled = (weight * (mean / self.temperature)).sum()
        loss: Tensor = (self.push * pushed - pulled) / len(batch.query)
        return loss

    def _scores(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return what pulls each pair together, [B]: its score, or that with its neighbours'."""
        own = score(encoded)
        if self.neighbours is None:
            return own
        assert encoded.all_candidates is not None
        spread = self.neighbours(encoded.all_candidates)[batch.candidate]
        return torch.lerp(own, (encoded.query * spread).sum(-1), self.neighbour_share)


def check_share(share: float, candidates: int) -> None:
    """Check that shares of at most so much can add up to one. Raises: DataError."""
    if share * candidates <= 1:
        raise DataError(
            f"task.largest_share is {share:g}, and {candidates:,} candidates of at most that share "
            f"do not make a whole; it must be above 1/{candidates:,} and below 1, such as "
            f"{min(2 / candidates, (1 + 1 / candidates) / 2):.2g}."
        )


# Scores [T, N] that are in memory at once.
TILE_SCORES = 1 << 24
# Of a tile, scores that are turned into shares at once: on a processor they stay in its cache.
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

    The scores [Q, N] are computed once, a tile of queries at a time, and the gradients with them:
    ∂/∂u_a = w_a Σ_b p_ab v_b/τ and ∂/∂v_b = Σ_a w_a p_ab u_a/τ, the dense softmax's. No more than
    `tile_scores` of the scores (or N, if that is more) are in memory at once.

    Args:
        query: [Q, D].
        candidates: [N, D].
        weight: w, [Q]; it has no gradient.
        temperature: τ.
        largest_share: q: no p_ab is above it, and log Z_a is the A of `limit_shares`; None is no
            limit. It needs more than 1/q candidates.
        lower_products: multiply matrices in bfloat16, with sums in float32, where the processor
            can; all else is float32.
        tile_scores: of which a tile is made.
    """
    rows = max(1, tile_scores // max(1, len(candidates)))
    value: Tensor = _LogPartitionSum.apply(  # type: ignore[no-untyped-call]
        *(query, candidates, weight.detach(), 1 / temperature, rows),
        *(largest_share, lower_products),
    )
    return value


class _LogPartitionSum(torch.autograd.Function):
    """Computes the gradients in the forward pass, while a tile's scores are at hand."""

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
        part = len(buffer)
        if buffer.device.type == "cpu":
            part = max(1, torch.get_num_threads() * CACHED_SCORES // max(1, len(candidates)))
        spare = None if largest_share is None else torch.empty_like(buffer[:part])
        with _products(lower=lower_products):
            for place, chance in _tiles(query * scale, candidates, buffer):
                parts = [
                    _into_shares(rows, largest_share, spare) for rows in torch.split(chance, part)
                ]
                value, partition = (torch.cat(columns) for columns in zip(*parts, strict=True))
                own = weight[place]
                total += (own * value).sum()
                pushed = (own * scale / partition)[:, None]
                of_query[place] = (chance @ candidates) * pushed
                of_candidates.addmm_(chance.T, query[place] * pushed)
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
    """Turn scores [T, N] into p, in place; return log Z [T], and by what rows are to be divided."""
    most = scores.amax(1, keepdim=True)
    scores.sub_(most).exp_()
    if largest_share is not None and spare is not None:
        value, total = limit_shares(scores, largest_share, spare[: len(scores)])
    else:
        total = scores.sum(1)
        value = total.log()
    return value + most[:, 0], total


def _tiles(query: Tensor, candidates: Tensor, buffer: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield tiles of queries with their scores [T, N], in `buffer`."""
    for start in range(0, len(query), len(buffer)):
        place = slice(start, min(start + len(buffer), len(query)))
        logits = buffer[: place.stop - place.start]
        torch.mm(query[place], candidates.T, out=logits)
        yield place, logits


@contextmanager
def _products(*, lower: bool) -> Iterator[None]:
    """Let float32 matrices be multiplied in bfloat16, if `lower`; leave the setting as it was."""
    before = torch.get_float32_matmul_precision()
    if lower:
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        if lower:
            torch.set_float32_matmul_precision(before)


# Newton's method takes one or two; more only where most of the mass is at the limit.
MOST_ITERATIONS = 50
# Of a weight of 32 bits beside the largest: where smaller ones underflow, too few may be left for
# shares that sum to 1.
LEAST_WEIGHT = 2e-35
# Of log Z: below it the largest weights, 1, are at the limit in any case, and the least of 32 bits.
LEAST = -87.0


def limit_shares(weights: Tensor, limit: float, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Turn weights into shares p_b = e_b / (Z + e_b/q), in place; Z is such that they sum to 1.

    They maximise Σ p_b log e_b + H(p) over 0 ≤ p_b ≤ q, Σ p_b = 1, with the entropy
    H(p) = −1 − Σ (p_b log p_b + (q − p_b) log(1 − p_b/q)); for q → ∞ they are e_b / Σ e. The
    maximum is A = log Z + q Σ log(1 + e_b/(q Z)) − 1, so that its derivative by log e_b is p_b.

    Args:
        weights: e, float [T, N], positive, the largest of a row 1; they become p.
        limit: q, above 1/N.
        spare: [T, N], written over.
    Returns: A [T]; and what the rows of p sum to [T], 1 to the precision of Newton's method, by
        which they are still to be divided.
    Source: docs/method.md, "No candidate takes more than its share".
    """
    inverse = 1 / limit
    if weights.dtype == torch.float32:
        weights.clamp_(min=LEAST_WEIGHT)
    tolerance = torch.finfo(weights.dtype).eps ** 0.5
    # By log Z the sum falls. Without the limit's term it is below 1, so that this is an upper end.
    upper = weights.sum(1, keepdim=True).log()
    lower = torch.full_like(upper, LEAST)
    # Z is nearer by the mean p_b/q of the softmax; the factor is one that saves an iteration.
    crowding = torch.linalg.vector_norm(weights, dim=1, keepdim=True).square() * inverse
    place = upper - 0.6 * torch.log1p(crowding * (-2 * upper).exp())
    for _ in range(MOST_ITERATIONS):
        torch.add(place.exp(), weights, alpha=inverse, out=spare)
        torch.div(weights, spare, out=spare)
        total = spare.sum(1, keepdim=True)
        if bool((total - 1).abs().max() < tolerance):
            break
        below = total < 1
        upper, lower = torch.where(below, place, upper), torch.where(below, lower, place)
        squares = torch.linalg.vector_norm(spare, dim=1, keepdim=True).square()
        newton = place + total.log() * total / (total - inverse * squares)
        # The sum need not be concave in log Z, and a step that leaves the ends is halved. A row
        # that has converged steps onto its end, and stays there while others go on.
        inside = (newton >= lower) & (newton <= upper)
        place = torch.where(inside, newton, (lower + upper) / 2)
    value = place[:, 0] - 1 + limit * weights.mul_(inverse * (-place).exp()).log1p_().sum(1)
    weights.copy_(spare)
    return value, total[:, 0]
