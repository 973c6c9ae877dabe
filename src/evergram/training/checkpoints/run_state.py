"""The state of a run between two steps: collected for a checkpoint, and restored from one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evergram.encoders.mapped_tensors import mapping_folder
from evergram.training.checkpoints.state_file import TrainingState

if TYPE_CHECKING:
    from evergram.training.callbacks import Callback
    from evergram.training.loop import Trainer

# How far a run is.
COUNTERS = ("epoch", "steps", "batches", "seconds")


def state_of(run: Trainer) -> TrainingState:
    """Return all that a run's next step depends on, and its callbacks' states; tensors are not
    copied."""
    tensors = gather(run.parts, run.step.optimizers)
    if run.batches:
        tensors["epoch|objective"] = run.total
        ahead = run.step.look_ahead if run.look_ahead is None else run.look_ahead
        tensors |= {f"look_ahead|{side}": rows for side, rows in ahead.items()}
        tensors |= {f"generator|{name}": t for name, t in generator_states(run.device).items()}
    facts: dict[str, Any] = {name: getattr(run, name) for name in COUNTERS}
    facts["callbacks"] = {}
    for name, callback in _by_name(run.callbacks).items():
        state = callback.state_dict()
        facts["callbacks"][name] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
        tensors |= {f"{name}|{k}": v for k, v in state.items() if isinstance(v, Tensor)}
    return TrainingState(tensors, facts)


def restore(run: Trainer, state: TrainingState) -> None:
    """Let a run continue from what `state_of` gave; the state's tensors are copied."""
    tensors, facts = state.tensors, state.facts
    scatter(tensors, run.parts, run.step.optimizers)
    for name in COUNTERS:
        setattr(run, name, facts[name])
    ahead = named(tensors, "look_ahead").items()
    run.step.look_ahead = {side: rows.to(run.device, copy=True) for side, rows in ahead}
    run.generators = {name: t.clone() for name, t in named(tensors, "generator").items()}
    if run.batches:
        run.total = tensors["epoch|objective"].to(run.device, copy=True)
    for name, callback in _by_name(run.callbacks).items():
        if name in facts["callbacks"]:
            callback.load_state_dict(facts["callbacks"][name] | named(tensors, name))


def _by_name(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Return callbacks by class, and by their place among those of one class."""
    by_name: dict[str, Callback] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        place = sum(type(other).__name__ == kind for other in by_name.values())
        by_name[f"{kind}{place}"] = callback
    return by_name


def gather(
    modules: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Return all tensors of modules and optimisers, by name; not copied."""
    tensors = {
        f"{name}|{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    for i, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                tensors[f"optimizer{i}|{parameter}|{key}"] = value
    return tensors


def scatter(
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
) -> None:
    """Copy what `gather` gave back into modules and optimisers."""
    for name, module in modules.items():
        module.load_state_dict(named(tensors, name))
    for i, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        present = optimizer.state_dict()["state"]
        for name, value in named(tensors, f"optimizer{i}").items():
            parameter, key = name.split("|")
            # An optimiser takes the tensor itself, and would change that of a file or another run.
            own = _overwritten(present.get(int(parameter), {}).get(key), value)
            state.setdefault(int(parameter), {})[key] = value.clone() if own is None else own
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _overwritten(own: Any, value: Tensor) -> Tensor | None:
    """Return an optimiser's own tensor with this value, if it is one that is mapped from a file."""
    if not isinstance(own, Tensor) or mapping_folder(own) is None or own.shape != value.shape:
        return None
    return own.copy_(value)


def named(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors whose name starts with `name`, without that prefix."""
    prefix = f"{name}|"
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


@contextmanager
def seeded(seed: int, device: torch.device, states: Mapping[str, Tensor]) -> Iterator[None]:
    """Seed torch's global generators inside the block, and restore them after it, so that dropout
    is a function of the run's seed and epoch.

    Args:
        states: of the generators, as `generator_states` gave them in an epoch that was interrupted;
            empty at an epoch's start.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        if "cpu" in states:
            torch.set_rng_state(states["cpu"])
        if "cuda" in states and devices:
            torch.cuda.set_rng_state(states["cuda"], device)
        yield


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's global generators, uint8, by kind of device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
