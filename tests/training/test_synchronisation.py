"""Where a step waits for its device: which settings read a number of the GPU on the processor.

On the CPU the operations that would wait are counted; on CUDA torch itself refuses them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evergram.gramian.host_buffers import HostBuffers
from evergram.training.build import prepare
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.step import Step

# Operations whose result, or its shape, the processor needs before it goes on.
WAITING = {"_local_scalar_dense", "nonzero", "_unique2", "is_nonzero", "equal", "masked_select"}
FIXED = ["gramian.kind=sogram", "gramian.rate=0.05", "training.precondition=0.0"]
WITHOUT_WAITING = {
    "no penalty": ["task.penalty=0.0"],
    "SOGram, fixed rate": FIXED,
    "sampled": ["gramian.kind=sampled", "training.precondition=0.0"],
}


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of `WAITING`, but for those that read numbers kept on the host."""

    def __init__(self, step: Step | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: Counter[str] = Counter()
        estimators = [] if step is None else [e for s in step.estimators.values() for e in s]
        self.modules = [m for e in estimators for m in e.modules() if isinstance(m, HostBuffers)]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        read = [t for t in tree_leaves(args) if isinstance(t, Tensor)]
        if name in WAITING and not any(map(self.is_on_host, read)):
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))

    def is_on_host(self, tensor: Tensor) -> bool:
        """Return whether a tensor is one of `HostBuffers.on_host`, as it is now."""
        return any(tensor is getattr(m, name) for m in self.modules for name in m.on_host)


def steps(recipe: Recipe, settings: list[str], device: torch.device) -> tuple[Step, Any]:
    chosen = Recipe.of(recipe.model_dump(), settings)
    corpus = split_for(chosen, load_corpus(chosen), 0).training
    step, sampler, draws = prepare(FitSettings.of(chosen, corpus, 0), corpus, device)
    return step, run_epoch(step, sampler, draws, 0, device)


@pytest.mark.parametrize("settings", WITHOUT_WAITING.values(), ids=WITHOUT_WAITING)
def test_a_step_reads_nothing_back(small: Recipe, settings: list[str]) -> None:
    step, running = steps(small, settings, torch.device("cpu"))
    next(running)
    with Waits(step) as waits:
        next(running)
    assert waits.counted == {}


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        # Cholesky's test of one matrix a side.
        (["gramian.kind=sogram", "gramian.rate=0.05"], {"_local_scalar_dense": 2}),
        # Its own, and that of the projection.
        (["gramian.kind=storm", "gramian.rate=0.05"], {"_local_scalar_dense": 4}),
        # Distinct ids of each side: of the batch apart, and of the pairs.
        (["gramian.kind=sagram", "training.precondition=0.0"], {"_unique2": 4}),
    ],
)
def test_what_waits_waits_so_often(
    small: Recipe, settings: list[str], waits: dict[str, int]
) -> None:
    step, running = steps(small, settings, torch.device("cpu"))
    for _ in range(3):
        next(running)
    with Waits(step) as counted:
        next(running)
    assert counted.counted == waits


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("settings", WITHOUT_WAITING.values(), ids=WITHOUT_WAITING)
def test_a_step_on_cuda_does_not_wait(small: Recipe, settings: list[str]) -> None:
    _, running = steps(small, settings, torch.device("cuda"))
    next(running)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*prototype")  # said once a process
            torch.cuda.set_sync_debug_mode("error")
        next(running)
    finally:
        torch.cuda.set_sync_debug_mode("default")
