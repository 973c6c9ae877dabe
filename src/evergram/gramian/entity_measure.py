"""The measure of entities in a Gramian, and the weights that make drawn rows stand for it."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from evergram.errors import DataError, TrainingError
from evergram.gramian.kinds import LARGEST_POWER

# γ of the measures that the papers name.
POWERS = {"uniform": 0.0, "example": 1.0}
# Streamed counts are a table by id, of 8 bytes each: ids that number nothing would fill memory.
LARGEST_ID = 2**28


class EntityMeasure(nn.Module):
    """p_a of each entity, and μ_a = p_a / r_a of a row that is drawn with probability r_a.

    With c_a rows of entity a among n, r_a = c_a / n, p_a = w_a / Σ w over the entities that have
    been seen, and μ_a = n w_a / (c_a Σ w). Counts are given once, or streamed: then a batch is
    counted before it is weighted. For fixed counts so far, and rows in an exchangeable order,
    E[(1/B) Σ μ u⊗u] = Σ p_a u_a⊗u_a over the entities seen, exactly and from the first batch on:
    there is no wrong start that an average would have to forget.

    A state is of its measure, and is refused by another one.

    Args:
        measure: "uniform" (every distinct entity alike), "example" (every row alike), γ ≥ 0 for
            w_a = c_a^γ, or w itself, [N] non-negative.
        counts: [N], how often each entity is drawn, up to a factor; None streams them.
        name: of the side, for errors.
    Raises: ValueError: the measure or the counts have a wrong name, range or shape.
    Source: [G2] App. C; `docs/method.md`.
    """

    def __init__(
        self, measure: str | float | Tensor, counts: Tensor | None = None, name: str = "entity"
    ) -> None:
        super().__init__()
        self.name = name
        self.streamed: bool = counts is None
        self.power: float = 0.0
        self.counts: Tensor
        self.total: Tensor
        self.mass: Tensor
        self.shares: Tensor | None
        self.identity: Tensor
        shares = None
        if isinstance(measure, Tensor):
            shares = _table(measure, f"{name}_measure")
        elif isinstance(measure, str):
            if measure not in POWERS:
                raise ValueError(
                    f"{name}_measure is {measure!r}; it must be 'uniform', 'example', a number "
                    "γ ≥ 0 for p ∝ count^γ, or a tensor with one weight an entity."
                )
            self.power = POWERS[measure]
        else:
            self.power = math.nan if isinstance(measure, bool) else float(measure)
            if not 0 <= self.power <= LARGEST_POWER:
                raise ValueError(
                    f"{name}_measure is {measure}; as a number γ it must be 0 to {LARGEST_POWER}."
                )
        known = 0 if shares is None else len(shares)
        table = torch.zeros(known) if counts is None else _table(counts, f"{name}_counts")
        if shares is not None and counts is not None and len(shares) != len(table):
            raise ValueError(
                f"{name}_measure has {len(shares)} entities and {name}_counts {len(table)}; "
                "both need one entry an entity."
            )
        self.register_buffer("shares", shares, persistent=False)
        content = repr(self.power).encode() if shares is None else shares.cpu().numpy().tobytes()
        self.register_buffer("identity", identity_of(content))
        self.register_buffer("counts", table.double())
        # n and Σ w.
        self.register_buffer("total", self.counts.sum())
        ids = torch.arange(len(table))
        self.register_buffer("mass", self.unnormalized(ids, self.counts).sum())

    def unnormalized(self, ids: Tensor, counts: Tensor) -> Tensor:
        """Return w of entities seen `counts` times, float64; 0 for those never seen."""
        if self.shares is not None:
            weight = self.shares[ids].to(counts)
        else:
            weight = counts.clamp(min=1e-300) ** self.power
        return torch.where(counts > 0, weight, 0.0)

    def check(self, ids: Tensor) -> None:
        """Check that ids are rows of the tables. Raises: DataError."""
        if not len(ids):
            return
        least, most = int(ids.min()), int(ids.max())
        limit = LARGEST_ID if self.streamed else len(self.counts)
        table = f"{self.name}_counts"
        if self.shares is not None and len(self.shares) <= limit:
            limit, table = len(self.shares), f"{self.name}_measure"
        if least < 0 or most >= limit:
            wrong = least if least < 0 else most
            why = (
                "counts are kept in a table by id: number the entities from 0"
                if limit == LARGEST_ID
                else f"they number the rows of {table}, which has {limit}"
            )
            raise DataError(
                f"{self.name}_ids contain {wrong}; ids must lie in 0 … {limit - 1:,}, for {why}."
            )

    def count(self, ids: Tensor) -> None:
        """Count a batch's entities, [B]; do nothing if the counts were passed at the start.

        Raises: DataError: the counts passed at the start say that an id never occurs.
        """
        if not self.streamed:
            if bool((self.counts[ids] == 0).any()):
                never = int(ids[self.counts[ids] == 0][0])
                raise DataError(
                    f"{self.name}_counts say that id {never} never occurs, and this batch has it; "
                    "give the counts of the training data, or none to stream them."
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
        """Make room for `size` entities; grow by half at least, so that growth stays cheap."""
        known = len(self.counts)
        if size > known:
            room = self.counts.new_zeros(max(size, known + known // 2) - known)
            self.counts = torch.cat([self.counts, room])

    def weights(self, ids: Tensor) -> Tensor:
        """Return μ of rows with these ids, float64 [B]; 0 for entities never seen."""
        known = ids.clamp(max=max(0, len(self.counts) - 1))
        if not len(self.counts):
            return torch.zeros(len(ids), dtype=torch.float64, device=self.counts.device)
        counts = torch.where(ids < len(self.counts), self.counts[known], 0.0)
        weight = self.unnormalized(known, counts) / counts.clamp(min=1e-300)
        return weight * (self.total / self.mass.clamp(min=1e-300))

    def exact_weights(self, ids: Tensor) -> Tensor | None:
        """Return μ of rows that hold every entity seen, so that (1/B) Σ μ u⊗u *is* Σ p_a u_a⊗u_a.

        However often an entity occurs, its rows share p_a; of those never seen p_a is 0.

        Returns: float64 [B]; None if an entity that has been seen is not among these ids.
        """
        shares = self.probabilities()
        if not len(shares):
            return None
        entities, rows, times = torch.unique(ids, return_inverse=True, return_counts=True)
        known = shares[entities.clamp(max=len(shares) - 1)]
        share = torch.where(entities < len(shares), known, 0.0)
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
                f"The state is of another {self.name}_measure than this penalty's; make the "
                "penalty with the measure that it had when the state was saved."
            )
        counts = state_dict.get(prefix + "counts")
        if self.streamed and counts is not None:
            self.counts = self.counts.new_zeros(len(counts))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def identity_of(content: bytes) -> Tensor:
    """Return a number that two contents share only if they are the same, int64."""
    digest = hashlib.sha256(content).digest()
    return torch.tensor(int.from_bytes(digest[:8], "little", signed=True))


def _table(values: Tensor, name: str) -> Tensor:
    """Return float64 weights [N]. Raises: ValueError: the shape or a weight is wrong."""
    table = torch.as_tensor(values).detach().double()
    if table.dim() != 1 or not len(table):
        raise ValueError(f"{name} has shape {list(table.shape)}; it must be [N], one an entity.")
    if not bool(torch.isfinite(table).all()) or bool((table < 0).any()) or not float(table.sum()):
        raise ValueError(f"{name} must be finite, not negative, and not zero everywhere.")
    return table.clone()
