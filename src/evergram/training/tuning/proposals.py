"""Propose the values of the next trial, and say when a running one is behind."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from evergram.errors import RecipeError
from evergram.training.callbacks import Callback, Point
from evergram.training.tuning.search_space import KeyRange, SearchSpace

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as Proposal

    from evergram.training.loop import Trainer

# The value of a key as JSON holds it: a number, or a choice as TOML writes it.
Value = float | int | str
# Trials without a pruned one, at first: a median of fewer says little.
UNPRUNED = 4
POPULARITY = "model.popularity"
# Values of a space that are listed to find those that were not tried.
FEW = 4096


@dataclass(frozen=True)
class Trial:
    """One training of a search, as it ended.

    Args:
        number: from 1.
        values: of each key.
        state: "finished", "pruned" (behind the median of earlier trials) or "failed".
        value: the best of its selection metric, where "auto" chooses γ with the γ that it chose;
            None if it failed.
        epochs: that were trained.
        best_epoch: the one with that value.
        seconds: of training, evaluations not counted.
        history: epoch and metric of each evaluation; where "auto" chooses γ, at γ = 0.
        error: why it failed, one sentence.
    """

    number: int
    values: Mapping[str, Value]
    state: Literal["finished", "pruned", "failed"]
    value: float | None = None
    epochs: int = 0
    best_epoch: int = 0
    seconds: float = 0.0
    history: Sequence[tuple[int, float]] = field(default_factory=list)
    error: str = ""

    @property
    def overrides(self) -> list[str]:
        return overrides_of(self.values)


def overrides_of(values: Mapping[str, Value]) -> list[str]:
    """Return values as overrides of a recipe, "table.key=value" each."""
    return [f"{k}={v if isinstance(v, str) else repr(v)}" for k, v in values.items()]


def comparable(values: Mapping[str, Value], space: SearchSpace) -> bool:
    """Return whether a trial's evaluations while it runs can be laid beside those of others.

    With `model.popularity` = "auto" they are at γ = 0, and a γ is chosen in the end: beside trials
    that have their γ from the start, such a trial would be ended too early.
    """
    numbers = any(one.key == POPULARITY and not _all_auto(one.ends()) for one in space.ranges)
    return not (numbers and _all_auto([values.get(POPULARITY)]))


def _all_auto(choices: Iterable[object]) -> bool:
    return all(isinstance(c, str) and c.strip("\"'") == "auto" for c in choices)


def propose(space: SearchSpace, earlier: Sequence[Trial], seed: int) -> Proposal | None:
    """Return Optuna's proposal after these trials, by its tree-structured Parzen estimator.

    It follows from the arguments alone: a search that was interrupted proposes what an undisturbed
    one would. Where values were proposed before, which would be trained to the same result, others
    that were not are drawn, if the space has at most `FEW` of them; None if there are no others.

    Raises: RecipeError: Optuna is not installed.
    Source: Bergstra et al., *Algorithms for hyper-parameter optimization*, NeurIPS 2011.
    """
    ranges = {one.key: _distribution(one) for one in space.ranges}
    # Of trials that are not all shown, enough for a median must be.
    least = UNPRUNED if any(not comparable(t.values, space) for t in earlier) else 1
    study = _study(random.Random(f"{seed}/{len(earlier)}").getrandbits(32), least)
    study.add_trials(
        [_frozen(trial, ranges, shown=comparable(trial.values, space)) for trial in earlier]
    )
    proposal = study.ask(ranges)
    tried = [dict(trial.values) for trial in earlier]
    size = space.size
    if proposal.params not in tried or size is None or size > FEW:
        return proposal
    untried = [values for values in space.all_values() if values not in tried]
    if not untried:
        return None
    study.enqueue_trial(random.Random(f"{seed}/{len(earlier)}/other").choice(untried))
    return study.ask(ranges)


class Pruning(Callback):
    """Ends a run whose best value so far is below the median of earlier trials at that epoch.

    Args:
        proposal: of Optuna, which knows the earlier trials.
        metric: of the records.
    """

    def __init__(self, proposal: Proposal, metric: str) -> None:
        self.proposal = proposal
        self.metric = metric
        self.behind: bool = False

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        self.proposal.report(record[self.metric], int(record["epoch"]))
        self.behind = self.proposal.should_prune()

    def stop(self, run: Trainer) -> str:
        return "pruned" if self.behind else ""


def _study(seed: int, least: int) -> Study:
    """Return an empty study; a median is of `least` trials at least."""
    try:
        import optuna
    except ImportError:
        raise RecipeError(
            "A search needs Optuna, which is not installed: pip install 'evergram[tune]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED, n_min_trials=least),
    )


def _distribution(one: KeyRange) -> BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if one.low is None or one.high is None:
        return CategoricalDistribution(one.choices)
    if isinstance(one.low, int) and isinstance(one.high, int):
        return IntDistribution(one.low, one.high, log=one.log)
    return FloatDistribution(float(one.low), float(one.high), log=one.log)


def _frozen(trial: Trial, ranges: dict[str, BaseDistribution], *, shown: bool) -> FrozenTrial:
    """Return an earlier trial as Optuna has it; `shown`: with its evaluations, for the median."""
    from optuna.trial import TrialState, create_trial

    states = {
        "finished": TrialState.COMPLETE,
        "pruned": TrialState.PRUNED,
        "failed": TrialState.FAIL,
    }
    values: dict[str, Any] = dict(trial.values)
    return create_trial(
        state=states[trial.state],
        value=trial.value if trial.state == "finished" else None,
        params=values,
        distributions=ranges,
        intermediate_values=dict(trial.history) if shown else {},
    )
