"""Estimators and MAP are measured along a training, which stays as it is, and checked in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.support.fits import Copies, changed, fitted, split_of, trainer_of
from tests.support.gramian_population import DIM, FACTORS, SHARE
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.errors import DataError, RecipeError, TrainingError
from evergram.evaluation.reports.pictures import write_diagnosis
from evergram.gramian.estimator import EntityBatch, GramianEstimator, batch_moment
from evergram.gramian.kinds import ESTIMATORS, EstimatorSettings
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train
from evergram.training.callbacks import Callback, Point
from evergram.training.diagnose import WITHOUT_GRAMIAN, diagnose, effective_rank, rivals, spectrum
from evergram.training.monitors.estimator_checks import build_estimator
from evergram.training.monitors.gramian_tracking import OWN, Tracking
from evergram.training.monitors.tensorboard import TensorBoard
from evergram.training.recipe import Recipe


def tracking(recipe: Recipe, chosen: dict[str, Any], **options: Any) -> Tracking:
    training = split_of(recipe).training
    settings = {name: ESTIMATORS.of(table) for name, table in chosen.items()}
    return Tracking(settings, {s: training.counts(s) for s in SIDES}, **options)


@pytest.mark.parametrize("kind", ["two_tower", pytest.param("graphsage", marks=pytest.mark.long)])
def test_looking_on_changes_nothing(small: Recipe, kind: str) -> None:
    recipe = changed(small, f"model.kind={kind}", "training.epochs=1")
    look = tracking(recipe, rivals([64]), every=3)
    assert torch.equal(fitted(recipe).query, fitted(recipe, [look]).query)
    assert look.steps
    assert set(look.gramian_errors) == {*rivals([64]), OWN}
    assert all(len(errors) == len(look.steps) for errors in look.gradient_errors.values())


@pytest.mark.parametrize(
    "kind", ["factorization", pytest.param("two_tower", marks=pytest.mark.long)]
)
def test_sampled_errors_are_close_to_the_exact_ones_and_state_how_close(
    small: Recipe, kind: str
) -> None:
    recipe = changed(small, f"model.kind={kind}", "training.epochs=1")
    chosen = {"sampled": {"kind": "sampled", "batch_size": 16}}
    exact, sampled = (tracking(recipe, chosen, every=1, sample=size) for size in (None, 64))
    fitted(recipe, [exact, sampled])
    assert exact.drawn == {"query": 0, "candidate": 0}
    assert exact.sampling == ""
    assert all(len(counts) > 64 for counts in exact.counts.values())
    assert sampled.drawn == {"query": 64, "candidate": 64}
    assert "64 query rows and 64 candidate rows" in sampled.sampling
    assert len(exact.steps) > 9
    for name in ("sampled", OWN):
        for truths, intervals in (
            (exact.gramian[name], sampled.gramian[name]),
            (exact.gradient[name], sampled.gradient[name]),
        ):
            assert all(truth.low == truth.value == truth.high for truth in truths)
            inside = sum(i.low <= t.value <= i.high for t, i in zip(truths, intervals, strict=True))
            assert inside >= 0.8 * len(truths)
        mean = sampled.mean(sampled.gramian)[name]
        assert mean.low <= exact.mean(exact.gramian)[name].value <= mean.high


class Freeze(Callback):
    """Embeddings that stand still are what every average must find."""

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        for optimizer in at.training.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.0


def test_estimates_of_embeddings_that_stand_still(small: Recipe) -> None:
    drawn = {"kind": "sampled", "sampler": "linear", "batch_size": 200}
    chosen = {
        "exact": {"kind": "exact"},
        "slow": {"rate": 0.001, "batch_size": 64},
        "fast": {"rate": 1.0, "batch_size": 64},
        "linear": {**drawn, "sampler": "linear"},
        "adaptive": {**drawn, "sampler": "adaptive"},
    }
    recipe = changed(small, "training.epochs=6", "model.scale=1.0")
    look = tracking(recipe, chosen, every=2)
    fitted(recipe, [Freeze(), look])
    last = {name: errors[-1] for name, errors in look.gramian_errors.items()}
    # `exact` is asked to begin before the step that it is measured after: nothing moved.
    assert last["exact"] < 1e-5
    assert last["slow"] < 0.5 * last["fast"]
    # A rival draws adaptively by its own estimates.
    mean = {name: interval.value for name, interval in look.mean(look.gramian).items()}
    assert 0 < mean["adaptive"] < mean["linear"]


@pytest.mark.parametrize("kind", ["storm", pytest.param("sogram", marks=pytest.mark.long)])
def test_what_is_tracked_goes_on_after_any_step(small: Recipe, kind: str) -> None:
    """Of a run that is resumed, and of one that is saved again before its first step."""
    recipe = changed(small, "training.batch_size=900")
    chosen = {
        "own": {"kind": kind, "batch_size": 32},
        "pools": {"kind": "sampled", "batch_size": 8, "sampler": "adaptive"},
    }
    whole, copies = tracking(recipe, chosen, every=2), Copies()
    trainer_of(recipe, whole, copies).fit(epochs=2)
    for state in copies.states[:-1:4]:
        for _ in range(2):
            look = tracking(recipe, chosen, every=2)
            run = trainer_of(recipe, look, Callback())
            run.load_state(state)
            state = run.state()
        run.fit(epochs=2)
        assert look.steps == whole.steps
        assert (look.gramian, look.gradient) == (whole.gramian, whole.gradient)


@pytest.mark.long
def test_tensorboard_shows_metrics_errors_and_scores(small: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(changed(small, "training.epochs=6", "training.batch_size=32"), board=tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board" / "version-0"))
    events.Reload()
    tags = events.Tags()
    assert {"objective", "recall@20", f"Gramian error/{OWN}"} <= set(tags["scalars"])
    assert tags["images"] == ["scores"]
    assert len(events.Scalars("recall@20")) == 6


def test_without_tensorboard_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(TrainingError, match=r"pip install 'evergram\[tensorboard\]'"):
        TensorBoard(tmp_path, (torch.arange(2), torch.arange(2)))
    assert list(tmp_path.iterdir()) == []


class Last(GramianEstimator):
    """The last batch, after `change` of its moment at the updates from `start` on."""

    change: Callable[[Tensor], Tensor] = staticmethod(lambda moment: moment)
    start = 0
    seen = 0

    def update(self, rows: EntityBatch) -> None:
        moment = batch_moment(rows)
        self.matrix = type(self).change(moment) if self.seen >= self.start else moment
        self.seen += 1


class Unready(Last):
    def __init__(self, dim: int, factors: int = 0) -> None:
        self.register_buffer("matrix", torch.zeros(dim, dim + factors))


class LastSettings(EstimatorSettings):
    kind: Literal["last"] = "last"

    def build(self, dim: int, measure: Tensor, factors: Tensor, file: Any = None) -> Any:
        return Last(dim, factors.shape[1])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda *_: None, "returns None; it must return a GramianEstimator"),
        (lambda dim: Last(dim), "TypeError: "),
        (lambda dim, *_: Unready(dim), r"AttributeError: .*before Module\.__init__"),
        (lambda dim, _, f, __: Last(dim, f.shape[1]).double(), r"a float64 .*must be float32"),
        (lambda dim, *_: Last(dim + 1), r"must be float32 of \[D, D \+ K\]"),
    ],
)
def test_a_slip_in_build_is_one_sentence_that_names_the_class(
    make: Callable[..., Any], sentence: str
) -> None:
    class MineSettings(LastSettings):
        def build(self, *args: Any) -> Any:
            return make(*args)

    with pytest.raises(RecipeError, match=rf"MineSettings\.build.*({sentence})"):
        build_estimator(MineSettings(), DIM, SHARE, FACTORS)


@pytest.mark.parametrize(
    ("change", "start", "sentence"),
    [
        (lambda m: m + torch.triu(torch.ones_like(m)), 0, "query moment of Last is not symmetric"),
        (lambda m: -m, 0, "query moment of Last has a negative diagonal"),
        (lambda m: m[:, :3], 0, r"Last is float32 \[8, 3\] and must be float32 \[8, 8\]"),
        # A later slip is seen at the epoch's end.
        (lambda m: -m, 8, "query moment of Last has a negative diagonal"),
        (lambda m: m * torch.nan, 8, r"loss is nan .* moment of Last is not finite"),
    ],
)
def test_a_moment_that_is_no_gramian_ends_the_run(
    small: Recipe, monkeypatch: pytest.MonkeyPatch, change: Any, start: int, sentence: str
) -> None:
    monkeypatch.setitem(ESTIMATORS, "last", LastSettings)
    monkeypatch.setattr(Last, "change", staticmethod(change))
    monkeypatch.setattr(Last, "start", start)
    with pytest.raises(TrainingError, match=sentence):
        train(changed(small, "gramian.kind=last"), progress=False)


@pytest.mark.long
def test_a_version_is_diagnosed(small: Recipe, tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "l", "small")
    lineage.publish(train(small))
    diagnosis = diagnose(small, lineage, steps=12, every=4, batch_sizes=[32])
    tracking = diagnosis.tracking
    assert tracking is not None
    assert tracking.steps == [4, 8, 12]
    report = diagnosis.as_json()
    assert report["scores"]["observed_mean"] > report["scores"]["random_mean"]
    assert 0.5 < report["scores"]["separation"] <= 1
    for side in SIDES:
        assert 1 <= report["sides"][side]["effective_rank"] <= report["sides"][side]["dim"]
    assert set(report["mean_gramian_error"]) == {*rivals([32]), OWN}
    errors = tracking.steps, tracking.gramian_errors, tracking.gradient_errors
    picture = write_diagnosis(tmp_path / "d.png", diagnosis.histograms, *errors)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_gramian_what_is_published_is_measured_and_the_rest_says_why_not(
    small: Recipe, tmp_path: Path
) -> None:
    recipe = changed(small, "task.kind=bpr", "task.penalty=0", "training.refit=true")
    lineage = Lineage.create(tmp_path / "l", "small")
    lineage.publish(train(recipe))
    diagnosis = diagnose(recipe, lineage, steps=2)
    assert diagnosis.tracking is None
    assert diagnosis.gramian_error == diagnosis.gradient_error == {}
    report = diagnosis.as_json()
    assert report["left_out"] == WITHOUT_GRAMIAN
    assert (report["this_run"], report["steps"], report["sampled"]) == (None, [], {})
    assert report["gramian_errors"] == report["mean_gradient_interval"] == {}
    assert report["scores"]["observed_mean"] > report["scores"]["random_mean"]
    picture = write_diagnosis(tmp_path / "d.png", diagnosis.histograms, [], {}, {})
    assert picture.read_bytes().startswith(b"\x89PNG")
    fewer = changed(recipe, "data.candidates=150")
    with pytest.raises(DataError, match=r"lacks \d+ of the \d+ objects"):
        diagnose(fewer, lineage, steps=2)


def test_the_spectrum_of_a_side_counts_its_directions() -> None:
    """D directions of equal weight have rank D; a line has rank 1, whatever its length."""
    share = torch.full((8,), 1 / 8, dtype=torch.float64)
    line = torch.arange(8.0)[:, None] * torch.tensor([[3.0, 4.0]])
    for vectors, weights, rank, largest in (
        (torch.eye(4).repeat(2, 1), share, 4, 0.25),
        (line, share, 1, 1),
        # An entity without weight does not count.
        (torch.eye(2), torch.tensor([1.0, 0.0]), 1, 1),
    ):
        parts = spectrum(vectors, weights)
        assert effective_rank(parts) == pytest.approx(rank, abs=1e-6)
        assert float(parts.max()) == pytest.approx(largest, abs=1e-6)
