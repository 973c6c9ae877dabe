"""A light residual head on a frozen encoder, trained jointly with its way back.

It is trained on pairs of ten words and the text that they are from, with the penalty on all pairs,
and with the alignment to all versions before over all texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.judged_corpora import Texts
from evergram.compatibility import Aligner, AlignmentLoss, Chain
from evergram.compatibility.transforms import LinearTransform
from evergram.evaluation.judged import JudgedQueries, judged_metrics
from evergram.evaluation.score_blocks import best_candidates
from evergram.gramian import GramianPenalty
from evergram.migration.ways import unit

SEEDS = (0, 1, 2)
# Pairs of words and their text, of each corpus.
PAIRS, WORDS = 600, 10


@dataclass(frozen=True)
class HeadSettings:
    """How a head is trained: the weights of its losses, and its size."""

    alignment: float = 4.0
    penalty: float = 2.0
    task: float = 0.2
    anchor: float = 1.0
    hidden: int = 64
    steps: int = 100
    batch: int = 128
    rate: float = 4e-3


@dataclass(frozen=True)
class Sides:
    """One version's unit vectors: of texts [N, D], queries [Q, D], and words of pairs [P, D]."""

    texts: Tensor
    queries: Tensor
    words: Tensor


class ResidualHead(nn.Module):
    """x + U gelu(V x) at length 1; x itself before it is trained."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        return unit(vectors + self.outer(nn.functional.gelu(self.inner(vectors))))


def trained_head(
    new: Sides, partner: Tensor, past: Tensor, chain: Chain, settings: HeadSettings, seed: int
) -> ResidualHead:
    """Return a head of frozen vectors.

    Args:
        new: of the frozen encoder.
        partner: the row of each pair's text, int64 [P].
        past: texts of the version before, [N, D_{k-1}].
        chain: of the versions before, for the way back.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    dim, weight = new.texts.shape[1], torch.ones(settings.batch)
    head, push = ResidualHead(dim, settings.hidden), GramianPenalty(dim, rate=0.05)
    back = LinearTransform.from_matrix(least_squares(new.texts, past))
    alignment = AlignmentLoss(chain, "multi")
    lifted = alignment.lifted(past).detach()
    optimizer = torch.optim.Adam([*head.parameters(), *back.parameters()], settings.rate)
    for _ in range(settings.steps):
        pairs = torch.randint(len(partner), (settings.batch,), generator=draw)
        rows = torch.randint(len(new.texts), (settings.batch,), generator=draw)
        words, found = head(new.words[pairs]), head(new.texts[partner[pairs]])
        some = head(new.texts[rows])
        task = 0.5 * ((words * found).sum(1) - 1).square().mean()
        loss = settings.task * (task + settings.penalty * push(words, torch.cat([found, some])))
        # An encoder's own vectors are what makes it good at its task.
        loss = loss + settings.anchor * (some - new.texts[rows]).square().sum(1).mean()
        loss = loss + settings.anchor * (words - new.words[pairs]).square().sum(1).mean()
        loss = loss + settings.alignment * alignment(back, some, lifted[rows], weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.eval()


def least_squares(new: Tensor, old: Tensor) -> Tensor:
    """Return W [D_old, D_new]."""
    affine = Aligner("linear").fit(new, old).as_transform().affine()
    assert affine is not None
    return affine[0].detach().float()


def with_head(
    old: Tensor,
    new: Sides,
    partner: Tensor,
    judged: JudgedQueries,
    settings: HeadSettings,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, Tensor]:
    """Return nDCG@10 of each judged query [Q], mean over seeds, with a head on the new encoder.

    Args:
        old: texts of the old encoder, [N, D_old].
        partner: the row of each pair's text, int64 [P].
    Returns: "own" by the head's vectors; "pinned" where these of queries and of texts are both read
        back by least squares.
    """
    runs: dict[str, list[Tensor]] = {"own": [], "pinned": []}
    for seed in seeds:
        head = trained_head(new, partner, old, Chain([], old.shape[1]), settings, seed)
        with torch.no_grad():
            texts, queries = head(new.texts), head(new.queries[judged.rows])
        back = least_squares(texts, old).T
        for name, sides in (("own", (queries, texts)), ("pinned", (queries @ back, texts @ back))):
            ranked = best_candidates(unit(sides[0]), unit(sides[1]), 10)
            runs[name].append(judged_metrics(ranked, judged)["ndcg@10"].double())
    return {name: torch.stack(values).mean(0) for name, values in runs.items()}


def drawn_words(texts: Texts) -> tuple[Texts, Tensor]:
    """Return `WORDS` words in a row of each of `PAIRS` texts, and the texts' rows."""
    draw = np.random.default_rng(0)
    long = [row for row, text in enumerate(texts.values()) if len(text.split()) >= 2 * WORDS]
    rows = draw.permutation(long)[:PAIRS]
    values = list(texts.values())
    words = {}
    for row in rows.tolist():
        split = values[row].split()
        start = int(draw.integers(0, len(split) - WORDS + 1))
        words[str(row)] = " ".join(split[start : start + WORDS])
    return words, torch.from_numpy(rows.copy())
