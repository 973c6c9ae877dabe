"""Make the optimisers of a run: one kind for tables, another for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from evergram.encoders.encoder import Encoder
from evergram.encoders.mapped_tensors import zeros_beside
from evergram.errors import RecipeError
from evergram.training.joint import JointAlignment
from evergram.training.recipe.tables import StepSettings


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
    rates: StepSettings,
    table_rate: float,
    joint: JointAlignment | None = None,
    task: nn.Module | None = None,
) -> list[torch.optim.Optimizer]:
    """Return row-wise Adagrad for tables, and Adam for layers, `joint` and `task`; or Adam for all;
    or plain SGD for all but `joint` and `task`.

    Args:
        table_rate: of tables of ids.
        task: learns at the rate of layers.
    Raises: RecipeError: no parameter of the encoder is to be trained.
    """
    if not any(p.requires_grad for p in encoder.parameters()):
        raise RecipeError(
            "The encoder has no parameter to train (requires_grad is False of all); let one have "
            "it, or give the modules as trained=…, which measures and packages them as they are."
        )
    features, tables = encoder.feature_tables(), id_tables(encoder)
    ids = {id(p) for p in (*features, *tables)}
    layers = [p for p in encoder.parameters() if id(p) not in ids and p.requires_grad]
    of_tables = TABLE_OPTIMIZERS[rates.optimizer]
    optimizers = [
        of_tables(each, rate)
        for each, rate in ((tables, table_rate), (features, rates.feature_table_rate))
        if each
    ]
    groups = [(layers, rates.layer_rate)]
    if rates.optimizer == "sgd":
        optimizers += [torch.optim.SGD(*group) for group in groups if layers]
        groups = []
    if joint is not None:
        groups.append(([p for p in joint.parameters() if p.requires_grad], joint.rate))
    if task is not None:
        groups.append(([p for p in task.parameters() if p.requires_grad], rates.layer_rate))
    if any(each for each, _ in groups):
        optimizers.append(torch.optim.Adam([{"params": p, "lr": r} for p, r in groups if p]))
    return optimizers


class RowAdagrad(torch.optim.Optimizer):
    """x_a ← x_a − rate · g_a / √(Σ_t mean_d g_{a,t}²), for the rows a that a batch has touched.

    The state is one number a row, and the step does not depend on the basis of the columns.

    Args:
        parameters: tables [N, D] with dense or sparse gradients. The state of a table that is
            mapped from a file is in a file, too.
        rate: the first step moves a row by √D times this.
    Source: Duchi et al. 2011, with rows for coordinates.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, {"lr": rate})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = zeros_beside(parameter, len(parameter))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group["lr"])

    def _move(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, gradient = gradient.indices()[0], gradient.values()
        else:  # numbers of all rows, which a sparse gradient must not pay for
            rows = torch.arange(len(parameter), device=parameter.device)
        total = self.state[parameter]["sum"]
        seen = total.index_select(0, rows) + gradient.square().mean(1)
        total.index_copy_(0, rows, seen)
        # A row whose gradients were all zero has nowhere to go.
        length = torch.where(seen > 0, seen.rsqrt(), 0.0)
        parameter.index_add_(0, rows, gradient * length[:, None], alpha=-rate)


class DenseAdam(torch.optim.Adam):
    """torch's Adam, with sparse gradients made dense: a row that a batch did not touch goes on by
    its mean, as in Kingma and Ba 2015, unlike in lazy variants."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float) -> None:
        # One pass over the tables, in place of one for each operation.
        super().__init__(params, lr, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
        super().step(closure)


def decay_rates(optimizers: Iterable[torch.optim.Optimizer], decay: float, epoch: int) -> None:
    """Set every learning rate to its first one times decay^epoch, epoch from 0."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            first = group.setdefault("initial_lr", group["lr"])
            group["lr"] = first * decay**epoch


# The optimisers of tables, by `training.optimizer`.
TABLE_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]] = {
    "adaptive": RowAdagrad,
    "adam": DenseAdam,
    "sgd": torch.optim.SGD,
}
