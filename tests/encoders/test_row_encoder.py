"""Encoders of single rows give the same vectors in any blocks."""

from __future__ import annotations

import pytest
import torch
from tests.support.encoder_corpora import default_encoder, stranger, tagged_corpus

from evergram.encoders.encoder import Encoder
from evergram.encoders.factorization import Factorization
from evergram.encoders.two_tower import TwoTower


@pytest.mark.parametrize("kind", [Factorization, TwoTower])
def test_blocks_of_any_size_give_the_same_vectors_without_gradient(kind: type[Encoder]) -> None:
    data = tagged_corpus()
    encoder = default_encoder(kind, data).train()
    assert isinstance(encoder, Factorization | TwoTower)
    inputs = encoder.schema.read("candidate", data.candidates)
    rows = encoder.embed("candidate", inputs)
    assert rows.requires_grad
    for size in (1, 2, 3, 100):
        blocks = list(encoder.blocks("candidate", inputs, size))
        assert max(map(len, blocks)) == min(size, 3)
        assert not any(block.requires_grad for block in blocks)
        torch.testing.assert_close(torch.cat(blocks), rows.detach())
        assert torch.equal(encoder.encode("candidate", data.candidates, size), torch.cat(blocks))
    assert encoder.training  # the mode from before


def test_no_entities_have_no_vectors() -> None:
    encoder = default_encoder(TwoTower, tagged_corpus())
    assert isinstance(encoder, TwoTower)
    nobody = stranger([]).candidates.take(torch.zeros(0, dtype=torch.int64))
    assert encoder.encode("candidate", nobody).shape == (0, 4)
