"""Alternating least squares for `PairSquares`, with a few conjugate gradient steps per row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from evergram.data.sampling import Batch, Draw, ExampleSampler
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

    pairs: Mapping[str, Tensor]  # for each side, the rows of the n observed pairs, int64 [n]
    target: Tensor  # y, [n]
    weight: Tensor | None  # w, [n], may be negative; None is zero
    measures: Mapping[str, Tensor]  # for each side, p and q, [N, R]
    penalty: Sequence[float]  # λ_r, one per measure
    factors: Mapping[str, Tensor]  # for each side, f and g of the prior, [N, K]; K may be 0
    norms: Mapping[str, Tensor]  # for each side, m, [N]


# Two are enough: rows start near the solution, and the preconditioner is near A⁻¹.
STEPS = 2
# Numbers gathered for a group: 2 MiB fit into a core's cache; a GPU prefers larger calls.
GATHERED = {"cpu": 2**19, "cuda": 2**25}
# ρ of the preconditioner, relative to its mean eigenvalue; only makes Cholesky stable.
RIDGE = 1e-5
# Reuse a preconditioner for rows with up to this many times fewer pairs.
SERVES = 1.5


@dataclass(frozen=True)
class _FixedSide:
    """The fixed side of a half-sweep, with its moments."""

    table: Tensor  # [M, D]
    gramians: Sequence[Tensor]  # λ_r G_r, [D, D]
    cross: Sequence[Tensor]  # λ_r H_r, [D, K]
    mean: Tensor  # Σ h v ⊗ v / Σ h over all pairs, [D, D]


class _Systems:
    """The systems A u = b of a group of B rows, without forming A: `share` is n p [B, R], `norm`
    n m [B], and `factors` f [B, K]."""

    def __init__(
        self, group: RowGroup, fixed: _FixedSide, share: Tensor, norm: Tensor, factors: Tensor
    ) -> None:
        self.group, self.fixed, self.share, self.norm = group, fixed, share, norm[:, None]
        # Rows of the fixed side, [B, M, D].
        partners = fixed.table.index_select(0, group.partners.flatten())
        self.partners: Tensor = partners.view(*group.partners.shape, fixed.table.shape[1])
        # n Σ_r λ_r p H_r f, the prior's part of b, [B, D]; None without a prior.
        self.prior: Tensor | None = None
        if factors.shape[1]:
            terms = [share[:, r, None] * (factors @ h.T) for r, h in enumerate(fixed.cross)]
            self.prior = torch.stack(terms).sum(0)

    def product(self, rows: Tensor) -> Tensor:
        """Return A p of p [B, D]."""
        scores = torch.bmm(self.partners, rows[:, :, None])[..., 0]
        of_pairs = torch.bmm((self.group.pull * scores)[:, None], self.partners)[:, 0]
        return of_pairs + self._product_without_pairs(rows)

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return b − A u for rows u [B, D], and Σ_a uᵀA u − 2 bᵀu."""
        scores = torch.bmm(self.partners, rows[:, :, None])[..., 0]
        target = self.group.target
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

    Each row takes conjugate gradient steps from its current value. Rows with similar counts share a
    preconditioner: the inverse of their mean A, with the pairs' part averaged over all pairs. Apart
    from rounding, a sweep never increases F; with a gradient of zero it changes nothing.

    Args:
        squares: the objective, on the tables' device.
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
        self.groups: dict[str, list[RowGroup]] = {}
        query, candidate = (squares.factors[side][squares.pairs[side]] for side in SIDES)
        weight = torch.zeros_like(squares.target) if squares.weight is None else squares.weight
        prior = (query * candidate).sum(1).to(weight)
        self.pull: Tensor = 0.5 + weight  # h
        self.target: Tensor = 0.5 * squares.target + weight * prior  # t
        # n times the terms of F that do not depend on the tables.
        terms = 0.5 * squares.target.double().square() + weight.double() * prior.double().square()
        self.constant: Tensor = terms.sum()
        for r, strength in enumerate(squares.penalty):
            of_query, of_candidate = (
                _moment(squares.factors[s], squares.factors[s], squares.measures[s][:, r])
                for s in SIDES
            )
            both = of_query.mul(of_candidate).sum().double()
            self.constant = self.constant + len(squares.target) * strength * both

    def sweep(self, tables: MutableMapping[str, Tensor]) -> Tensor:
        """Update queries, then candidates, in place, in tables [N, D]. Return F, float64.

        Raises: TrainingError: F is not finite, or unbounded because of negative pair weights.
        """
        self.solve("query", tables)
        return self.solve("candidate", tables)

    @torch.no_grad()
    def solve(self, side: str, tables: MutableMapping[str, Tensor]) -> Tensor:
        """Update one side's rows in place with the other fixed. Return F. Raises: TrainingError."""
        other = "candidate" if side == "query" else "query"
        squares, table, n = self.squares, tables[side], len(self.squares.target)
        fixed = self._fixed_side(other, tables[other])
        shares = squares.measures[side].to(table) * n
        norms = squares.norms[side].to(table) * n
        factors = squares.factors[side].to(table)
        fixed_norms = squares.norms[other].to(table) @ tables[other].square().sum(1)
        total = self.constant.to(table.device) + n * fixed_norms.double()
        unbounded = torch.zeros((), dtype=torch.int64, device=table.device)
        if side not in self.groups:
            gathered = self.gathered or GATHERED.get(table.device.type, GATHERED["cpu"])
            pairs = squares.pairs[side], squares.pairs[other]
            values, most = (self.pull.to(table), self.target.to(table)), gathered // table.shape[1]
            groups = row_groups(*pairs, *values, entities=len(table), pairs=most)
            self.groups[side] = list(groups)
        eye = torch.eye(len(fixed.mean), dtype=fixed.mean.dtype, device=fixed.mean.device)
        inverse, fewest = torch.empty(0), float("inf")
        for group in self.groups[side]:
            rows = group.rows
            if group.longest < fewest:
                # The inverse of these rows' mean A, up to a factor.
                pull, norm = float(group.pull.sum(1).mean()), float(norms[rows].mean())
                weights = [*shares[rows].mean(0).tolist(), max(0.0, pull), norm]
                moments = [Moment(matrix) for matrix in (*fixed.gramians, fixed.mean, eye)]
                inverse, fewest = preconditioner(moments, weights, RIDGE), group.longest / SERVES
            systems = _Systems(group, fixed, shares[rows], norms[rows], factors[rows])
            start = table.index_select(0, rows)
            residual, value = systems.at(start)
            table[rows], gain, no_minimum = descend(
                systems.product, start, residual, inverse, systems.size, steps=self.steps
            )
            unbounded += no_minimum.count_nonzero()
            total += (value - gain.sum()).double()
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
        return total / n

    def _fixed_side(self, side: str, table: Tensor) -> _FixedSide:
        """Return a side with its moments."""
        squares = self.squares
        pull = torch.zeros(len(table), dtype=self.pull.dtype, device=table.device)
        # The preconditioner must be positive even if weights are negative.
        pull = pull.index_add_(0, squares.pairs[side], self.pull).clamp(min=0).to(table)
        factors = squares.factors[side].to(table)
        shares = squares.measures[side].to(table).T
        strengths = list(zip(squares.penalty, shares, strict=False))
        return _FixedSide(
            table,
            [s * _moment(table, table, share) for s, share in strengths],
            [s * _moment(table, factors, share) for s, share in strengths],
            _moment(table, table, pull) / pull.sum().clamp(min=torch.finfo(pull.dtype).tiny),
        )


def _moment(left: Tensor, right: Tensor, share: Tensor) -> Tensor:
    """Return Σ_a p_a u_a ⊗ x_a, [D, K]."""
    return (left * share[:, None].to(left)).T @ right


# A curvature below minus this share of A's size is more than rounding.
ROUNDING = 1e-4


def descend(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    residual: Tensor,
    inverse: Tensor,
    size: Tensor,
    steps: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take preconditioned conjugate gradient steps from `start` in B systems A x = b, A ≥ 0.

    Every step goes to the minimum along its direction, so xᵀA x − 2 bᵀx never increases. A row with
    a residual of zero stays.

    Args:
        product: returns A p [B, D] for p [B, D].
        start: x, [B, D]; residual: b − A x.
        inverse: [D, D], symmetric, approximately A⁻¹ up to a factor, the same for all systems.
        size: [B], at least of the order of A's largest eigenvalue.
    Returns: x; the decrease of xᵀA x − 2 bᵀx, ≥ 0, [B]; and a mask [B], True if it has no minimum
        along one of the directions.
    Source: Hestenes and Stiefel 1952; Takács et al. 2011, for warm starts in matrix factorization.
    """
    solution, gain = start, torch.zeros_like(start[:, 0])
    unbounded = torch.zeros_like(gain, dtype=torch.bool)
    preconditioned = residual @ inverse
    direction, slope = preconditioned, (residual * preconditioned).sum(1)
    for step in range(steps):
        image = product(direction)
        curvature = (direction * image).sum(1)
        if bool((curvature < 0).any()):
            unbounded |= curvature < -ROUNDING * size * direction.square().sum(1)
        # Without curvature the slope is zero up to rounding: the row stays.
        length = torch.where(curvature > 0, slope / curvature, 0.0)
        solution = torch.addcmul(solution, length[:, None], direction)
        gain = gain + length * slope
        if step + 1 == steps:
            break
        residual = torch.addcmul(residual, length[:, None], image, value=-1)
        preconditioned = residual @ inverse
        new_slope = (residual * preconditioned).sum(1)
        ratio = torch.where(slope > 0, new_slope / slope, 0.0)
        direction, slope = torch.addcmul(preconditioned, ratio[:, None], direction), new_slope
    return solution, gain, unbounded


# A row counts as at least this many pairs, which limits the temporaries of groups of short rows.
FEWEST = 4


@dataclass(frozen=True)
class RowGroup:
    """Entities with similar numbers of pairs, at most M; shorter rows are padded with zeros."""

    rows: Tensor  # int64 [B]
    partners: Tensor  # rows of the other side, int32 [B, M]
    pull: Tensor  # h of each pair, [B, M]
    target: Tensor  # t of each pair, [B, M]
    longest: int


def row_groups(
    rows: Tensor, partners: Tensor, pull: Tensor, target: Tensor, entities: int, pairs: int
) -> Iterator[RowGroup]:
    """Yield all entities of a side in groups, those with the most pairs first.

    Args:
        rows, partners: int64 [n], each pair's entity of this side and of the other side.
        pull, target: [n], h and t of each pair.
        entities: number of entities of this side.
        pairs: maximum of a group, unless a single entity has more.
    """
    order = torch.argsort(rows, stable=True)
    counts = torch.bincount(rows, minlength=entities)
    starts = counts.cumsum(0) - counts
    by_count = torch.argsort(counts, descending=True, stable=True)
    lengths = counts[by_count].tolist()
    partners, pull, target = partners.int()[order], pull[order], target[order]
    done = 0
    while done < entities:
        longest = lengths[done]
        size = max(1, pairs // max(longest, FEWEST))
        members = by_count[done : done + size]
        done += size
        offsets = torch.arange(max(1, longest), device=rows.device)
        mask = offsets < counts[members, None]
        index = torch.where(mask, starts[members, None] + offsets, 0)
        yield RowGroup(
            members,
            torch.where(mask, partners[index], 0),
            torch.where(mask, pull[index], 0.0),
            torch.where(mask, target[index], 0.0),
            longest,
        )


@dataclass
class SweepStep(Step):
    """Runs one sweep of the solver over a factorization's tables per call, over all pairs of
    `sampler`; batches are ignored. The tables are its only state."""

    sampler: ExampleSampler = field(kw_only=True)

    def __call__(
        self,
        batch: Batch,
        draws: Mapping[str, Draw] | None = None,
        upcoming: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Run a sweep and return the objective after it. Raises: TrainingError: no minimum."""
        value = self.solver.sweep(self.tables)
        return value.to(self.tables["query"])

    @cached_property
    def solver(self) -> SweepSolver:
        """The solver; its first sweep groups the pairs, which counts as training time."""
        return SweepSolver(squares_of(self, self.sampler))

    @property
    def tables(self) -> dict[str, Tensor]:
        """The tables of both sides, which a sweep modifies in place."""
        return {side: getattr(self.encoder, side).weight.detach() for side in SIDES}


def squares_of(step: Step, sampler: ExampleSampler) -> PairSquares:
    """Return the expectation of `step.objective` over an epoch, for a run that the solver supports.
    Tables have one row per entity, in order."""
    objective, device = step.objective, step.encoder.device
    n = len(sampler.query)
    measures, norms = {}, {}
    for side, pairs in (("query", sampler.query), ("candidate", sampler.candidate)):
        # Entities without a pair are in no batch, so the penalty excludes them.
        in_pairs = sampler.rates[side] > 0
        measures[side] = torch.where(in_pairs[:, None], sampler.measures[side], 0.0).to(device)
        rates = torch.bincount(pairs, minlength=len(in_pairs)).double() / n
        shares = measures[side][:, 0] if objective.l2_measure == "penalty" else rates.to(device)
        norms[side] = objective.l2 * shares
    weight = sampler.pair_weight
    return PairSquares(
        {"query": sampler.query.to(device), "candidate": sampler.candidate.to(device)},
        (torch.ones(n) if sampler.target is None else sampler.target).to(device),
        None if weight is None else weight.to(device),
        measures,
        objective.penalty,
        {side: step.factors[side][:, : step.prior] for side in SIDES},
        norms,
    )
