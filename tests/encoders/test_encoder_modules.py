"""The user's own modules: their inputs, their outputs, and copies of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evergram.encoders.encoder_modules import EncoderModules, outputs_of
from evergram.errors import ShapeError

TABLE = nn.Embedding(4, 2)


class Pair(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.stack([first, second], dim=1)


@pytest.mark.parametrize(
    "inputs",
    [
        lambda ids: (torch.ones(len(ids)), torch.zeros(len(ids))),
        lambda ids: {"second": torch.zeros(len(ids)), "first": torch.ones(len(ids))},
    ],
)
def test_tuples_are_positional_and_dicts_are_keywords(inputs: Any) -> None:
    own = EncoderModules(Pair(), Pair(), inputs, inputs)
    assert outputs_of(own, "query", [1, 2, 3]).tolist() == [[1.0, 0.0]] * 3


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Flatten(0), r"The query module returned \[8\] for 2 ids; .* float tensor \[2, D\]"),
        (nn.LSTM(4, 4), "returned tuple for 2 ids"),
    ],
)
def test_outputs_that_are_not_b_by_d_are_refused(module: nn.Module, message: str) -> None:
    own = EncoderModules(module, module, lambda ids: torch.ones(len(ids), 4), torch.tensor)
    with pytest.raises(ShapeError, match=message):
        outputs_of(own, "query", [1, 2])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lambda ids: np.ones((len(ids), 4)), "candidate_inputs returned a NumPy array.*from_numpy"),
        (lambda ids: (np.ones((len(ids), 4)),), "candidate_inputs returned a NumPy array"),
        (lambda ids: {"input": torch.ones(len(ids), 4).double()}, r"of float64.*\.float\(\)"),
    ],
)
def test_inputs_that_a_module_cannot_take_are_named(inputs: Any, message: str) -> None:
    own = EncoderModules(nn.Linear(4, 2), nn.Linear(4, 2), inputs, inputs)
    with pytest.raises(ShapeError, match=message):
        outputs_of(own, "candidate", [1, 2])


def test_a_failure_of_the_module_itself_is_its_own() -> None:
    own = EncoderModules(nn.Linear(4, 2), nn.Linear(4, 2), torch.ones, torch.ones)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        outputs_of(own, "query", [2, 3])


def test_copies_share_what_the_modules_share_and_nothing_else() -> None:
    table = nn.Embedding(9, 4)
    own = EncoderModules(table, table, torch.tensor, torch.tensor, new_ids=True, batch_size=7)
    copy = own.copied()
    assert copy.query is copy.candidate
    assert copy.query is not table
    assert (copy.new_ids, copy.batch_size) == (True, 7)
    assert repr(copy) == "EncoderModules(query=Embedding, candidate=Embedding)"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((1, TABLE, torch.tensor, torch.tensor), "query is of type int; it must be an nn.Module"),
        ((TABLE, TABLE, torch.tensor, 3), "candidate_inputs is of type int; it must be a function"),
        ((TABLE, TABLE, torch.tensor, torch.tensor, False, 0), "batch_size is 0"),
    ],
)
def test_what_are_no_modules_is_refused_at_once(arguments: Any, sentence: str) -> None:
    with pytest.raises(ShapeError, match=sentence):
        EncoderModules(*arguments)
