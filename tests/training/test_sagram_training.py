"""SAGram in a training: its Gramian is that of a cache which each step has brought up to date."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.support.fits import CPU, changed, parts_of, split_of
from tests.support.shared_training import shared_corpus
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evergram.encoders.features import SIDES
from evergram.gramian.estimator import exact_moment
from evergram.gramian.host_buffers import HostBuffers
from evergram.gramian.kinds import ESTIMATORS
from evergram.gramian.sagram import SAGram
from evergram.training.build import prepare
from evergram.training.callbacks import Callback, Point
from evergram.training.loop import Trainer, run_epoch
from evergram.training.monitors.gramian_tracking import Tracking
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.step import Step

CORPUS = shared_corpus()


SGD = ["training.optimizer=sgd", "training.table_rate=0.2", "task.penalty=2.0"]


CASES = {
    "no prior": [],
    "a prior": ["prior.kind=svd", "prior.rank=2"],
    "two measures": [
        *("task.penalty=[2, 1]", "task.query_measure=[0, 1]", "task.candidate_measure=[0, 0.5]")
    ],
    "negatives": ["task.kind=bpr"],
    "sampled gradient": ["gramian.gradient=sampled"],
    "sums anew": [],
}


def trainer(settings: list[str], *callbacks: Callback) -> Trainer:
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3},
            "training": {"batch_size": 12, "epochs": 2},
            "gramian": {"kind": "sagram"},
        },
        settings,
    )
    step, sampler, draws = parts_of(recipe, CORPUS)
    if recipe.training.optimizer == "sgd":  # it keeps no float32 of its own
        step.encoder.double()
        step.factors = {side: factors.double() for side, factors in step.factors.items()}
        for side in SIDES:
            for estimator in step.estimators[side]:
                estimator.double()
    return Trainer(step, sampler, draws, callbacks=callbacks)


class Errors(Callback):
    """‖Ĝ − G‖ / ‖G‖ after each step, the largest of all sides and measures, and H with it."""

    def __init__(self) -> None:
        self.errors: list[float] = []

    def on_step(self, at: Point, batch: object, objective: object) -> None:
        run, largest = at.training, 0.0
        with run.look() as now:
            for side in SIDES:
                for r, estimator in enumerate(run.estimators[side]):
                    exact = exact_moment(run.population(now, side, r))
                    error = (estimator.moment().dense - exact).norm() / exact.norm()
                    largest = max(largest, float(error))
        self.errors.append(largest)


@pytest.mark.parametrize("beta", ["1/n", "1"])
@pytest.mark.parametrize("case", CASES)
def test_of_tables_by_sgd_the_gramian_is_exact_after_every_step(
    case: str, beta: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "sums anew":
        monkeypatch.setattr("evergram.gramian.sagram.REFRESH", 3)
    errors = Errors()
    run = trainer([*SGD, f"gramian.beta='{beta}'", *CASES[case]], errors)
    start = run.parameters()
    run.fit(epochs=2)
    assert len(errors.errors) >= 16
    assert max(errors.errors) < 1e-12
    assert any(not torch.equal(value, start[name]) for name, value in run.parameters().items())


def test_of_towers_the_cache_has_each_step_s_pairs_as_it_left_them() -> None:
    class Cache(Callback):
        stale = 0

        def on_step(self, at: Point, batch: object, objective: object) -> None:
            run, estimator = at.training, at.training.estimators["query"][0]
            assert isinstance(estimator, SAGram)
            with run.look() as now:
                rows = now.rows("query", batch.query)  # type: ignore[attr-defined]
                everyone = now.rows("query", torch.arange(len(estimator.cache)))
            assert torch.equal(estimator.cache[batch.query], rows)  # type: ignore[attr-defined]
            self.stale += not torch.equal(estimator.cache, everyone)

    cache = Cache()
    trainer(["model.kind=two_tower", "model.hidden=[6]"], cache).fit(epochs=1)
    assert cache.stale > 0


@pytest.mark.parametrize("beta", ["1/n", "1"])
def test_looking_on_at_a_trajectory_it_is_shown_the_pairs_of_each_step(beta: str) -> None:
    """A later draw corrects nothing, as no row of the tables is behind."""
    looking = ESTIMATORS.of({"kind": "sagram", "beta": beta, "batch_size": 5})
    counts = {side: CORPUS.counts(side) for side in SIDES}
    tracking = Tracking({"sagram": looking}, counts, every=1)
    trainer([*SGD, "gramian.kind=sogram"], tracking).fit(epochs=1)
    assert len(tracking.gramian_errors["sagram"]) >= 8
    assert max(tracking.gramian_errors["sagram"]) < 1e-5


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
    chosen = changed(recipe, *settings)
    corpus = split_of(chosen).training
    step, sampler, draws = prepare(FitSettings.of(chosen, corpus, 0), corpus, device)
    return step, run_epoch(step, sampler, draws, 0, device)


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        *((settings, {}) for settings in WITHOUT_WAITING.values()),
        # Cholesky's test of one matrix a side.
        (["gramian.kind=sogram", "gramian.rate=0.05"], {"_local_scalar_dense": 2}),
        # Its own, and that of the projection.
        (["gramian.kind=storm", "gramian.rate=0.05"], {"_local_scalar_dense": 4}),
        # Distinct ids of each side: of the batch apart, and of the pairs.
        (["gramian.kind=sagram", "training.precondition=0.0"], {"_unique2": 4}),
    ],
)
def test_a_step_reads_back_only_what_it_must(
    small: Recipe, settings: list[str], waits: dict[str, int]
) -> None:
    step, running = steps(small, settings, CPU)
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
