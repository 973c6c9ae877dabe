"""A consumer given from Python reads a side, or both ends of a pair, of its version."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from evergram.compatibility import input_fisher
from evergram.errors import DataError, RecipeError
from evergram.releasing import KnownConsumer
from evergram.releasing.known_consumers import known_consumer

DIM = 3
torch.manual_seed(0)
VECTORS = {"query": torch.randn(8, DIM), "candidate": torch.randn(6, DIM)}
ROWS = {"query": torch.tensor([0, 2, 5]), "candidate": torch.tensor([1, 4])}
PAIRS = {"query": torch.tensor([0, 0, 5]), "candidate": torch.tensor([1, 4, 4])}


def one_logit(inputs: Tensor) -> Tensor:
    weight = torch.arange(1.0, inputs.shape[1] + 1)
    return torch.tanh(inputs @ weight)


@pytest.mark.parametrize("side", ["query", "candidate"])
def test_of_a_side_it_reads_the_objects_that_may_be_seen(side: Any) -> None:
    fishers = KnownConsumer("ads", one_logit, side=side).fishers(VECTORS, ROWS, PAIRS)
    assert list(fishers) == [side]
    expected = input_fisher(one_logit, VECTORS[side][ROWS[side]])
    assert torch.equal(fishers[side], expected)


def test_of_pairs_each_end_has_its_block() -> None:
    fishers = KnownConsumer("ads", one_logit, side="pair").fishers(VECTORS, ROWS, PAIRS)
    both = torch.cat([VECTORS[s][PAIRS[s]] for s in ("query", "candidate")], dim=1)
    whole = input_fisher(one_logit, both)
    assert torch.equal(fishers["query"], whole[:DIM, :DIM])
    assert torch.equal(fishers["candidate"], whole[DIM:, DIM:])


def test_of_many_objects_it_reads_some_that_are_evenly_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_consumer, "ROWS", 2)
    fishers = KnownConsumer("ads", one_logit, side="pair").fishers(VECTORS, ROWS, PAIRS)
    ends = torch.cat([VECTORS[s][PAIRS[s][[0, 2]]] for s in ("query", "candidate")], dim=1)
    assert torch.equal(fishers["query"], input_fisher(one_logit, ends)[:DIM, :DIM])


def test_a_value_is_no_logit() -> None:
    value = KnownConsumer("ads", one_logit, output="value").fishers(VECTORS, ROWS, PAIRS)
    logit = KnownConsumer("ads", one_logit).fishers(VECTORS, ROWS, PAIRS)
    assert float(value["candidate"].trace()) >= 4 * float(logit["candidate"].trace())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (torch.nn.Linear(DIM + 1, 1), r"'ads' cannot weigh errors at version 0.*\[2, 3\]: mat1"),
        (lambda z: z.sum(), r"cannot weigh errors at version 0.*must return a tensor \[B\]"),
    ],
)
def test_a_model_that_cannot_read_the_embeddings_is_a_sentence(model: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        KnownConsumer("ads", model).fishers(VECTORS, ROWS, PAIRS)


def test_without_objects_there_is_nothing_to_read() -> None:
    none = {"query": torch.zeros(0).long(), "candidate": torch.zeros(0).long()}
    with pytest.raises(DataError, match=r"\[0, 6\]"):
        KnownConsumer("ads", one_logit, side="pair").fishers(VECTORS, ROWS, none)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"side": "user"}, "'ads' has side 'user'; it is one of query, candidate, pair"),
        ({"output": "class"}, "'ads' has output 'class'; it is one of logits, value"),
    ],
)
def test_settings_that_there_are_not_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        KnownConsumer("ads", one_logit, **values)
