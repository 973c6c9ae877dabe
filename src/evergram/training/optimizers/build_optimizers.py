"""Make the optimisers of a run: one kind for tables, another for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from evergram.encoders.encoder import Encoder
from evergram.errors import RecipeError
from evergram.training.joint import Joint
from evergram.training.optimizers.dense_adam import DenseAdam
from evergram.training.optimizers.row_adagrad import RowAdagrad
from evergram.training.recipe.training import TrainingRecipe

# Of tables, by `training.optimizer`.
TABLE_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]] = {
    "adaptive": RowAdagrad,
    "adam": DenseAdam,
    "sgd": torch.optim.SGD,
}


def id_tables(encoder: Encoder) -> list[nn.Parameter]:
    """Return the tables of ids, which learn at `training.table_rate`."""
    shared = {id(p) for p in encoder.feature_tables()}
    tables: list[nn.Parameter] = []
    for module in encoder.modules():
        # A user's dense tables, such as a text tower's tokens, are layers.
        if isinstance(module, nn.Embedding) and (module.sparse or encoder.kind != "module"):
            tables += [p for p in module.parameters() if id(p) not in shared]
    return tables


def build_optimizers(
    encoder: Encoder,
    rates: TrainingRecipe,
    table_rate: float,
    joint: Joint | None = None,
    task: nn.Module | None = None,
) -> list[torch.optim.Optimizer]:
    """Return row-wise Adagrad for tables, and Adam for layers, `joint` and `task`; or Adam for all;
    or plain SGD for all but `joint` and `task`.

    Args:
        rates: has the learning rates of features and of layers, and says which optimiser.
        table_rate: of tables of ids.
        joint: trained together with the encoder, at its own rate if it has one.
        task: whose parameters, if it has any, learn at the rate of layers.
    Raises: RecipeError: no parameter of the encoder is to be trained.
    """
    if not any(p.requires_grad for p in encoder.parameters()):
        raise RecipeError(
            "The encoder has no parameter to train (requires_grad is False of all); let one have "
            "it, or give the modules as trained=…, which measures and packages them as they are."
        )
    features = encoder.feature_tables()
    shared = {id(p) for p in features}
    tables = id_tables(encoder)
    ids = shared | {id(p) for p in tables}
    layers = [p for p in encoder.parameters() if id(p) not in ids and p.requires_grad]
    is_plain = rates.optimizer == "sgd"
    of_tables = TABLE_OPTIMIZERS[rates.optimizer]
    optimizers: list[torch.optim.Optimizer] = []
    if tables:
        optimizers.append(of_tables(tables, table_rate))
    if features:
        optimizers.append(of_tables(features, rates.feature_rate))
    groups: list[dict[str, Any]] = []
    if layers and is_plain:
        optimizers.append(torch.optim.SGD(layers, rates.layer_rate))
    elif layers:
        groups.append({"params": layers, "lr": rates.layer_rate})
    owned = [] if joint is None else [p for p in joint.parameters() if p.requires_grad]
    if joint is not None and owned:
        groups.append({"params": owned, "lr": joint.rate or rates.layer_rate})
    of_task = [] if task is None else [p for p in task.parameters() if p.requires_grad]
    if of_task:
        groups.append({"params": of_task, "lr": rates.layer_rate})
    if groups:
        optimizers.append(torch.optim.Adam(groups))
    return optimizers
