"""Queries folded in at a past version, beside the certificate of the chain that reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import evergram
from evergram.lineage.lineage import Lineage
from evergram.training.corpora import final_split, load_corpus, split_for
from evergram.training.recipe import Recipe


@pytest.mark.long
def test_at_a_past_version_they_differ_as_the_certificate_allows(
    small: Recipe, tmp_path: Path
) -> None:
    lineage = Lineage.create(tmp_path / "small", "small")
    evergram.publish(lineage, evergram.train(small, progress=False))
    split = final_split(split_for(small, load_corpus(small), 0), refits=small.refits)
    corpus = split.training
    ids = corpus.candidates.vocabulary.keys.to_pylist()
    lists: dict[int, list[object]] = {}
    for query, candidate in zip(
        corpus.column("query").tolist(), corpus.column("candidate").tolist(), strict=True
    ):
        lists.setdefault(query, []).append(ids[candidate])
    own = lineage.fold_in(list(lists.values()))
    evergram.publish(lineage, evergram.upgrade(small, lineage, progress=False))
    past = lineage.fold_in(list(lists.values()), version=0)
    # The bound is of the root of the mean square over stored objects that alignment never saw, to
    # which these queries are alike: they met the same candidates.
    certificate = lineage.metrics(1)["certificate"]["0"]
    drift = float((past - own).square().sum(1).mean().sqrt())
    assert torch.isfinite(past).all()
    assert drift < 2 * certificate["bound"]
    # And no read at all would differ by far more.
    assert drift < 0.7 * float(own.square().sum(1).mean().sqrt())
