"""Build the optimizers of a run: one kind for tables, another for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from evergram.encoders.encoder import Encoder
from evergram.errors import RecipeError
from evergram.mapped_tensors import zeros_beside
from evergram.training.joint import JointAlignment
from evergram.training.recipe.tables import StepSettings


def id_tables(encoder: Encoder) -> list[nn.Parameter]:
    """Return the tables of ids, which learn at `training.table_rate`."""
    shared = {id(p) for p in encoder.feature_tables()}
    tables: list[nn.Parameter] = []
    for module in encoder.modules():
        # A user's dense embeddings, such as token embeddings of a text tower, count as layers.
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
    """Return the optimizers of a run: row-wise Adagrad for tables and Adam for the rest; or Adam
    for everything; or plain SGD for the encoder and Adam for `joint` and `task`.

    Raises: RecipeError: the encoder has no trainable parameter.
    """
    if not any(p.requires_grad for p in encoder.parameters()):
        raise RecipeError(
            "The encoder has no parameter to train (requires_grad is False for all); set it for at "
            "least one, or pass the modules as trained=… to measure and package them unchanged."
        )
    features, tables = encoder.feature_tables(), id_tables(encoder)
    ids = {id(p) for p in (*features, *tables)}
    layers = [p for p in encoder.parameters() if id(p) not in ids and p.requires_grad]
    table_optimizer = TABLE_OPTIMIZERS[rates.optimizer]
    optimizers = [
        table_optimizer(parameters, rate)
        for parameters, rate in ((tables, table_rate), (features, rates.feature_table_rate))
        if parameters
    ]
    groups = [(layers, rates.layer_rate)]
    if rates.optimizer == "sgd":
        optimizers += [torch.optim.SGD(*group) for group in groups if layers]
        groups = []
    if joint is not None:
        groups.append(([p for p in joint.parameters() if p.requires_grad], joint.rate))
    if task is not None:
        groups.append(([p for p in task.parameters() if p.requires_grad], rates.layer_rate))
    if any(parameters for parameters, _ in groups):
        optimizers.append(torch.optim.Adam([{"params": p, "lr": r} for p, r in groups if p]))
    return optimizers


class RowAdagrad(torch.optim.Optimizer):
    """Row-wise Adagrad: x_a ← x_a − rate · g_a / √(Σ_t mean_d g_{a,t}²) for the rows of a batch.

    The state is one number per row, and steps do not depend on the basis of the columns.

    Args:
        parameters: tables [N, D], dense or sparse gradients; mapped tables have a mapped state.
        rate: the first step moves a row by √D times this.
    Source: Duchi et al. 2011, applied to rows instead of coordinates.
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
        else:
            rows = torch.arange(len(parameter), device=parameter.device)
        total = self.state[parameter]["sum"]
        seen = total.index_select(0, rows) + gradient.square().mean(1)
        total.index_copy_(0, rows, seen)
        # Rows whose gradients were all zero stay.
        length = torch.where(seen > 0, seen.rsqrt(), 0.0)
        parameter.index_add_(0, rows, gradient * length[:, None], alpha=-rate)


class DenseAdam(torch.optim.Adam):
    """torch's Adam with sparse gradients made dense: rows without a gradient still move by their
    first moment, as in Kingma and Ba 2015 and unlike in lazy variants."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float) -> None:
        # `fused` passes over the tables once instead of once per operation.
        super().__init__(params, lr, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
        super().step(closure)


def decay_rates(optimizers: Iterable[torch.optim.Optimizer], decay: float, epoch: int) -> None:
    """Set every learning rate to its initial value times decay^epoch, epoch from 0."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            first = group.setdefault("initial_lr", group["lr"])
            group["lr"] = first * decay**epoch


# The optimizers of tables, by `training.optimizer`.
TABLE_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]] = {
    "adaptive": RowAdagrad,
    "adam": DenseAdam,
    "sgd": torch.optim.SGD,
}
