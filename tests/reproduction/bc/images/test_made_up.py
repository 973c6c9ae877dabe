"""Made-up images: the newer encoder sees more."""

from __future__ import annotations

import torch
from reproduction.bc.images.made_up import made_up_vectors
from reproduction.bc.images.measures import search


def test_the_newer_encoder_is_the_better_one() -> None:
    vectors = made_up_vectors()
    old, new = (
        search(torch.nn.functional.normalize(v, dim=1), v, vectors.label)
        for v in (vectors.old, vectors.new)
    )
    assert new > old


def test_a_seed_has_its_own_images() -> None:
    assert torch.equal(made_up_vectors().old, made_up_vectors(0).old)
    assert not torch.equal(made_up_vectors().old, made_up_vectors(1).old)
    vectors = made_up_vectors()
    counts = torch.bincount(vectors.label[vectors.test])
    assert counts.tolist() == [20] * len(vectors.classes)
