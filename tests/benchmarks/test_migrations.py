"""The benchmark of migrations: the figures that it computes itself."""

from __future__ import annotations

import torch
from tests.support.two_models import by_two_models

from benchmarks import migrations


def test_a_predicted_rank_is_the_number_of_directions_that_the_new_model_lacks() -> None:
    pair, _ = by_two_models(0.0, 0.0, old_dim=12, new_dim=20)
    # The new model has all but what the last six old coordinates have alone.
    own = torch.randn(len(pair.old), 6, generator=torch.Generator().manual_seed(3))
    object.__setattr__(pair, "old", torch.cat([pair.new[:, :6], own], dim=1))
    predicted = migrations.predicted_rank(pair)
    # Three quarters of what is missing is in five or all of six equal directions.
    assert 4 <= predicted["needed"] <= 6
    assert abs(predicted["predicted"] - predicted["needed"]) <= 1


def test_the_depth_is_the_largest_that_touches_no_more_than_the_share() -> None:
    texts = torch.eye(20)
    queries = torch.eye(20)[:2] + 0.1 * torch.rand(
        2, 20, generator=torch.Generator().manual_seed(0)
    )
    depth, share = migrations._depth_for(0.3, queries, texts)
    touched = {int(i) for q in queries for i in (texts @ q).argsort(descending=True)[:depth]}
    more = {int(i) for q in queries for i in (texts @ q).argsort(descending=True)[: depth + 1]}
    assert share == len(touched) / 20 <= 0.3 < len(more) / 20
