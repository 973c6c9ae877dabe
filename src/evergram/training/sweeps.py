"""Alternating least squares on `PairSquares`, some conjugate gradient steps a row and sweep."""

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

    It is what the mean of `Objective` over an epoch estimates for the squared task.

    Args:
        pairs: for each side, the rows of the n observed pairs, int64 [n].
        target: y, [n].
        weight: w, [n], which may be negative; None is zero.
        measures: for each side, p and q, [N, R].
        penalty: λ_r, one a measure.
        factors: for each side, f and g of the prior, [N, K]; K may be 0.
        norms: for each side, m, [N].
    Source: [G2] Eq. (7), App. B, App. C.
    """

    pairs: Mapping[str, Tensor]
    target: Tensor
    weight: Tensor | None
    measures: Mapping[str, Tensor]
    penalty: Sequence[float]
    factors: Mapping[str, Tensor]
    norms: Mapping[str, Tensor]


# Rows start from where they were, near the solution, and the preconditioner is near A⁻¹.
STEPS = 2
# Numbers of a group's partners: 2 MiB of float32 stay in a core's cache; a GPU wants fewer calls.
GATHERED = {"cpu": 2**19, "cuda": 2**25}
# ρ of the preconditioner, relative to its mean eigenvalue: only for its Cholesky factor.
RIDGE = 1e-5
# A preconditioner serves rows with up to this many times fewer pairs than the rows it is made of.
SERVES = 1.5


@dataclass(frozen=True)
class _Push:
    """The held side, as all rows of the other see it."""

    table: Tensor  # [M, D]
    gramians: Sequence[Tensor]  # λ_r G_r, [D, D]
    pulled: Sequence[Tensor]  # λ_r H_r, [D, K]
    mean: Tensor  # Σ h v ⊗ v / Σ h over all pairs, [D, D]


class _Systems:
    """A u = b of a group's rows, without forming A, by their n p [B, R], n m [B] and f [B, K]."""

    def __init__(
        self, group: RowGroup, push: _Push, share: Tensor, norm: Tensor, factors: Tensor
    ) -> None:
        self.group, self.push, self.share, self.norm = group, push, share, norm[:, None]
        # Rows of the held side, [B, M, D].
        partners = push.table.index_select(0, group.partners.flatten())
        self.partners: Tensor = partners.view(*group.partners.shape, push.table.shape[1])
        # n Σ_r λ_r p H_r f, [B, D]; None without a prior.
        self.toward: Tensor | None = None
        if factors.shape[1]:
            each = [share[:, r, None] * (factors @ h.T) for r, h in enumerate(push.pulled)]
            self.toward = torch.stack(each).sum(0)

    def product(self, rows: Tensor) -> Tensor:
        """Return A p of p [B, D]."""
        scores = torch.bmm(self.partners, rows[:, :, None])[..., 0]
        near = torch.bmm((self.group.pull * scores)[:, None], self.partners)[:, 0]
        return near + self._pushed(rows)

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return b − A u of u [B, D], and Σ_a uᵀA u − 2 bᵀu."""
        scores = torch.bmm(self.partners, rows[:, :, None])[..., 0]
        wanted = self.group.wanted
        missed = wanted - self.group.pull * scores
        residual = torch.bmm(missed[:, None], self.partners)[:, 0] - self._pushed(rows)
        drawn = (wanted * scores).sum()
        if self.toward is not None:
            residual += self.toward
            drawn = drawn + (self.toward * rows).sum()
        return residual, -(rows * residual).sum() - drawn

    @property
    def size(self) -> Tensor:
        """About the trace of A, [B]."""
        size = self.group.pull.abs().sum(1) * self.push.mean.trace() + self.norm[:, 0]
        for r, gramian in enumerate(self.push.gramians):
            size = size + self.share[:, r] * gramian.trace()
        return size

    def _pushed(self, rows: Tensor) -> Tensor:
        """Return the part of A p that needs no pair."""
        away = self.norm * rows
        for r, gramian in enumerate(self.push.gramians):
            away += self.share[:, r, None] * (rows @ gramian)
        return away


class SweepSolver:
    """Minimises `PairSquares` by sweeps: over all queries, then over all candidates.

    With one side held, n F is a sum over the rows of the other of uᵀA u − 2 bᵀu, with

        A_a = Σ_i h_i v_i ⊗ v_i + n Σ_r λ_r p_a G_r + n m_a I,      h = ½ + w
        b_a = Σ_i t_i v_i + n Σ_r λ_r p_a H_r f_a,                  t = ½ y + w π

    Each row takes conjugate gradient steps on its own A from where it is; rows of about the same
    count share a preconditioner, the inverse of their mean A with the pairs' part averaged over all
    pairs. No sweep raises F but by rounding, and one whose gradient is zero changes nothing.

    Args:
        squares: what is minimised; on the device of the tables.
        steps: of conjugate gradients, for each row in each sweep.
        gathered: numbers that a group of rows gathers at once; None suits the device.
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
        self.pull: Tensor = 0.5 + weight
        self.wanted: Tensor = 0.5 * squares.target + weight * prior
        # The terms of F without the tables, times n.
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
        """Solve for queries, then for candidates, in place, in tables [N, D]. Return F, float64.

        Raises: TrainingError: F has no minimum, as weights of pairs are too negative; or it is not
            finite.
        """
        self.solve("query", tables)
        return self.solve("candidate", tables)

    @torch.no_grad()
    def solve(self, side: str, tables: MutableMapping[str, Tensor]) -> Tensor:
        """Move all rows of one side, in place, with the other held. Returns: F after it.

        Raises: TrainingError.
        """
        other = "candidate" if side == "query" else "query"
        squares, table, n = self.squares, tables[side], len(self.squares.target)
        push = self._push(other, tables[other])
        shares = squares.measures[side].to(table) * n
        norms = squares.norms[side].to(table) * n
        factors = squares.factors[side].to(table)
        held = squares.norms[other].to(table) @ tables[other].square().sum(1)
        total = self.constant.to(table.device) + n * held.double()
        endless = torch.zeros((), dtype=torch.int64, device=table.device)
        if side not in self.groups:
            gathered = self.gathered or GATHERED.get(table.device.type, GATHERED["cpu"])
            pairs = squares.pairs[side], squares.pairs[other]
            values, most = (self.pull.to(table), self.wanted.to(table)), gathered // table.shape[1]
            made = row_groups(*pairs, *values, entities=len(table), pairs=most)
            self.groups[side] = list(made)
        eye = torch.eye(len(push.mean), dtype=push.mean.dtype, device=push.mean.device)
        inverse, serves = torch.empty(0), float("inf")
        for group in self.groups[side]:
            rows = group.rows
            if group.longest < serves:
                # Of the mean A of these rows, up to a factor.
                pull, norm = float(group.pull.sum(1).mean()), float(norms[rows].mean())
                weights = [*shares[rows].mean(0).tolist(), max(0.0, pull), norm]
                parts = [Moment(part) for part in (*push.gramians, push.mean, eye)]
                inverse, serves = preconditioner(parts, weights, RIDGE), group.longest / SERVES
            systems = _Systems(group, push, shares[rows], norms[rows], factors[rows])
            own = table.index_select(0, rows)
            residual, value = systems.at(own)
            table[rows], gain, without_end = descend(
                systems.product, own, residual, inverse, systems.size, steps=self.steps
            )
            endless += without_end.count_nonzero()
            total += (value - gain.sum()).double()
        if endless:
            raise TrainingError(
                f"{int(endless)} entities have an objective without a minimum, because weights of "
                "observed pairs are too negative; raise task.penalty or task.l2, or set "
                "training.optimizer = 'adaptive'."
            )
        if not bool(torch.isfinite(total)):
            raise TrainingError(
                f"The objective is {float(total)} after a sweep of training.optimizer = 'als'; "
                "lower task.penalty, or check the table's values and weights."
            )
        return total / n

    def _push(self, side: str, table: Tensor) -> _Push:
        """Return a side as it is held."""
        squares = self.squares
        pull = torch.zeros(len(table), dtype=self.pull.dtype, device=table.device)
        # Weights may be negative, and a preconditioner may not.
        pull = pull.index_add_(0, squares.pairs[side], self.pull).clamp(min=0).to(table)
        factors = squares.factors[side].to(table)
        shares = squares.measures[side].to(table).T
        strengths = list(zip(squares.penalty, shares, strict=False))
        return _Push(
            table,
            [s * _moment(table, table, share) for s, share in strengths],
            [s * _moment(table, factors, share) for s, share in strengths],
            _moment(table, table, pull) / pull.sum().clamp(min=torch.finfo(pull.dtype).tiny),
        )


def _moment(left: Tensor, right: Tensor, share: Tensor) -> Tensor:
    """Return Σ_a p_a u_a ⊗ x_a, [D, K]."""
    return (left * share[:, None].to(left)).T @ right


# A curvature below minus this share of A's size is not rounding.
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

    Every step is the exact minimum along its direction, so none raises xᵀA x − 2 bᵀx, and a row
    whose residual is zero stays.

    Args:
        product: gives A p [B, D] of p [B, D].
        start: x, [B, D]; residual: b − A x.
        inverse: [D, D], symmetric, about A⁻¹ up to a factor; all systems share it.
        size: [B], of the order of A's largest eigenvalue, or larger.
    Returns: x; by how much xᵀA x − 2 bᵀx has fallen, ≥ 0, [B]; and whether it has no minimum along
        a direction that was met, bool [B].
    Source: Hestenes and Stiefel 1952; Takács et al. 2011, for warm starts in matrix factorization.
    """
    solution, gain = start, torch.zeros_like(start[:, 0])
    endless = torch.zeros_like(gain, dtype=torch.bool)
    turned = residual @ inverse
    direction, slope = turned, (residual * turned).sum(1)
    for step in range(steps):
        moved = product(direction)
        curvature = (direction * moved).sum(1)
        if bool((curvature < 0).any()):
            endless |= curvature < -ROUNDING * size * direction.square().sum(1)
        # Without curvature there is no slope either, or both are rounding: the row stays.
        length = torch.where(curvature > 0, slope / curvature, 0.0)
        solution = torch.addcmul(solution, length[:, None], direction)
        gain = gain + length * slope
        if step + 1 == steps:
            break
        residual = torch.addcmul(residual, length[:, None], moved, value=-1)
        turned = residual @ inverse
        rest = (residual * turned).sum(1)
        ratio = torch.where(slope > 0, rest / slope, 0.0)
        direction, slope = torch.addcmul(turned, ratio[:, None], direction), rest
    return solution, gain, endless


# Pairs that a row counts for at least: a group of rows with few has temporaries of its own.
FEWEST = 4


@dataclass(frozen=True)
class RowGroup:
    """Entities of about the same number of pairs, M at most; zeros pad those with fewer."""

    rows: Tensor  # int64 [B]
    partners: Tensor  # rows of the other side, int32 [B, M]
    pull: Tensor  # h of each pair, [B, M]
    wanted: Tensor  # t of each pair, [B, M]
    longest: int


def row_groups(
    rows: Tensor, partners: Tensor, pull: Tensor, wanted: Tensor, entities: int, pairs: int
) -> Iterator[RowGroup]:
    """Yield every entity of a side once, those with the most pairs first.

    Args:
        rows, partners: int64 [n], the entities of each pair, of this side and of the other.
        pull, wanted: [n], h and t of each pair.
        entities: number of this side.
        pairs: maximum of a group, unless one entity has more.
    """
    order = torch.argsort(rows, stable=True)
    counts = torch.bincount(rows, minlength=entities)
    starts = counts.cumsum(0) - counts
    by_count = torch.argsort(counts, descending=True, stable=True)
    lengths = counts[by_count].tolist()
    partners, pull, wanted = partners.int()[order], pull[order], wanted[order]
    begun = 0
    while begun < entities:
        longest = lengths[begun]
        size = max(1, pairs // max(longest, FEWEST))
        members = by_count[begun : begun + size]
        begun += size
        steps = torch.arange(max(1, longest), device=rows.device)
        real = steps < counts[members, None]
        places = torch.where(real, starts[members, None] + steps, 0)
        yield RowGroup(
            members,
            torch.where(real, partners[places], 0),
            torch.where(real, pull[places], 0.0),
            torch.where(real, wanted[places], 0.0),
            longest,
        )


@dataclass
class SweepStep(Step):
    """Moves all rows of a factorization's tables in each call: queries, then candidates.

    Its only state is the tables, so that a checkpoint of them resumes the run.

    Args:
        sampler: has all pairs; the batches of its epochs are not looked at.
    """

    sampler: ExampleSampler = field(kw_only=True)

    def __call__(
        self,
        batch: Batch,
        draws: Mapping[str, Draw] | None = None,
        upcoming: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the objective's value after a sweep.

        Raises: TrainingError: the objective has no minimum.
        """
        value = self.solver.sweep(self.tables)
        return value.to(self.tables["query"])

    @cached_property
    def solver(self) -> SweepSolver:
        """It groups the pairs in its first sweep, as part of training."""
        return SweepSolver(squares_of(self, self.sampler))

    @property
    def tables(self) -> dict[str, Tensor]:
        """The rows of both sides, which a sweep writes into."""
        return {side: getattr(self.encoder, side).weight.detach() for side in SIDES}


def squares_of(step: Step, sampler: ExampleSampler) -> PairSquares:
    """Return what the mean of `step.objective` over an epoch estimates, in closed form.

    Args:
        step, sampler: of a run that can be solved; of all entities the table has
            a row, in their order.
    """
    objective, device = step.objective, step.encoder.device
    n = len(sampler.query)
    measures, norms = {}, {}
    for side, pairs in (("query", sampler.query), ("candidate", sampler.candidate)):
        # Entities without a pair are in no batch, so no step pushes them, whatever their measure.
        met = sampler.rates[side] > 0
        measures[side] = torch.where(met[:, None], sampler.measures[side], 0.0).to(device)
        counts = torch.bincount(pairs, minlength=len(met)).double() / n
        shares = measures[side][:, 0] if objective.l2_measure == "penalty" else counts.to(device)
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
