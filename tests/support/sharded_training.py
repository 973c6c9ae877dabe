"""Trainings with divided tables, whose every step is compared with those of tables in one process.

`python -m tests.support.sharded_training OUT CASE …` is one of several processes; the first writes
the states after each step to OUT, and the largest number of rows that a process held.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.support.shared_training import CASES as SHARED
from tests.support.shared_training import CPU, prepared, shared_corpus
from torch import Tensor, nn

from evergram.collectives import Collectives
from evergram.encoders.features import SIDES
from evergram.training.distributed.process_group import join_processes
from evergram.training.loop import gather
from evergram.training.sharding.sharded_factorization import ShardedFactorization
from evergram.training.step import Step

DIVIDED = ["training.tables=sharded"]
# All that is about a factorization and keeps no rows of its own.
OTHERS = ("exact", "sagram", "softmax_all", "joint", "towers", "lightgcn", "means", "modules")
CASES = [case for case in SHARED if not any(other in case for other in OTHERS)]


def whole_state(encoder: ShardedFactorization) -> dict[str, Tensor]:
    """Return all rows and their optimiser's numbers, by name; all processes call it."""
    state = {}
    for name, (table, rows) in encoder._parts().items():
        full = rows.new_zeros(table.size, *rows.shape[1:])
        full[table.own] = rows
        state[name] = encoder.collectives.sum(full, "tables read")
    return state


def state_after(step: Step, objective: Tensor) -> dict[str, Tensor]:
    """Return a step's state, with the rows of all processes if tables are divided."""
    encoder = step.encoder
    modules: dict[str, nn.Module] = {"objective": step.objective}
    for side in SIDES:
        modules |= {f"{side}{r}": e for r, e in enumerate(step.estimators[side])}
    state = gather(modules, []) | {"objective": objective}
    if isinstance(encoder, ShardedFactorization):
        return state | whole_state(encoder)
    for side in SIDES:
        weight = getattr(encoder, side).weight
        state[f"{side}.weight"] = weight
        for optimizer in step.optimizers:
            if "sum" in optimizer.state.get(weight, {}):
                state[f"{side}.sum"] = optimizer.state[weight]["sum"]
    return state


def states(case: str, collectives: Collectives, overrides: list[str]) -> dict[str, Tensor]:
    """Return all state after each step, by step and name."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        kept: dict[str, Tensor] = {}
        for number, (step, objective) in enumerate(
            prepared(case, shared_corpus(), collectives, overrides)
        ):
            state = state_after(step, objective)
            kept |= {f"{number}|{name}": value.detach().clone() for name, value in state.items()}
            if overrides:
                assert isinstance(step.encoder, ShardedFactorization)
                held = max(len(table.weight) for table in step.encoder.tables.values())
                assert held <= -(-23 // collectives.size)
    finally:
        torch.set_default_dtype(before)
    return kept


def main() -> None:
    out, cases = Path(sys.argv[1]), sys.argv[2:] or CASES
    collectives = join_processes(CPU)
    for case in cases:
        kept = states(case, collectives, DIVIDED)
        if collectives.is_first:
            save_file(kept, out / f"{case.replace('/', ' of ')}.safetensors")


if __name__ == "__main__":
    main()
