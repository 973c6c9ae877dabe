"""How well word vectors agree with people's judgements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reproduction.gramian.words.judgements import Judgements, Pair, Question

Rows = Mapping[str, int]
# Questions whose scores of all words are held at once.
BLOCK = 256


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; 0 if a side is constant."""
    ranks = [_ranks(np.asarray(side, dtype=np.float64)) for side in (first, second)]
    centred = [rank - rank.mean() for rank in ranks]
    norm = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum()) / norm if norm else 0.0


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def cosines(vectors: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function from rows [n] and [n] to the cosines of their vectors [n]."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    return lambda one, two: (unit[one] * unit[two]).sum(1)


def similarity(
    alike: Callable[[Tensor, Tensor], Tensor], rows: Rows, pairs: Sequence[Pair]
) -> dict[str, float]:
    """Return Spearman's correlation over the pairs whose words are both in the vocabulary.

    Args:
        alike: from rows of words [n] and [n] to how alike they are [n].
        rows: of the words of the vocabulary.
    Returns: "rho", "pairs" that it is over, and "of" how many.
    """
    known = [(rows[a], rows[b], score) for a, b, score in pairs if a in rows and b in rows]
    rho = 0.0
    if known:
        one, two, score = zip(*known, strict=True)
        rho = spearman(alike(torch.tensor(one), torch.tensor(two)).tolist(), score)
    return {"rho": rho, "pairs": len(known), "of": len(pairs)}


def analogies(vectors: Tensor, rows: Rows, questions: Sequence[Question]) -> dict[str, float]:
    """Return the share of questions that 3CosAdd answers: the word nearest to b − a + c, of unit
    vectors and by cosine, among all of the vocabulary but a, b and c.

    Args:
        vectors: [V, D].
    Returns: "accuracy" over the "questions" whose words are all in the vocabulary; "of" how many.
    Source: Mikolov, Yih and Zweig, NAACL 2013; Levy and Goldberg, CoNLL 2014, Eq. (3).
    """
    known = [q for q in questions if all(word in rows for word in q)]
    unit = torch.nn.functional.normalize(vectors.float(), dim=1)
    right = 0
    for start in range(0, len(known), BLOCK):
        asked = torch.tensor([[rows[w] for w in q] for q in known[start : start + BLOCK]])
        a, b, c, answer = asked.T
        scores = (unit[b] - unit[a] + unit[c]) @ unit.T
        scores.scatter_(1, asked[:, :3], -torch.inf)
        # The answer must be ahead of every other word: vectors that are all alike know nothing.
        own = scores.gather(1, answer[:, None])
        right += int(((scores >= own).sum(1) == 1).logical_and(own[:, 0] > -torch.inf).sum())
    accuracy = right / len(known) if known else 0.0
    return {"accuracy": accuracy, "questions": len(known), "of": len(questions)}


def judged(vectors: Tensor, rows: Rows, judgements: Judgements) -> dict[str, Any]:
    """Return similarity by set, its mean, analogies by kind, and their accuracy over all.

    Args:
        vectors: [V, D]; a word without a vector has zeros.
    """
    alike = cosines(vectors)
    by_set = {name: similarity(alike, rows, pairs) for name, pairs in judgements.pairs.items()}
    by_kind = {name: analogies(vectors, rows, q) for name, q in judgements.questions.items()}
    asked = sum(one["questions"] for one in by_kind.values())
    right = sum(one["accuracy"] * one["questions"] for one in by_kind.values())
    return {
        "similarity": by_set,
        "mean_rho": fmean(one["rho"] for one in by_set.values()),
        "analogies": by_kind,
        "accuracy": right / asked if asked else 0.0,
    }
