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


def test_layers_in_bfloat16_train_with_float32_rows_and_evaluate_in_float32() -> None:
    """The rows and the gradients are those of float32 up to bfloat16's eight bits."""
    data = tagged_corpus()
    encoder = default_encoder(TwoTower, data)
    assert isinstance(encoder, TwoTower)
    generator = torch.Generator().manual_seed(1)
    for parameter in encoder.parameters():  # layers that start at zero say nothing
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    inputs = encoder.schema.read("candidate", data.candidates)
    # The last layer: a ReLU before it may switch where its input is near zero.
    tower = encoder.hidden["candidate"]
    assert isinstance(tower, torch.nn.Sequential)
    layer = tower[-1]
    assert isinstance(layer, torch.nn.Linear)
    rows: dict[torch.dtype, torch.Tensor] = {}
    gradients: dict[torch.dtype, torch.Tensor] = {}
    for dtype in (torch.float32, torch.bfloat16):
        encoder.layer_dtype = dtype
        embedded = encoder.train().embed("candidate", inputs)
        encoder.zero_grad()
        embedded.square().sum().backward()  # type: ignore[no-untyped-call]
        rows[dtype] = embedded.detach()
        assert layer.weight.grad is not None
        gradients[dtype] = layer.weight.grad.clone()
    for exact, lower in ((r[torch.float32], r[torch.bfloat16]) for r in (rows, gradients)):
        assert lower.dtype == torch.float32
        assert not torch.equal(exact, lower)
        assert float((exact - lower).norm() / exact.norm()) < 0.02
    assert torch.equal(encoder.eval().embed("candidate", inputs), rows[torch.float32])
