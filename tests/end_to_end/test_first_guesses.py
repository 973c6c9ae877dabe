"""A name from another library works, or is answered with the right one."""

from __future__ import annotations

import pytest
import torch

import evergram
from evergram import Aligner, Corpus, GramianPenalty

GUESSES: list[tuple[object, str, str]] = [
    (evergram, "Chain", "evergram.compatibility.Chain"),
    (evergram, "fit", "evergram.train"),
    (evergram, "load", "evergram.load_corpus"),
    (evergram, "Lineag", "'Lineage'"),
    (evergram.gramian, "GramianPenalt", "'GramianPenalty'"),
    (Corpus, "from_pandas", "Corpus.of"),
    (Corpus, "read_csv", "evergram.load_corpus"),
    (Corpus.of([(1, 2)]), "from_dict", "Corpus.of"),
    (Aligner, "score", "report()"),
    (Aligner(), "fit_transform", "fit(new, old).transform(new)"),
    (Aligner(), "reprot", "'report'"),
]


def test_an_unknown_name_is_answered_with_the_right_one() -> None:
    for owner, guess, right in GUESSES:
        with pytest.raises(AttributeError) as error:
            getattr(owner, guess)
        assert right in str(error.value)


@pytest.mark.parametrize("estimator", ["sogram", "sampled"])
def test_the_penaltys_weight_multiplies_value_and_gradient(estimator: str) -> None:
    outcomes = []
    for weight in (1.0, 2.5):
        penalty = GramianPenalty(4, estimator, weight=weight)
        draw = torch.Generator().manual_seed(0)
        for _ in range(3):
            query, candidate = torch.randn(2, 8, 4, generator=draw).requires_grad_().unbind()
            value = penalty(query, candidate)
            (gradient,) = torch.autograd.grad(value, query)
        outcomes.append((value, gradient))
    torch.testing.assert_close(outcomes[1][0], 2.5 * outcomes[0][0])
    torch.testing.assert_close(outcomes[1][1], 2.5 * outcomes[0][1])
