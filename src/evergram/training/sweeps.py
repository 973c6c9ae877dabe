"""Alternating least squares for `PairSquares`, with a few conjugate gradient steps per row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from evergram.data.sampling import Batch, Draw, SweepSampler
from evergram.data.sorted_pairs import RowBlock, SortedPairs
from evergram.encoders.encoder import SIDES
from evergram.errors import TrainingError
from evergram.gramian.estimator import Moment
from evergram.gramian.penalty import preconditioner
from evergram.training.step import Step


@dataclass(frozen=True)
class PairSquares:
    """F(U, V) = (1/n) Σ_i [½(s_i − y_i)² + w_i (s_i − π_i)²] + Σ_r λ_r Σ_ab p_a q_b (s_ab − π_ab)²
    + Σ_a m_a ‖u_a‖² + Σ_b m_b ‖v_b‖², with s_ab = ⟨u_a, v_b⟩ and π_ab = ⟨f_a, g_b⟩.

    For the squared loss, this is the expectation of `Objective` over an epoch.

    Source: [G2] Eq. (7), App. B, App. C.
    """

    # For each side, the n observed pairs in the order of its rows; y and w, which may be negative,
    # are the columns "value" and "weight", without which they are 1 and 0.
    pairs: Mapping[str, SortedPairs]
    measures: Mapping[str, Tensor]  # for each side, p and q, [N, R]
    penalty: Sequence[float]  # λ_r, one per measure
    factors: Mapping[str, Tensor]  # for each side, f and g of the prior, [N, K]; K may be 0
    norms: Mapping[str, Tensor]  # for each side, m divided by `l2`, [N]
    l2: float = 1.0
    # Whether w instead cancels the penalty on each observed pair, once however often it repeats.
    excludes: bool = False


# Two are enough: rows start near the solution, and the preconditioner is near A⁻¹.
STEPS = 2
# Numbers gathered for a group: 2 MiB fit into a core's cache; a GPU prefers larger calls.
GATHERED = {"cpu": 2**19, "cuda": 2**25}
# ρ of the preconditioner, relative to its mean eigenvalue; only makes Cholesky stable.
RIDGE = 1e-5
# Reuse a preconditioner for rows with up to this many times fewer pairs.
SERVES = 1.5
# Rows of the fixed side in a product for its moments, which are summed in float64.
ROWS = 65_536
OTHER = {"query": "candidate", "candidate": "query"}


@dataclass(frozen=True)
class _FixedSide:
    """The fixed side of a half-sweep, with its moments."""

    table: Tensor  # [M, D]
    gramians: Sequence[Tensor]  # λ_r G_r, [D, D]
    cross: Sequence[Tensor]  # λ_r H_r, [D, K]
    mean: Tensor  # Σ v ⊗ v / n over all pairs, [D, D]
    constant: Tensor  # n times the terms of F without the other side's rows, float64


class _Systems:
    """The systems A u = b of a group of B rows, without forming A: `share` is n p [B, R], `norm`
    n m [B], and `factors` f [B, K]."""

    def __init__(
        self, group: RowGroup, fixed: _FixedSide, share: Tensor, norm: Tensor, factors: Tensor
    ) -> None:
        self.group, self.fixed, self.share, self.norm = group, fixed, share, norm[:, None]
        self.partners = group.partners  # [B, M, D]
        if not self.partners.is_floating_point():
            partners = fixed.table.index_select(0, self.partners.flatten())
            self.partners = partners.view(*group.partners.shape, fixed.table.shape[1])
        # n Σ_r λ_r p H_r f, the prior's part of b, [B, D]; None without a prior.
        self.prior: Tensor | None = None
        if factors.shape[1]:
            terms = [share[:, r, None] * (factors @ h.T) for r, h in enumerate(fixed.cross)]
            self.prior = torch.stack(terms).sum(0)

    def curvature(self, rows: Tensor, *, last: bool) -> tuple[Tensor, Tensor]:
        """Return pᵀA p [B] and A p of p [B, D]; for the `last` step A p is not computed."""
        scores, image = self._scores(rows), self._product_without_pairs(rows)
        pulled = self.group.pull * scores
        curvature = (pulled * scores).sum(1) + (rows * image).sum(1)
        if not last:
            image += torch.bmm(pulled[:, None], self.partners)[:, 0]
        return curvature, image

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return b − A u for rows u [B, D], and Σ_a uᵀA u − 2 bᵀu."""
        scores, target = self._scores(rows), self.group.target
        errors = target - self.group.pull * scores
        residual = torch.bmm(errors[:, None], self.partners)[:, 0]
        residual -= self._product_without_pairs(rows)
        line = (target * scores).sum()  # Σ bᵀu
        if self.prior is not None:
            residual += self.prior
            line = line + (self.prior * rows).sum()
        return residual, -(rows * residual).sum() - line

    @property
    def size(self) -> Tensor:
        """The approximate trace of A, [B]."""
        size = self.group.pull.abs().sum(1) * self.fixed.mean.trace() + self.norm[:, 0]
        for r, gramian in enumerate(self.fixed.gramians):
            size = size + self.share[:, r] * gramian.trace()
        return size

    def _scores(self, rows: Tensor) -> Tensor:
        # With the rows on the left, MKL is six times as fast.
        return torch.bmm(rows[:, None], self.partners.transpose(1, 2))[:, 0]

    def _product_without_pairs(self, rows: Tensor) -> Tensor:
        """Return the penalty's and the norms' part of A p for p [B, D]."""
        product = self.norm * rows
        for r, gramian in enumerate(self.fixed.gramians):
            product += self.share[:, r, None] * (rows @ gramian)
        return product


class SweepSolver:
    """Minimises `PairSquares` by sweeps over all queries, then over all candidates.

    With one side fixed, n F is a sum of uᵀA u − 2 bᵀu over the rows of the other, with

        A_a = Σ_i h_i v_i ⊗ v_i + n Σ_r λ_r p_a G_r + n m_a I,      h = ½ + w
        b_a = Σ_i t_i v_i + n Σ_r λ_r p_a H_r f_a,                  t = ½ y + w π

    Each row takes conjugate gradient steps from its current value. Rows are solved in blocks, whose
    pairs are read from memory or files. In a block, rows with similar counts share a
    preconditioner: the inverse of their mean A, with the pairs' part averaged over all pairs. Apart
    from rounding, a sweep never increases F; with a gradient of zero it changes nothing.

    Args:
        squares: the objective; all but the pairs on the tables' device.
        steps: conjugate gradient steps per row and sweep.
        gathered: numbers that a group of rows gathers at once; None depends on the device.
    Source: Hu et al. 2008; Takács et al. 2011. docs/method.md, "Alternating least squares".
    """

    def __init__(
        self, squares: PairSquares, steps: int = STEPS, gathered: int | None = None
    ) -> None:
        self.squares = squares
        self.steps = steps
        self.gathered = gathered
        self.n: int = len(squares.pairs["query"])
        # n Σ_r λ_r Σ_ab p_a q_b π_ab².
        self.constant: float = 0.0
        for r, strength in enumerate(squares.penalty):
            of_query, of_candidate = (
                (squares.factors[s] * squares.measures[s][:, r, None].to(squares.factors[s])).T
                @ squares.factors[s]
                for s in SIDES
            )
            self.constant += self.n * strength * float((of_query * of_candidate).sum())

    @torch.no_grad()
    def fix(self, side: str, tables: Mapping[str, Tensor]) -> _FixedSide:
        """Return a side with its moments."""
        squares, table, n = self.squares, tables[side], self.n
        weights = torch.tensor(squares.penalty, dtype=torch.float64)
        sums: list[Tensor] = []
        norm = torch.zeros((), dtype=torch.float64, device=table.device)
        for start in range(0, len(table), ROWS):
            span = slice(start, start + ROWS)
            rows, counts = table[span], squares.pairs[side].counts[span].to(table.device)
            beside = torch.cat([rows, squares.factors[side][span].to(table)], dim=1)
            # The preconditioner must be positive even if weights are negative.
            shares = [*(weights.to(table) * squares.measures[side][span].to(table)).T, counts / n]
            parts = [((rows * share[:, None].to(table)).T @ beside).double() for share in shares]
            sums = [s + p for s, p in zip(sums, parts, strict=True)] if sums else parts
            norm += squares.norms[side][span].double() @ rows.square().sum(1).double()
        dim, moments = table.shape[1], [moment.to(table) for moment in sums]
        return _FixedSide(
            table,
            [moment[:, :dim] for moment in moments[:-1]],
            [moment[:, dim:] for moment in moments[:-1]],
            moments[-1][:, :dim],
            self.constant + n * squares.l2 * norm,
        )

    @torch.no_grad()
    def solve_block(self, side: str, block: RowBlock, fixed: _FixedSide, table: Tensor) -> Tensor:
        """Update a block of rows of a side's table [N, D] in place. Return n times their terms of
        F, which with `fixed.constant` add up to n F, float64. Raises: TrainingError."""
        squares, own = self.squares, table[block.rows]
        shares = squares.measures[side][block.rows].to(table) * self.n
        norms = squares.norms[side][block.rows].to(table) * (squares.l2 * self.n)
        factors = squares.factors[side][block.rows].to(table)
        unbounded = torch.zeros((), dtype=torch.int64, device=table.device)
        eye = torch.eye(len(fixed.mean)).to(table)
        inverse, fewest = torch.empty(0), float("inf")
        total, groups = self._groups(side, block, fixed.table)
        for group in groups:
            rows = group.rows
            if group.longest < fewest:
                # The inverse of these rows' mean A, up to a factor.
                pull, norm = float(group.pull.sum(1).mean()), float(norms[rows].mean())
                weights = [*shares[rows].mean(0).tolist(), max(0.0, pull), norm]
                moments = [Moment(matrix) for matrix in (*fixed.gramians, fixed.mean, eye)]
                inverse, fewest = preconditioner(moments, weights, RIDGE), group.longest / SERVES
            systems = _Systems(group, fixed, shares[rows], norms[rows], factors[rows])
            own[rows], value, no_minimum = descend(
                systems, own.index_select(0, rows), inverse, steps=self.steps
            )
            unbounded += no_minimum.count_nonzero()
            total = total + value.double()
        squares.pairs[side].release()
        if unbounded:
            raise TrainingError(
                f"{int(unbounded)} entities have an objective without a minimum, because weights "
                "of observed pairs are too negative; raise task.penalty or task.l2, or set "
                "training.optimizer = 'adaptive'."
            )
        if not bool(torch.isfinite(total)):
            raise TrainingError(
                f"The objective is {float(total)} after a sweep of training.optimizer = 'als'; "
                "lower task.penalty, or check the table's values and weights."
            )
        return total

    def _groups(
        self, side: str, block: RowBlock, table: Tensor
    ) -> tuple[Tensor, Iterable[RowGroup]]:
        """Return the terms of F that depend on no table, and the rows of a block in groups; rows
        are counted from the block's first."""
        source, device = self.squares.pairs[side], table.device
        gathered = self.gathered or GATHERED.get(device.type, GATHERED["cpu"])
        most = max(1, gathered // table.shape[1])
        counts = source.counts[block.rows].to(device)
        if len(counts) == 1 and int(counts) > source.long:
            return self._long_row(side, block, table, most)
        *values, constant = self._read(side, block, block.pairs, table)
        return constant, row_groups(counts, *values, pairs=most)

    def _long_row(
        self, side: str, block: RowBlock, table: Tensor, most: int
    ) -> tuple[Tensor, Iterable[RowGroup]]:
        """Return `_groups` of a single row in memory that does not grow with its pairs: the
        eigenvectors of Σ h v ⊗ v replace its partners."""
        source = self.squares.pairs[side]
        line, total = table.new_zeros(1, table.shape[1], dtype=torch.float64), torch.zeros(())
        matrix, pulled = line.T @ line, line.sum()
        for start in range(block.pairs.start, block.pairs.stop, source.block):
            span = slice(start, min(start + source.block, block.pairs.stop))
            *values, constant = self._read(side, block, span, table)
            total = total.to(constant) + constant
            pieces = (torch.split(each.expand(len(values[0])), most) for each in values)
            for partners, pull, target in zip(*pieces, strict=True):
                rows = table.index_select(0, partners)
                matrix += (rows * pull[:, None]).T @ rows
                line += target @ rows
                pulled += pull.abs().sum()
            source.release()
        eigenvalues, vectors = torch.linalg.eigh(matrix)
        # With this scale, Σ h is that of the row's pairs.
        scale = eigenvalues.abs().sum() / pulled
        scale = torch.where(scale > 0, scale, 1.0)
        group = RowGroup(
            torch.zeros(1, dtype=torch.int64, device=table.device),
            (vectors.T * scale.sqrt())[None].to(table),
            (eigenvalues / scale)[None].to(table),
            (line @ vectors / scale.sqrt()).to(table),
            block.pairs.stop - block.pairs.start,
        )
        return total, [group]

    def _read(
        self, side: str, block: RowBlock, span: slice, like: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the partners [P], h and t ([P], or one number for all) of the pairs `span` of a
        block, and their Σ ½ y² + w π², float64; h and t as numbers `like` the tables'."""
        squares, source, size = self.squares, self.squares.pairs[side], span.stop - span.start
        # One more than wanted if the row goes on, to see whether the last pair is repeated.
        more = slice(span.start, min(span.stop + 1, block.pairs.stop))
        partners = source.read("partner", more, like.device)
        pull = target = like.new_tensor(0.5)
        constant = size * pull.double()
        if "value" in source.columns:
            target = 0.5 * source.read("value", span, like.device).to(like)
            constant = 2 * target.double().square().sum()
        if squares.excludes or "weight" in source.columns:
            rows = torch.arange(block.rows.start, block.rows.stop)
            counts = source.counts[block.rows] if len(rows) > 1 else torch.tensor([len(partners)])
            rows = torch.repeat_interleave(rows, counts).to(like.device)
            if squares.excludes:
                weight = self._excluding(side, rows, partners)[:size]
            else:
                weight = source.read("weight", span, like.device).double()
            pull = pull + weight.to(like)
            if squares.factors[side].shape[1]:
                factors = squares.factors[OTHER[side]][partners[:size]]
                prior = (squares.factors[side][rows[:size]] * factors).sum(1).double()
                target = target + (weight * prior).to(like)
                constant = constant + (weight * prior.square()).sum()
        return partners[:size], pull, target, constant

    def _excluding(self, side: str, rows: Tensor, partners: Tensor) -> Tensor:
        """Return weights of the pairs that cancel the penalty: all of it for the last of equal
        pairs, which follow each other, float64 [P]."""
        squares = self.squares
        total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        for r, strength in enumerate(squares.penalty):
            share, other_share = squares.measures[side][:, r], squares.measures[OTHER[side]][:, r]
            total -= self.n * strength * share[rows] * other_share[partners]
        total[:-1][(rows[1:] == rows[:-1]) & (partners[1:] == partners[:-1])] = 0.0
        return total


# A curvature below minus this share of A's size is more than rounding.
ROUNDING = 1e-4


def descend(
    systems: _Systems, start: Tensor, inverse: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take preconditioned conjugate gradient steps from `start` in B systems A x = b, A ≥ 0.

    Every step goes to the minimum along its direction, so xᵀA x − 2 bᵀx never increases. A row with
    a residual of zero stays.

    Args:
        start: x, [B, D].
        inverse: [D, D], symmetric, approximately A⁻¹ up to a factor, the same for all systems.
    Returns: x; Σ xᵀA x − 2 bᵀx over all rows; and a mask [B], True if it has no minimum along one
        of the directions.
    Source: Hestenes and Stiefel 1952; Takács et al. 2011, for warm starts in matrix factorization.
    """
    residual, value = systems.at(start)
    solution, size = start, systems.size
    unbounded = torch.zeros_like(size, dtype=torch.bool)
    preconditioned = residual @ inverse
    direction, slope = preconditioned, (residual * preconditioned).sum(1)
    for step in range(steps):
        last = step + 1 == steps
        curvature, image = systems.curvature(direction, last=last)
        if bool((curvature < 0).any()):
            unbounded |= curvature < -ROUNDING * size * direction.square().sum(1)
        # Without curvature the slope is zero up to rounding: the row stays.
        length = torch.where(curvature > 0, slope / curvature, 0.0)
        solution = torch.addcmul(solution, length[:, None], direction)
        value = value - (length * slope).sum()
        if last:
            break
        residual = torch.addcmul(residual, length[:, None], image, value=-1)
        preconditioned = residual @ inverse
        new_slope = (residual * preconditioned).sum(1)
        ratio = torch.where(slope > 0, new_slope / slope, 0.0)
        direction, slope = torch.addcmul(preconditioned, ratio[:, None], direction), new_slope
    return solution, value, unbounded


# A row counts as at least this many pairs, which limits the temporaries of groups of short rows.
FEWEST = 4


@dataclass(frozen=True)
class RowGroup:
    """Rows of a block with similar numbers of pairs, at most M; padded with zeros."""

    rows: Tensor  # int64 [B]
    partners: Tensor  # rows of the other side, int [B, M]; or vectors in their place [B, M, D]
    pull: Tensor  # h of each pair, [B, M]
    target: Tensor  # t of each pair, [B, M]
    longest: int


def row_groups(
    counts: Tensor, partners: Tensor, pull: Tensor, target: Tensor, *, pairs: int
) -> Iterator[RowGroup]:
    """Yield all rows of a block in groups, those with the most pairs first.

    Args:
        counts: int64 [N], pairs of each row.
        partners, pull, target: [n], the pairs in the order of rows; h and t may be one number.
        pairs: maximum of a group, unless a single row has more.
    """
    starts = counts.cumsum(0) - counts
    by_count = torch.argsort(counts, descending=True, stable=True)
    lengths = counts[by_count].tolist()
    done = 0
    while done < len(lengths):
        longest = lengths[done]
        size = max(1, pairs // max(longest, FEWEST))
        members = by_count[done : done + size]
        done += size
        offsets = torch.arange(longest, device=counts.device)
        mask = offsets < counts[members, None]
        index = torch.where(mask, starts[members, None] + offsets, 0)
        pulls, targets = (
            torch.where(mask, values[index] if values.ndim else values, 0.0)
            for values in (pull, target)
        )
        yield RowGroup(members, torch.where(mask, partners[index], 0), pulls, targets, longest)


@dataclass
class SweepStep(Step):
    """Solves one block of rows of a factorization's tables per call; an epoch is a sweep. Batches
    are ignored. The tables and the position in the sweep are its only state."""

    sampler: SweepSampler = field(kw_only=True)
    position: int = 0
    fixed: _FixedSide | None = None

    def begin_epoch(self, start: int = 0, number: int = 0) -> None:
        super().begin_epoch(start, number)
        self.position, self.fixed = start, None

    def __call__(self, batch: Batch, draws: Mapping[str, Draw] | None = None) -> Tensor:
        """Solve the next block. Return a value whose mean over a side's blocks is the objective
        after them, float64. Raises: TrainingError: no minimum."""
        side, block = self.sampler.blocks[self.position]
        if block.rows.start == 0 or self.fixed is None:
            self.fixed = self.solver.fix(OTHER[side], self.tables)
        self.position += 1
        value = self.solver.solve_block(side, block, self.fixed, self.tables[side])
        blocks = len(self.sampler.pairs[side].blocks)
        return (blocks * value + self.fixed.constant) / self.solver.n

    @cached_property
    def solver(self) -> SweepSolver:
        return SweepSolver(squares_of(self, self.sampler))

    @property
    def tables(self) -> dict[str, Tensor]:
        """The tables of both sides, which a sweep modifies in place."""
        return {side: getattr(self.encoder, side).weight.detach() for side in SIDES}


def squares_of(step: Step, sampler: SweepSampler) -> PairSquares:
    """Return the expectation of `step.objective` over an epoch, for a run that the solver supports.
    Tables have one row per entity, in order."""
    objective, device = step.objective, step.encoder.device
    by_measure = objective.l2_measure == "penalty"
    measures: dict[str, Tensor] = {}
    for side, counts in sampler.counts.items():
        measure, alone = sampler.measures[side], counts == 0
        if bool(measure[alone].any()):
            # Entities without a pair are in no batch, so the penalty excludes them.
            measure = measure.masked_fill(alone[:, None], 0.0)
        measures[side] = measure.to(device)
    norms = {
        side: p[:, 0] if by_measure else sampler.counts[side].to(device)
        for side, p in measures.items()
    }
    return PairSquares(
        sampler.pairs,
        measures,
        objective.penalty,
        step.factors,
        norms,
        objective.l2 if by_measure else objective.l2 / len(sampler.pairs["query"]),
        sampler.excludes,
    )
