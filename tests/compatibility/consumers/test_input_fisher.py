"""Input Fisher matrices against sums over every label, one row at a time, and against the KL
divergence that they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evergram.compatibility.consumers.input_fisher import ConsumerModel, input_fisher
from evergram.errors import ShapeError

DIM = 4


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(seed: int, outputs: int) -> nn.Sequential:
    """A smooth network in float64."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(DIM, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def over_labels(model: ConsumerModel, rows: Tensor, classes: int) -> Tensor:
    """E_z Σ_y p(y|z) ∇ℓ ∇ℓᵀ with ℓ by torch's own losses: no Jacobian of the logits."""
    total = torch.zeros(DIM, DIM, dtype=torch.float64)
    for row in rows:
        for label in range(classes):
            z = row.clone().requires_grad_()
            logits = model(z[None]).reshape(-1)
            if len(logits) == 1:
                target = torch.tensor([float(label)], dtype=torch.float64)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
            else:
                loss = nn.functional.cross_entropy(logits[None], torch.tensor([label]))
            gradient = torch.autograd.grad(loss, z)[0]
            total += torch.exp(-loss.detach()) * torch.outer(gradient, gradient)
    return total / len(rows)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5]))
def test_it_is_the_mean_over_labels_of_the_losses_gradients(seed: int, outputs: int) -> None:
    model, rows = network(seed, outputs), 2 * randn(seed, 7, DIM)
    matrix = input_fisher(model, rows, batch_size=3)
    expected = over_labels(model, rows, max(2, outputs))
    torch.testing.assert_close(matrix, expected, rtol=1e-9, atol=1e-12)
    assert torch.allclose(matrix, matrix.T)
    assert float(torch.linalg.eigvalsh(matrix)[0]) > -1e-12


def test_half_of_it_is_the_divergence_of_a_small_move() -> None:
    model, row, move = network(3, 4), randn(0, 1, DIM), 1e-3 * randn(1, DIM)
    before, after = (model(z).log_softmax(-1).detach() for z in (row, row + move))
    divergence = (before.exp() * (before - after)).sum()
    matrix = input_fisher(model, row)
    torch.testing.assert_close(0.5 * move @ matrix @ move, divergence, rtol=5e-3, atol=0)


def test_of_a_value_it_is_the_mean_of_squared_slopes() -> None:
    weight = randn(0, DIM)
    rows = randn(1, 9, DIM)
    matrix = input_fisher(lambda z: (z @ weight).square(), rows, "value")
    slopes = 2 * (rows @ weight)[:, None] * weight
    torch.testing.assert_close(matrix, slopes.T @ slopes / 9)


def test_a_module_is_read_as_it_is_used_and_left_as_it_was() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(DIM, 1)).double().train()
    matrices = [input_fisher(model, torch.ones(3, DIM).double()) for _ in range(2)]
    assert torch.equal(*matrices)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_works_where_gradients_are_off() -> None:
    with torch.no_grad():
        assert float(input_fisher(network(0, 1), randn(0, 2, DIM)).trace()) > 0


@pytest.mark.parametrize(
    ("model", "rows", "message"),
    [
        (lambda z: z[:, 0], torch.zeros(0, DIM), r"\[0, 4\]; they must be \[N, D\] of one or more"),
        (lambda z: z[:, 0], torch.zeros(DIM), r"\[4\]; they must be \[N, D\]"),
        (lambda z: z[None], torch.zeros(3, DIM), r"returns \[1, 3, 4\]; it must return a tensor"),
        (lambda z: z.tolist(), torch.zeros(3, DIM), "returns list; it must return a tensor"),
        (lambda z: z.sum(0), torch.zeros(3, DIM), "returns 4 rows for 3 embeddings"),
        (lambda z: z.detach()[:, 0], torch.zeros(3, DIM), "no gradient by its inputs"),
    ],
)
def test_a_model_that_is_no_consumer_is_refused(
    model: ConsumerModel, rows: Tensor, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        input_fisher(model, rows)


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(ShapeError, match="output is 'label'; it is 'logits' or 'value'"):
        input_fisher(lambda z: z[:, 0], torch.zeros(1, DIM), "label")  # type: ignore[arg-type]
