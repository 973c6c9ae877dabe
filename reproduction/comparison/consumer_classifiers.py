"""Fit consumers of version 0: small classifiers on its embeddings. [BC] §5, App. A.2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evergram.evaluation.probes import roc_auc

# Hidden activations in memory at once.
BLOCK = 1 << 24


@dataclass(frozen=True)
class ConsumerInputs:
    """N inputs of a consumer, each the concatenation of one row of every table."""

    tables: tuple[Tensor, ...]  # each [N_t, D_t]
    rows: tuple[Tensor, ...]  # the row of each input in each table, int64 [N]

    @classmethod
    def of(cls, embeddings: Tensor) -> ConsumerInputs:
        """Return all rows of one table [N, D] as inputs."""
        return cls((embeddings,), (torch.arange(len(embeddings), device=embeddings.device),))

    def __len__(self) -> int:
        return len(self.rows[0])

    @property
    def dim(self) -> int:
        return sum(table.shape[1] for table in self.tables)

    def take(self, index: Tensor) -> Tensor:
        """Return the inputs [..., D] at an index of any shape."""
        pairs = zip(self.tables, self.rows, strict=True)
        return torch.cat([table[rows[index]] for table, rows in pairs], dim=-1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean [D] and the deviation [D] of the inputs.

        The deviation is the same for all columns of a table, the root of their mean variance, so
        that scaling does not change the relative weight of directions.
        """
        means, scales = [], []
        for table, rows in zip(self.tables, self.rows, strict=True):
            share = torch.bincount(rows, minlength=len(table)).to(table) / max(1, len(rows))
            means.append(share @ table)
            spread = (share @ (table - means[-1]) ** 2).mean().sqrt()
            scales.append(spread.expand(table.shape[1]))
        return torch.cat(means), torch.cat(scales).clamp(min=1e-6)


class ConsumerClassifiers(nn.Module):
    """M classifiers with one hidden layer of H units, as one batched product per layer.

    Each classifier has its own seed for initialisation, order of examples and dropout, so it does
    not depend on the others. Inputs are standardised by the training examples, with one scale per
    table.

    Args:
        dim: D.
        hidden: H.
        dropout: M ratios.
        seeds: M seeds.
    """

    def __init__(
        self, dim: int, hidden: int, dropout: Sequence[float], seeds: Sequence[int]
    ) -> None:
        super().__init__()
        self.dropout: list[float] = list(dropout)
        self.seeds: list[int] = list(seeds)
        self.mean: Tensor = nn.Buffer(torch.zeros(dim))
        self.scale: Tensor = nn.Buffer(torch.ones(dim))
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]

        def start(rows: int, columns: int, inputs: int) -> nn.Parameter:
            # The initialisation of nn.Linear.
            drawn = [torch.rand(rows, columns, generator=d) for d in draws]
            return nn.Parameter((2 * torch.stack(drawn) - 1) / inputs**0.5)

        self.first: nn.Parameter = start(dim, hidden, dim)
        self.first_bias: nn.Parameter = start(1, hidden, dim)
        self.second: nn.Parameter = start(hidden, 1, hidden)
        self.second_bias: nn.Parameter = start(1, 1, hidden)

    def forward(self, inputs: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return scores [M, B] for inputs [M, B, D], or [B, D] shared by all classifiers.

        Args:
            kept: [M, B, H], dropout factors of the hidden layer; None for no dropout.
        """
        inputs = ((inputs - self.mean) / self.scale).expand(len(self.seeds), -1, -1)
        hidden = torch.baddbmm(self.first_bias, inputs, self.first).relu()
        if kept is not None:
            hidden = hidden * kept
        return torch.baddbmm(self.second_bias, hidden, self.second).squeeze(-1)

    @torch.no_grad()
    def score(self, inputs: ConsumerInputs) -> Tensor:
        """Return scores [M, N], without dropout."""
        size = max(1, BLOCK // self.first_bias.numel())
        parts = torch.split(torch.arange(len(inputs), device=self.mean.device), size)
        return torch.cat([self(inputs.take(part)) for part in parts], dim=1)

    def auc(self, inputs: ConsumerInputs, label: Tensor) -> list[float]:
        """Return the M AUCs. Raises: DataError: `label` [N] has only one class."""
        truth = label.cpu().numpy()
        return [roc_auc(score, truth) for score in self.score(inputs).cpu().numpy()]


# Epochs without a better validation AUC after which a classifier stops; learning rate of Adam.
PATIENCE, RATE = 10, 1e-3


def fit_consumers(
    training: tuple[ConsumerInputs, Tensor],
    validation: tuple[ConsumerInputs, Tensor],
    *,
    seeds: Sequence[int],
    hidden: int = 128,
    dropout: float | Sequence[float] = 0.25,
    epochs: int = 200,
) -> tuple[ConsumerClassifiers, list[float]]:
    """Fit one classifier per seed, and keep the parameters with the best validation AUC.

    Args:
        training, validation: inputs and bool labels [N], on one device.
        hidden: H.
        dropout: one ratio, or one per seed.
        epochs: maximum number of epochs, of about 32 steps.
    Returns: the classifiers, and the validation AUC of each.
    Raises: DataError: a set has only one class.
    """
    inputs, label = training
    size = min(max(len(label) // 32, 64), 1024)
    ratios = [dropout] * len(seeds) if isinstance(dropout, int | float) else list(dropout)
    consumers = ConsumerClassifiers(inputs.dim, hidden, ratios, seeds)
    consumers.mean, consumers.scale = inputs.moments()
    consumers = consumers.to(label.device)
    # Generators independent of those used for initialisation.
    draws = [torch.Generator().manual_seed(2**31 + seed) for seed in seeds]
    optimizer = torch.optim.Adam(consumers.parameters(), lr=RATE)
    target = label.float()
    best = [-1.0] * len(seeds)
    waited = [0] * len(seeds)
    kept = {name: p.detach().clone() for name, p in consumers.named_parameters()}
    for _ in range(epochs):
        order = torch.stack([torch.randperm(len(label), generator=d) for d in draws])
        for rows in torch.split(order.to(label.device), size, dim=1):
            optimizer.zero_grad()
            mask = _masks(ratios, rows.shape[1], hidden, draws).to(target)
            scores = consumers(inputs.take(rows), mask)
            loss = nn.functional.binary_cross_entropy_with_logits(
                scores, target[rows], reduction="none"
            )
            # Sum over classifiers, so that each one's step does not depend on their number.
            loss.mean(1).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for m, auc in enumerate(consumers.auc(*validation)):
            if waited[m] >= PATIENCE:
                continue
            waited[m] += 1
            if auc > best[m]:
                best[m], waited[m] = auc, 0
                for name, p in consumers.named_parameters():
                    kept[name][m] = p.detach()[m]
        if min(waited) >= PATIENCE:
            break
    with torch.no_grad():
        for name, p in consumers.named_parameters():
            p.copy_(kept[name])
    return consumers.requires_grad_(False).eval(), best


def choose_consumer(
    training: tuple[ConsumerInputs, Tensor],
    validation: tuple[ConsumerInputs, Tensor],
    *,
    hidden: Sequence[int],
    dropout: Sequence[float],
    seed: int = 0,
    epochs: int = 200,
) -> tuple[int, float]:
    """Return the width and the dropout with the best validation AUC; the first one if tied."""
    choices: list[tuple[float, int, float]] = []
    if len(hidden) == 1 and len(dropout) == 1:
        return hidden[0], dropout[0]
    for width in hidden:
        _, reached = fit_consumers(
            training,
            validation,
            seeds=[seed] * len(dropout),
            hidden=width,
            dropout=dropout,
            epochs=epochs,
        )
        choices += [(auc, width, ratio) for auc, ratio in zip(reached, dropout, strict=True)]
    _, width, ratio = max(choices, key=lambda choice: choice[0])
    return width, ratio


def _masks(
    ratios: Sequence[float], batch: int, hidden: int, draws: Sequence[torch.Generator]
) -> Tensor:
    """Return dropout factors [M, B, H], each 0 or 1 / (1 - ratio)."""
    masks = [
        (torch.rand(batch, hidden, generator=draw) >= ratio) / (1 - ratio)
        if ratio
        else torch.ones(batch, hidden)
        for ratio, draw in zip(ratios, draws, strict=True)
    ]
    return torch.stack(masks)
