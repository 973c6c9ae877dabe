"""`python -m tests.support.shared_moments OUT`: a closed form by the processes that are there.

The first of them writes what all solved, of the same 3,001 pairs, to OUT.
"""

from __future__ import annotations

import sys

import torch
from safetensors.torch import save_file
from torch import Tensor

from evergram.compatibility.closed_forms import fit_closed_form, moments_by_use
from evergram.training.distributed import join_processes

KINDS = ("linear", "affine", "orthogonal", "low_rank")


def main() -> None:
    together = join_processes(torch.device("cpu"))
    draw = torch.Generator().manual_seed(4)
    old = torch.randn(3001, 6, generator=draw) + 3
    new = torch.cat([old @ torch.randn(6, 8, generator=draw), torch.ones(3001, 1)], dim=1)
    new += torch.randn(new.shape, generator=draw) / 5
    seen, held = moments_by_use(new, old, together)
    solved: dict[str, Tensor] = {"held": held.second()[1], "seen": seen.second()[0]}
    for kind in KINDS:
        fit = fit_closed_form(kind, seen, held, rank=3)
        solved[kind] = fit.weight
        if fit.offset is not None:
            solved[f"{kind} offset"] = fit.offset
    if together.is_first:
        save_file({name: each.contiguous() for name, each in solved.items()}, sys.argv[1])


if __name__ == "__main__":
    main()
