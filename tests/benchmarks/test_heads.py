"""The benchmark of heads over three links: what a head starts as, learns, and cannot change."""

from __future__ import annotations

import pytest
import torch
from benchmarks.heads import (
    HeadSettings,
    ResidualHead,
    Sides,
    _least_squares,
    drawn_words,
    table,
    trained_head,
    versions_of,
)
from torch import Tensor

from evergram.compatibility import Chain
from evergram.releasing.migration.migration_vectors import unit


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_head_starts_as_the_vectors_that_it_is_given() -> None:
    vectors = unit(normal(20, 12))
    torch.testing.assert_close(ResidualHead(12, 4)(vectors), vectors)


def test_no_linear_head_changes_what_a_chain_of_least_squares_reads() -> None:
    meaning = normal(3000, 10)
    # The newest knows parts of the oldest, 0 and 1, that the middle one does not.
    parts = [*range(8)], [*range(2, 10)], [0, 1, 2, 3, 6, 7, 8, 9]
    spaces = [meaning[:, part] @ normal(8, 8, seed=n) for n, part in enumerate(parts, start=1)]

    def read_back(middle: Tensor) -> Tensor:
        own = [Sides(space, space, space) for space in (spaces[0], middle, spaces[2])]
        versions, chain = versions_of("post hoc", own, torch.arange(10), HeadSettings(), 0)
        return chain.apply(versions[-1].texts, 2, 0)

    linear = torch.eye(8) + 0.3 * normal(8, 8, seed=9)
    before, after = read_back(spaces[1]), read_back(spaces[1] @ linear)
    assert float((before - after).norm() / before.norm()) < 0.03
    # The chain has lost something, so that there was something to change.
    direct = spaces[2] @ _least_squares(spaces[2], spaces[0]).T
    assert float((before - direct).norm() / direct.norm()) > 0.1


def test_a_head_learns_what_no_linear_way_back_reads_and_the_seed_decides() -> None:
    new = unit(normal(600, 6))
    past = torch.cat([new[:, :2], new[:, 2:4] * new[:, 4:]], dim=1)
    sides, partner, chain = Sides(new, new[:5], new), torch.arange(600), Chain([], 4)
    settings = HeadSettings(alignment=20.0, task=0.0, anchor=0.01, steps=150)
    heads = [trained_head(sides, partner, past, chain, settings, 3) for _ in range(2)]
    by_head, again = (head(new).detach() for head in heads)
    assert torch.equal(by_head, again)

    def error(vectors: Tensor) -> float:
        return float((vectors @ _least_squares(vectors, past).T - past).square().sum())

    assert error(by_head) < 0.7 * error(new)


def test_words_are_of_the_text_in_their_row() -> None:
    texts = {f"t{i}": " ".join(f"w{i}-{j}" for j in range(i % 50)) for i in range(200)}
    words, rows = drawn_words(texts)
    values = list(texts.values())
    assert len(words) == len(rows) > 100
    assert all(w in values[row] for w, row in zip(words.values(), rows.tolist(), strict=True))


def test_the_table_shows_differences_of_the_same_queries() -> None:
    keys = ("own task", "chain", "refit", "chain, old queries", "refit, old queries")
    hard = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = dict.fromkeys(keys, hard)
    shown = table({"c": {"post hoc": plain, "heads": {**plain, "chain": hard + 0.1}}})
    row = next(line for line in shown.splitlines() if line.startswith("| c | heads"))
    # Paired: the same difference for each query has an interval without width.
    assert row.count("+0.100 (+0.100 to +0.100)") == 2
    assert row.count("+0.000 (+0.000 to +0.000)") == 1
    with pytest.raises(KeyError):
        table({"c": {"post hoc": plain}})
