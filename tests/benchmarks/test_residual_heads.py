"""A residual head on a frozen encoder: what it starts as, what it learns, and what it finds."""

from __future__ import annotations

import torch
from benchmarks.residual_heads import (
    HeadSettings,
    ResidualHead,
    Sides,
    drawn_words,
    least_squares,
    trained_head,
    with_head,
)
from torch import Tensor

from evergram.compatibility import Chain
from evergram.evaluation.judged.judged_metrics import JudgedQueries
from evergram.releasing.migration.migration_vectors import unit


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_head_starts_as_the_vectors_that_it_is_given() -> None:
    vectors = unit(normal(20, 12))
    torch.testing.assert_close(ResidualHead(12, 4)(vectors), vectors)


def test_a_head_learns_what_no_linear_way_back_reads_and_the_seed_decides() -> None:
    new = unit(normal(600, 6))
    past = torch.cat([new[:, :2], new[:, 2:4] * new[:, 4:]], dim=1)
    sides, partner, chain = Sides(new, new[:5], new), torch.arange(600), Chain([], 4)
    settings = HeadSettings(alignment=20.0, task=0.0, anchor=0.01, steps=150)
    heads = [trained_head(sides, partner, past, chain, settings, 3) for _ in range(2)]
    by_head, again = (head(new).detach() for head in heads)
    assert torch.equal(by_head, again)

    def error(vectors: Tensor) -> float:
        return float((vectors @ least_squares(vectors, past).T - past).square().sum())

    assert error(by_head) < 0.7 * error(new)


def test_words_are_of_the_text_in_their_row() -> None:
    texts = {f"t{i}": " ".join(f"w{i}-{j}" for j in range(i % 50)) for i in range(200)}
    words, rows = drawn_words(texts)
    values = list(texts.values())
    assert len(words) == len(rows) > 100
    assert all(w in values[row] for w, row in zip(words.values(), rows.tolist(), strict=True))


def test_a_head_that_learns_nothing_finds_what_the_encoder_finds_and_its_way_back_reads() -> None:
    new = unit(normal(300, 12))
    old = new @ normal(12, 5, seed=1)
    queries = unit(new[:40] + 0.6 * normal(40, 12, seed=2))
    names = [f"d{i}" for i in range(300)], [f"q{i}" for i in range(40)]
    # Every other query is judged, and finds its text.
    judgements = {f"q{i}": {f"d{i}": 1} for i in range(0, 40, 2)}
    judged = JudgedQueries.of(judgements, names[1], names[0])
    sides, still = Sides(new, queries, new[:50]), HeadSettings(steps=0)
    shown = with_head(old, sides, torch.arange(50), judged, still, (0, 1))
    for name, (asked, searched) in {
        "own": (queries, new),
        "pinned": (queries @ normal(12, 5, seed=1), old),
    }.items():
        scores = unit(asked[::2]) @ unit(searched).T
        places = (scores > scores[torch.arange(20), torch.arange(0, 40, 2)][:, None]).sum(1)
        expected = torch.where(places < 10, 1 / torch.log2(places + 2.0), 0.0)
        torch.testing.assert_close(shown[name], expected.double(), atol=1e-6, rtol=0)
