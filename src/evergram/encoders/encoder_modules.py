"""`EncoderModules`: the user's own modules, with functions that make their inputs from ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evergram.errors import ShapeError

# Makes a module's input from B ids: a tensor, or a tuple or a dict of tensors.
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class EncoderModules:
    """Your own query module and candidate module, to train instead of a built-in encoder.

    A module is called as `module(inputs)`; as `module(*inputs)` if the inputs are a tuple, and as
    `module(**inputs)` if they are a dict. It returns float [B, D], with one D for both sides. The
    modules are never changed: every training starts from a copy of them. Dense parameters are
    trained by Adam at `training.layer_rate`, tables `nn.Embedding(…, sparse=True)` by row-wise
    Adagrad at `training.table_rate`, and parameters without `requires_grad` not at all.

    Args:
        query, candidate: the modules; one module may serve both sides.
        query_inputs, candidate_inputs: make a module's input from a list of B ids, as the corpus
            has them (int or str). They give the same input for the same id.
        new_ids: True if they know ids that the version was not trained on; if False, such an id
            gets the zero vector.
        batch_size: entities in a forward pass without gradient.

    >>> import torch
    >>> from torch import nn
    >>> from evergram import EncoderModules
    >>> table = nn.Embedding(100, 8)
    >>> modules = EncoderModules(table, table, torch.tensor, torch.tensor)
    >>> modules
    EncoderModules(query=Embedding, candidate=Embedding)
    """

    query: nn.Module
    candidate: nn.Module
    query_inputs: Collate
    candidate_inputs: Collate
    new_ids: bool = False
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name in ("query", "candidate"):
            module, inputs = getattr(self, name), getattr(self, f"{name}_inputs")
            if not isinstance(module, nn.Module):
                raise ShapeError(f"{name} is of type {_type(module)}; it must be an nn.Module.")
            if not callable(inputs):
                raise ShapeError(
                    f"{name}_inputs is of type {_type(inputs)}; it must be a function that makes "
                    "the module's input from a list of ids."
                )
        if isinstance(self.batch_size, bool) or self.batch_size < 1:
            raise ShapeError(f"batch_size is {self.batch_size}; it must be at least 1.")

    def __repr__(self) -> str:
        query, candidate = type(self.query).__name__, type(self.candidate).__name__
        return f"EncoderModules(query={query}, candidate={candidate})"

    def copied(self) -> EncoderModules:
        """Return the same with copies of the modules; the copies share what the modules share."""
        query, candidate = deepcopy((self.query, self.candidate))
        return EncoderModules(
            query,
            candidate,
            self.query_inputs,
            self.candidate_inputs,
            self.new_ids,
            self.batch_size,
        )


def _type(value: object) -> str:
    return type(value).__name__


def outputs_of(modules: EncoderModules, side: str, ids: list[Any]) -> Tensor:
    """Return [B, D] of a side's module for B ids.

    Raises: ShapeError: it returns another shape, or fails on a NumPy array or on float64.
    """
    module: nn.Module = getattr(modules, side)
    collate: Collate = getattr(modules, f"{side}_inputs")
    parameter = next(module.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    inputs = _moved(collate(ids), device)
    try:
        if isinstance(inputs, dict):
            rows = module(**inputs)
        elif isinstance(inputs, tuple):
            rows = module(*inputs)
        else:
            rows = module(inputs)
    except (TypeError, RuntimeError) as error:
        # A module may take whatever it likes; what many cannot take is named where one fails.
        problem = _problem(inputs)
        if problem is None:
            raise
        raise ShapeError(f"{side}_inputs returned {problem}.") from error
    if isinstance(rows, Tensor) and rows.ndim == 2 and len(rows) == len(ids):
        if rows.is_floating_point():
            return rows.float()
        shape = f"{rows.dtype} {list(rows.shape)}"
    else:
        shape = f"{list(rows.shape)}" if isinstance(rows, Tensor) else _type(rows)
    raise ShapeError(
        f"The {side} module returned {shape} for {len(ids)} ids; it must return a float tensor "
        f"[{len(ids)}, D]."
    )


def _problem(inputs: Any) -> str | None:
    """Return what is wrong with inputs on which a module failed; None if nothing seems so."""
    if isinstance(inputs, np.ndarray):
        return "a NumPy array, which the module cannot take; return torch.from_numpy(…) of it"
    if isinstance(inputs, Tensor) and inputs.dtype == torch.float64:
        return "a tensor of float64, which the module cannot take; return .float() of it"
    parts = inputs.values() if isinstance(inputs, Mapping) else inputs
    if isinstance(inputs, (Mapping, tuple, list)):
        return next((problem for part in parts if (problem := _problem(part))), None)
    return None


def _moved(inputs: Any, device: torch.device) -> Any:
    """Move tensors, in tuples, lists and dicts, to a device."""
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: _moved(value, device) for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_moved(value, device) for value in inputs)
    if isinstance(inputs, list):
        return [_moved(value, device) for value in inputs]
    return inputs
