"""A team that built on version 0: a small classifier of embeddings. [BC] §5."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergram.errors import DataError


def roc_auc(score: Tensor, label: Tensor) -> float:
    """The chance that a positive scores above a negative; a tie is half. [N] and bool [N].

    Raises: DataError: only one class is there.
    """
    positives = int(label.sum())
    negatives = len(label) - positives
    if not positives or not negatives:
        raise DataError("An AUC needs positive and negative examples; one of them is missing.")
    _, place, count = torch.unique(score, return_inverse=True, return_counts=True)
    # Mean rank of each distinct score.
    rank = count.cumsum(0).double() - (count.double() - 1) / 2
    total = rank[place][label].sum()
    return float((total - positives * (positives + 1) / 2) / (positives * negatives))


class Consumer(nn.Module):
    """An MLP with one hidden layer on [N, D]; it standardises by what it was fitted on."""

    def __init__(self, dim: int, hidden: int = 128, dropout: float = 0.25) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        self.layers = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )

    def forward(self, embeddings: Tensor) -> Tensor:
        """[N, D] to scores [N]."""
        scores: Tensor = self.layers((embeddings - self.mean) / self.scale)
        return scores.squeeze(-1)

    @torch.no_grad()
    def score(self, embeddings: Tensor) -> Tensor:
        """Scores [N] in evaluation mode."""
        self.eval()
        return self(embeddings)  # type: ignore[no-any-return]


def fit_consumer(embeddings: Tensor, label: Tensor, *, seed: int, epochs: int = 200) -> Consumer:
    """Fit on embeddings [N, D] and labels bool [N]; a fifth of them stops it early."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        consumer = Consumer(embeddings.shape[-1])
        consumer.mean = embeddings.mean(0)
        consumer.scale = embeddings.std(0).clamp(min=1e-6)
        order = torch.randperm(len(embeddings))
        held, used = order[: len(order) // 5], order[len(order) // 5 :]
        optimizer = torch.optim.Adam(consumer.parameters(), lr=1e-3, weight_decay=1e-4)
        best, kept, patience = float("inf"), consumer.state_dict(), 0
        for _ in range(epochs):
            consumer.train()
            for rows in torch.split(used[torch.randperm(len(used))], 128):
                optimizer.zero_grad()
                _loss(consumer, embeddings[rows], label[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            consumer.eval()
            with torch.no_grad():
                loss = float(_loss(consumer, embeddings[held], label[held]))
            if loss < best:
                best, patience = loss, 0
                kept = {k: v.clone() for k, v in consumer.state_dict().items()}
            else:
                patience += 1
                if patience == 10:
                    break
        consumer.load_state_dict(kept)
    return consumer


def _loss(consumer: Consumer, embeddings: Tensor, label: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(consumer(embeddings), label.float())
