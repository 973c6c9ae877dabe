"""One side of `GramianPenalty`: it turns ids and embeddings into weights and an estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real

import torch
from torch import Tensor, nn

from evergram.errors import DataError, ShapeError, TrainingError
from evergram.gramian.adaptive_sogram import AdaptiveSOGram
from evergram.gramian.estimator import EntityBatch, GramianEstimator, Moment
from evergram.gramian.gramian_penalty.entity_measure import EntityMeasure, identity_of
from evergram.gramian.sampled import SampledGramian
from evergram.gramian.sogram import SOGram

UNKNOWN, WITH_IDS, WITHOUT_IDS = 0, 1, 2


class PenaltySide(nn.Module):
    """The measure, the prior's factors and the Gramian of the queries, or of the candidates.

    Args:
        measure: p, the counts that it needs, and the side's name.
        factors: [N, K] by id, or [1, K] for every row alike; K = 0 is the zero prior.
        estimator: of a moment [D, D + K].
    Raises: ShapeError: the factors are of other entities than the measure.
    """

    def __init__(
        self, measure: EntityMeasure, factors: Tensor, estimator: GramianEstimator
    ) -> None:
        super().__init__()
        name, entities = measure.name, len(measure.counts)
        if len(factors) > 1 and entities not in (0, len(factors)):
            raise ShapeError(
                f"The prior has {len(factors)} rows of {name} factors, and {name}_counts or "
                f"{name}_measure {entities} entities; each needs one row an entity."
            )
        self.name = name
        self.measure = measure
        self.factors: Tensor
        self.prior_square: Tensor
        self.prior_weight: Tensor
        self.prior_identity: Tensor
        self.id_use: Tensor
        self.register_buffer("factors", factors, persistent=False)
        width = factors.shape[1]
        # Σ μ f⊗f and Σ μ of all rows seen: the constant of the penalty's value needs their mean.
        self.register_buffer("prior_square", torch.zeros(width, width, dtype=torch.float64))
        self.register_buffer("prior_weight", torch.zeros((), dtype=torch.float64))
        prior = str(list(factors.shape)).encode() + factors.cpu().numpy().tobytes()
        self.register_buffer("prior_identity", identity_of(prior))
        self.register_buffer("id_use", torch.tensor(UNKNOWN))
        self.estimator: GramianEstimator = estimator

    @property
    def by_id(self) -> bool:
        """True if the factors are a table by id."""
        return len(self.factors) > 1

    def check_rows(self, embeddings: Tensor) -> None:
        """Check that embeddings are [B, D]. Raises: ShapeError."""
        shape = list(embeddings.shape)
        if len(shape) != 2 or shape[1] != self.estimator.dim:
            raise ShapeError(
                f"The {self.name} embeddings have shape {shape}; this penalty takes "
                f"[batch, {self.estimator.dim}], one row an entity. Flatten other dims, or make it "
                "with the embeddings' own dim."
            )

    def check_ids(self, ids: object, size: int) -> Tensor | None:
        """Return ids as int64 [B] on this module's device; None for None.

        Raises:
            ShapeError: ids are not integers, or not one for each row.
            DataError: an id lies beyond the tables.
            TrainingError: earlier calls had ids and this one has none, or the reverse.
        """
        use = WITHOUT_IDS if ids is None else WITH_IDS
        before = int(self.id_use)
        if size and before not in (UNKNOWN, use):
            now, then = ("without", "with") if ids is None else ("with", "without")
            raise TrainingError(
                f"This call is {now} {self.name}_ids, earlier ones were {then}: the estimate would "
                "mix two measures. Give ids in every call, or in none."
            )
        if ids is None:
            if size:
                self._check_without_ids()
            return None
        rows = torch.as_tensor(ids, device=self.id_use.device)
        no_ids = size and (rows.is_floating_point() or rows.dtype == torch.bool)
        if rows.shape != (size,) or no_ids:
            raise ShapeError(
                f"{self.name}_ids are {rows.dtype} {list(rows.shape)}; they must be [{size}], an "
                f"integer for each row of the {self.name} embeddings."
            )
        rows = rows.long()
        self.measure.check(rows)
        if self.by_id and size and int(rows.max()) >= len(self.factors):
            raise DataError(
                f"{self.name}_ids contain {int(rows.max())}, and the prior has "
                f"{len(self.factors)} rows; it needs one for each entity."
            )
        return rows

    def _check_without_ids(self) -> None:
        """Check that prior and measure work without ids. Raises: TrainingError."""
        needs = None
        if self.by_id:
            needs = "the prior is a table by id"
        elif self.measure.shares is not None or not self.measure.streamed:
            needs = "its measure or its counts are a table by id"
        elif self.measure.power not in (0.0, 1.0):
            needs = f"its measure, p ∝ count^{self.measure.power}, counts entities"
        if needs:
            raise TrainingError(f"The penalty needs {self.name}_ids, for {needs}.")

    def count(self, ids: Tensor | None, size: int) -> None:
        """Count a batch's entities; call it before `rows`, which weights them."""
        if not size:
            return
        self.id_use = torch.full_like(self.id_use, WITHOUT_IDS if ids is None else WITH_IDS)
        if ids is not None:
            self.measure.count(ids)

    def rows(
        self, embeddings: Tensor, ids: Tensor | None, *, evaluates: bool = False
    ) -> EntityBatch:
        """Return a batch's rows, detached, with the weights and factors of their ids.

        Args:
            evaluates: True weights rows that hold every entity by the measure itself, whether or
                not they were drawn as in training.
        """
        size = len(embeddings)
        if ids is None:
            weights = embeddings.new_ones(size)
            ids = torch.arange(size, device=embeddings.device)
        else:
            exact = self.measure.exact_weights(ids) if evaluates else None
            weights = (self.measure.weights(ids) if exact is None else exact).to(embeddings)
        factors = self.factors[ids] if self.by_id else self.factors.expand(size, -1)
        return EntityBatch(ids, weights, embeddings.detach(), factors.to(embeddings))

    def learn_prior(self, rows: EntityBatch) -> None:
        """Add a batch's factors to the prior's mean, of which no gradient is taken."""
        if rows.factors.shape[1]:
            factors, weights = rows.factors.double(), rows.weights.double()
            self.prior_square = self.prior_square + (factors * weights[:, None]).T @ factors
            self.prior_weight = self.prior_weight + weights.sum()

    @property
    def prior_mean(self) -> Tensor:
        """Σ p f⊗f of the prior's factors, [K, K]; zero before any row."""
        return self.prior_square / self.prior_weight.clamp(min=1e-300)

    def fold(self, rows: EntityBatch) -> None:
        """Fold a batch into the estimate; an empty one changes nothing."""
        if not len(rows.ids):
            return
        if isinstance(self.estimator, SampledGramian):
            # It keeps the rows, and the caller's tensor may change in place.
            rows = replace(rows, embeddings=rows.embeddings.clone())
        self.estimator.update(rows)

    def fold_together(self, calls: Sequence[EntityBatch]) -> None:
        """Fold the rows of several calls in as one batch, weighted by all counts so far."""
        some = [rows for rows in calls if len(rows.ids)]
        if some:
            ids = torch.cat([rows.ids for rows in some])
            by_id = int(self.id_use) == WITH_IDS
            embeddings = torch.cat([rows.embeddings for rows in some])
            self.fold(self.rows(embeddings, ids if by_id else None))

    def moment(self, dtype: torch.dtype) -> Moment:
        """Return the estimate in this dtype."""
        moment = self.estimator.moment()
        parts = (moment.matrix, moment.left, moment.right)
        return Moment(*(part if part is None else part.to(dtype) for part in parts))

    def probabilities(self, size: int) -> Tensor:
        """Return p of rows 0 … size − 1, float64; without ids every row has the same.

        Raises: ShapeError: an id that has been seen has no row.
        """
        if int(self.id_use) != WITH_IDS:
            return torch.full((size,), 1 / max(1, size), dtype=torch.float64)
        shares = self.measure.probabilities()
        known = shares.nonzero()
        needed = int(known[-1]) + 1 if len(known) else 0
        if size < needed:
            raise ShapeError(
                f"There are {size} {self.name} rows, and ids up to {needed - 1} have been seen; "
                "row a must be the embedding of id a, for every id."
            )
        room = shares.new_zeros(max(0, size - len(shares)))
        return torch.cat([shares[:size], room])

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: object
    ) -> None:
        identity = state_dict.get(prefix + "prior_identity")
        if identity is not None and not bool(identity == self.prior_identity):
            raise TrainingError(
                f"The state is of another prior than this penalty's, by its {self.name} factors; "
                "make the penalty with the prior that it had when the state was saved."
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)


def estimator_of(kind: str, dim: int, factors: int, rate: float | str) -> GramianEstimator:
    """Return an estimator that learns from the batches of a loss alone.

    Raises: ValueError: the kind needs more than that or has no rate, or the rate is out of range.
    """
    if kind == "sogram":
        return AdaptiveSOGram(dim, factors) if rate == "auto" else SOGram(dim, factors, rate)
    if kind != "sampled":
        raise ValueError(
            f"estimator is {kind!r}; it must be 'sogram' or 'sampled'. 'storm', 'sagram' and "
            "'exact' embed other entities or parameters than those of a batch; evergram.train has "
            "them."
        )
    if rate != "auto":
        raise ValueError(f"rate is {rate}, and 'sampled' has none; leave it 'auto'.")
    return SampledGramian(dim, factors)


def prior_factors(prior: float | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return q [N, K] and r [N′, K] with π_ab = ⟨q_a, r_b⟩; N = 1 for a number, and K = 0 for zero.

    Raises: ValueError: the number is not finite. ShapeError: the tables do not fit together.
    """
    if not isinstance(prior, tuple | list):
        number = isinstance(prior, Real | Tensor) and not isinstance(prior, bool)
        value = torch.tensor([[float(prior) if number else math.nan]])
        if not bool(torch.isfinite(value)):
            raise ValueError(f"prior is {prior!r}; it must be a finite score, or two tables.")
        return (value, torch.ones(1, 1)) if prior else (torch.zeros(1, 0), torch.zeros(1, 0))
    tables = [torch.as_tensor(table).detach().float().clone() for table in prior]
    shapes = [list(table.shape) for table in tables]
    if (
        len(shapes) != 2
        or any(len(s) != 2 or not s[0] for s in shapes)
        or len({s[1] for s in shapes}) > 1
    ):
        raise ShapeError(
            f"The prior's tables have shapes {shapes}; they must be [N, K] of the queries and "
            "[N′, K] of the candidates, with one K."
        )
    return tables[0], tables[1]
