"""Fit consumers of version 0: small classifiers of its embeddings. [BC] §5, App. A.2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evergram.evaluation.probes import roc_auc

# Hidden activations held at once.
BLOCK = 1 << 24


@dataclass(frozen=True)
class ConsumerInputs:
    """N inputs of a consumer, each the concatenation of one row of every table.

    Args:
        tables: [N_t, D_t] each.
        rows: for each table int64 [N], the row of each input.
    """

    tables: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]

    @classmethod
    def of(cls, embeddings: Tensor) -> ConsumerInputs:
        """Return the inputs that are all rows of one table [N, D]."""
        return cls((embeddings,), (torch.arange(len(embeddings), device=embeddings.device),))

    def __len__(self) -> int:
        return len(self.rows[0])

    @property
    def dim(self) -> int:
        return sum(table.shape[1] for table in self.tables)

    def take(self, index: Tensor) -> Tensor:
        """Return the inputs [..., D] of an index of any shape."""
        pairs = zip(self.tables, self.rows, strict=True)
        return torch.cat([table[rows[index]] for table, rows in pairs], dim=-1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean [D] and the deviation [D] of the inputs.

        The deviation is one number for each table, the root of its mean variance, so that
        directions keep their weights in distances.
        """
        means, scales = [], []
        for table, rows in zip(self.tables, self.rows, strict=True):
            share = torch.bincount(rows, minlength=len(table)).to(table) / max(1, len(rows))
            means.append(share @ table)
            spread = (share @ (table - means[-1]) ** 2).mean().sqrt()
            scales.append(spread.expand(table.shape[1]))
        return torch.cat(means), torch.cat(scales).clamp(min=1e-6)


class ConsumerClassifiers(nn.Module):
    """M classifiers with one hidden layer of H, in one batched product a layer.

    The start, the order of examples and the dropout of each come from its own seed, so that it does
    not depend on the classifiers trained beside it. Inputs are centred and scaled, with one scale
    for each table, by the training examples.

    Args:
        dim: D.
        hidden: H.
        dropout: M ratios.
        seeds: M of them.
    """

    def __init__(
        self, dim: int, hidden: int, dropout: Sequence[float], seeds: Sequence[int]
    ) -> None:
        super().__init__()
        self.dropout: list[float] = list(dropout)
        self.seeds: list[int] = list(seeds)
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
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
        """Return scores [M, B] of inputs [M, B, D], or [B, D] shared by all.

        Args:
            kept: [M, B, H], the factors of dropout on the hidden layer; None for no dropout.
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
        """Return the M AUCs. Raises: DataError: `label` [N] has one class alone."""
        truth = label.cpu().numpy()
        return [roc_auc(score, truth) for score in self.score(inputs).cpu().numpy()]


@dataclass(frozen=True)
class ConsumerFit:
    """Settings of the training of classifiers.

    Args:
        epochs: the most there are.
        patience: epochs without a better validation AUC after which a classifier stops.
        batch_size: None chooses one for about 32 steps an epoch, from 64 to 1,024.
        rate: learning rate of Adam.
    """

    epochs: int = 200
    patience: int = 10
    batch_size: int | None = None
    rate: float = 1e-3


def fit_consumers(
    training: tuple[ConsumerInputs, Tensor],
    validation: tuple[ConsumerInputs, Tensor],
    *,
    seeds: Sequence[int],
    hidden: int = 128,
    dropout: float | Sequence[float] = 0.25,
    settings: ConsumerFit | None = None,
) -> tuple[ConsumerClassifiers, list[float]]:
    """Fit one classifier for each seed, and keep its parameters of the best validation AUC.

    Args:
        training, validation: inputs and bool labels [N], on one device.
        hidden: H.
        dropout: one ratio, or one for each seed.
        settings: None is `ConsumerFit()`.
    Returns: the classifiers, and the validation AUC of each.
    Raises: DataError: a set has one class alone.
    """
    settings = settings or ConsumerFit()
    inputs, label = training
    size = settings.batch_size or min(max(len(label) // 32, 64), 1024)
    ratios = [dropout] * len(seeds) if isinstance(dropout, int | float) else list(dropout)
    consumers = ConsumerClassifiers(inputs.dim, hidden, ratios, seeds)
    consumers.mean, consumers.scale = inputs.moments()
    consumers = consumers.to(label.device)
    # Other generators than those of the start, which thus does not depend on the data's size.
    draws = [torch.Generator().manual_seed(2**31 + seed) for seed in seeds]
    optimizer = torch.optim.Adam(consumers.parameters(), lr=settings.rate)
    target = label.float()
    best = [-1.0] * len(seeds)
    waited = [0] * len(seeds)
    kept = {name: p.detach().clone() for name, p in consumers.named_parameters()}
    for _ in range(settings.epochs):
        order = torch.stack([torch.randperm(len(label), generator=d) for d in draws])
        for rows in torch.split(order.to(label.device), size, dim=1):
            optimizer.zero_grad()
            mask = _masks(ratios, rows.shape[1], hidden, draws).to(target)
            scores = consumers(inputs.take(rows), mask)
            loss = nn.functional.binary_cross_entropy_with_logits(
                scores, target[rows], reduction="none"
            )
            # The sum over classifiers makes the step of each independent of their number.
            loss.mean(1).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for m, auc in enumerate(consumers.auc(*validation)):
            if waited[m] >= settings.patience:
                continue
            waited[m] += 1
            if auc > best[m]:
                best[m], waited[m] = auc, 0
                for name, p in consumers.named_parameters():
                    kept[name][m] = p.detach()[m]
        if min(waited) >= settings.patience:
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
    settings: ConsumerFit | None = None,
) -> tuple[int, float]:
    """Return the width and the dropout with the best validation AUC; of equals, the first."""
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
            settings=settings,
        )
        choices += [(auc, width, ratio) for auc, ratio in zip(reached, dropout, strict=True)]
    _, width, ratio = max(choices, key=lambda choice: choice[0])
    return width, ratio


def _masks(
    ratios: Sequence[float], batch: int, hidden: int, draws: Sequence[torch.Generator]
) -> Tensor:
    """Return the factors of dropout, [M, B, H]: 0, or 1 / (1 - ratio)."""
    masks = [
        (torch.rand(batch, hidden, generator=draw) >= ratio) / (1 - ratio)
        if ratio
        else torch.ones(batch, hidden)
        for ratio, draw in zip(ratios, draws, strict=True)
    ]
    return torch.stack(masks)
