"""The measure of entities in a Gramian, and weights that correct for how rows are drawn."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from evergram.errors import DataError, TrainingError
from evergram.gramian.kinds import LARGEST_POWER

# γ of the measures that the papers name.
POWERS = {"uniform": 0.0, "example": 1.0}
# Streamed counts take 8 bytes per id up to the largest one, so huge ids would fill memory.
LARGEST_ID = 2**28


class EntityMeasure(nn.Module):
    """p_a of each entity, and μ_a = p_a / r_a of a row that is drawn with probability r_a.

    If c_a of n rows are of entity a, then r_a = c_a / n, p_a = w_a / Σ w over the entities seen so
    far, and μ_a = n w_a / (c_a Σ w). Counts are given at the start, or streamed; then each batch is
    counted before it is weighted. Given the counts so far, and rows in an exchangeable order,
    E[(1/B) Σ μ u⊗u] = Σ p_a u_a⊗u_a over the entities seen. This is exact from the first batch on,
    so an average over batches has no start-up bias.

    A saved state can only be loaded with the same measure.

    Args:
        measure: "uniform" (equal weight for every entity), "example" (for every row), γ ≥ 0 for
            w_a = c_a^γ, or a tensor w, [N], non-negative.
        counts: [N], how often each entity is drawn, up to a factor; None streams them.
        name: of the side, for errors.
    Raises: ValueError: the measure is unknown, or weights or counts have a wrong range or shape.
    Source: [G2] App. C; `docs/method.md`.
    """

    def __init__(
        self, measure: str | float | Tensor, counts: Tensor | None = None, name: str = "entity"
    ) -> None:
        super().__init__()
        self.name = name
        self.streamed: bool = counts is None
        self.power: float = 0.0
        self.shares: Tensor | None
        shares = None
        if isinstance(measure, Tensor):
            shares = _table(measure, f"{name}_measure")
        elif isinstance(measure, str):
            if measure not in POWERS:
                raise ValueError(
                    f"{name}_measure is {measure!r}; it must be 'uniform', 'example', a number "
                    "γ ≥ 0 for p ∝ count^γ, or a tensor with one weight per entity."
                )
            self.power = POWERS[measure]
        else:
            self.power = math.nan if isinstance(measure, bool) else float(measure)
            if not 0 <= self.power <= LARGEST_POWER:
                raise ValueError(
                    f"{name}_measure is {measure}; a number γ must be from 0 to {LARGEST_POWER}."
                )
        size = 0 if shares is None else len(shares)
        table = torch.zeros(size) if counts is None else _table(counts, f"{name}_counts")
        if shares is not None and counts is not None and len(shares) != len(table):
            raise ValueError(
                f"{name}_measure has {len(shares)} entities and {name}_counts {len(table)}; "
                "both need one entry per entity."
            )
        self.register_buffer("shares", shares, persistent=False)
        content = repr(self.power).encode() if shares is None else shares.cpu().numpy().tobytes()
        self.identity: Tensor = nn.Buffer(identity_of(content))
        self.counts: Tensor = nn.Buffer(table.double())
        # n and Σ w.
        self.total: Tensor = nn.Buffer(self.counts.sum())
        ids = torch.arange(len(table))
        self.mass: Tensor = nn.Buffer(self.unnormalized(ids, self.counts).sum())

    def unnormalized(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Return w of entities seen `counts` times, float64; 0 if never."""
        if self.shares is not None:
            weight = self.shares[ids].to(counts)
        else:
            weight = counts.clamp(min=1e-300) ** self.power
        return torch.where(counts > 0, weight, 0.0)

    def check(self, ids: Tensor) -> None:
        """Raise DataError unless ids are rows of the tables."""
        if not len(ids):
            return
        least, most = int(ids.min()), int(ids.max())
        limit = LARGEST_ID if self.streamed else len(self.counts)
        table = f"{self.name}_counts"
        if self.shares is not None and len(self.shares) <= limit:
            limit, table = len(self.shares), f"{self.name}_measure"
        if least < 0 or most >= limit:
            wrong = least if least < 0 else most
            reason = (
                "counts are a table by id; number the entities from 0"
                if limit == LARGEST_ID
                else f"they are rows of {table}, which has {limit}"
            )
            raise DataError(
                f"{self.name}_ids contain {wrong}; ids must be in 0 … {limit - 1:,}, because "
                f"{reason}."
            )

    def count(self, ids: Tensor) -> None:
        """Count ids [B], unless counts were given. Raises: DataError: an id's given count is 0."""
        if not self.streamed:
            if bool((self.counts[ids] == 0).any()):
                never = int(ids[self.counts[ids] == 0][0])
                raise DataError(
                    f"{self.name}_counts is 0 for id {never}, which is in this batch; give the "
                    "counts of the training data, or none to stream them."
                )
            return
        if not len(ids):
            return
        distinct, times = torch.unique(ids, return_counts=True)
        self.resize(int(distinct[-1]) + 1)
        before = self.counts[distinct]
        after = before + times
        change = self.unnormalized(distinct, after) - self.unnormalized(distinct, before)
        self.mass = self.mass + change.sum()
        self.total = self.total + len(ids)
        self.counts[distinct] = after

    def resize(self, size: int) -> None:
        """Enlarge the table to at least `size` entities, and by at least half."""
        old = len(self.counts)
        if size > old:
            added = self.counts.new_zeros(max(size, old + old // 2) - old)
            self.counts = torch.cat([self.counts, added])

    def weights(self, ids: Tensor) -> Tensor:
        """Return μ of rows with these ids, float64 [B]; 0 for entities never seen."""
        index = ids.clamp(max=max(0, len(self.counts) - 1))
        if not len(self.counts):
            return torch.zeros(len(ids), dtype=torch.float64, device=self.counts.device)
        counts = torch.where(ids < len(self.counts), self.counts[index], 0.0)
        weight = self.unnormalized(index, counts) / counts.clamp(min=1e-300)
        return weight * (self.total / self.mass.clamp(min=1e-300))

    def exact_weights(self, ids: Tensor) -> Tensor | None:
        """Return μ of rows that contain every entity seen, so that (1/B) Σ μ u⊗u = Σ p_a u_a⊗u_a,
        float64 [B]; None if an entity that has been seen is missing. The rows of an entity share
        its p_a, which is 0 for entities never seen."""
        shares = self.probabilities()
        if not len(shares):
            return None
        entities, rows, times = torch.unique(ids, return_inverse=True, return_counts=True)
        share = shares[entities.clamp(max=len(shares) - 1)]
        share = torch.where(entities < len(shares), share, 0.0)
        if int(share.count_nonzero()) < int(shares.count_nonzero()):
            return None
        weights: Tensor = len(ids) * (share / times)[rows]
        return weights

    def probabilities(self) -> Tensor:
        """Return p of every row of the tables, float64; all zero before any entity is seen."""
        ids = torch.arange(len(self.counts), device=self.counts.device)
        return self.unnormalized(ids, self.counts) / self.mass.clamp(min=1e-300)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: object
    ) -> None:
        identity = state_dict.get(prefix + "identity")
        if identity is not None and not bool(identity == self.identity):
            raise TrainingError(
                f"The state was saved with another {self.name}_measure; create the penalty with "
                "the same measure."
            )
        counts = state_dict.get(prefix + "counts")
        if self.streamed and counts is not None:
            self.counts = self.counts.new_zeros(len(counts))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def identity_of(content: bytes) -> Tensor:
    """Return a 64-bit hash of some content, int64."""
    digest = hashlib.sha256(content).digest()
    return torch.tensor(int.from_bytes(digest[:8], "little", signed=True))


def _table(values: Tensor, name: str) -> Tensor:
    """Return float64 weights [N]. Raises: ValueError: the shape or a weight is wrong."""
    table = torch.as_tensor(values).detach().double()
    if table.dim() != 1 or not len(table):
        raise ValueError(f"{name} has shape {list(table.shape)}; it must be [N], one per entity.")
    if not bool(torch.isfinite(table).all()) or bool((table < 0).any()) or not float(table.sum()):
        raise ValueError(f"{name} must be finite, not negative, and not all zero.")
    return table.clone()
