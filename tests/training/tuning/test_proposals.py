"""Proposals are within their ranges and follow from the trials before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from optuna.trial import Trial as Proposal

from evergram.training.tuning import SearchSpace
from evergram.training.tuning.proposals import Pruning, Trial, comparable, overrides_of, propose

SPACE = SearchSpace.parse(
    ["model.dim=2..8", "task.penalty=log:.01..10", "training.batch_size=64,128"]
)


def proposed(space: SearchSpace, earlier: Sequence[Trial], seed: int) -> Proposal:
    proposal = propose(space, earlier, seed)
    assert proposal is not None
    return proposal


def trial(number: int, value: float, history: list[tuple[int, float]] | None = None) -> Trial:
    values = dict(proposed(SPACE, [], number).params)
    return Trial(number, values, "finished", value, history=history or [(1, value)])


def test_proposals_are_within_their_ranges() -> None:
    earlier: list[Trial] = []
    for number in range(12):
        values = dict(proposed(SPACE, earlier, 0).params)
        assert values["model.dim"] in range(2, 9)
        assert 0.01 <= values["task.penalty"] <= 10
        assert values["training.batch_size"] in ("64", "128")
        earlier.append(Trial(number, values, "finished", -abs(values["model.dim"] - 5)))
    assert [str(t.values) for t in earlier] != [str(earlier[0].values)] * 12


def test_a_proposal_follows_from_the_seed_and_the_trials_before() -> None:
    earlier = [trial(n, n / 20) for n in range(12)]
    other = [trial(n, -n / 20) for n in range(12)]
    assert proposed(SPACE, earlier, 3).params == proposed(SPACE, earlier, 3).params
    assert proposed(SPACE, earlier, 3).params != proposed(SPACE, earlier, 4).params
    assert proposed(SPACE, earlier, 3).params != proposed(SPACE, other, 3).params


@pytest.mark.parametrize(
    "over", [["model.dim=2..4", "task.kind=pointwise,softmax_all"], ["model.dim=log:2..7"]]
)
def test_few_values_are_each_proposed_once(over: list[str]) -> None:
    space = SearchSpace.parse(over)
    earlier: list[Trial] = []
    while (proposal := propose(space, earlier, 0)) is not None:
        earlier.append(Trial(len(earlier) + 1, dict(proposal.params), "finished", 0.5))
    assert len(earlier) == 6
    assert {str(sorted(t.values.items())) for t in earlier} == {
        str(sorted(values.items())) for values in space.all_values()
    }


def test_a_run_below_the_median_of_finished_trials_is_pruned() -> None:
    earlier = [trial(n, 0.5, [(1, 0.2 + n / 100), (2, 0.5)]) for n in range(5)]
    for value, word in ((0.1, "pruned"), (0.3, "")):
        pruning = Pruning(proposed(SPACE, earlier, 0), "map@10")
        pruning.on_evaluation(None, {"epoch": 1, "map@10": value})  # type: ignore[arg-type]
        assert pruning.stop(None) == word  # type: ignore[arg-type]


def test_values_are_overrides() -> None:
    assert overrides_of({"a.b": 0.1, "a.c": 2, "a.d": "x"}) == ["a.b=0.1", "a.c=2", "a.d=x"]


@pytest.mark.parametrize(
    ("over", "value", "expected"),
    [
        ("model.popularity=0.2,auto", "auto", False),
        ("model.popularity=0.2,auto", "0.2", True),
        ("model.popularity='auto',0.2", "'auto'", False),
        ("model.popularity=auto", "auto", True),
        ("model.popularity=0.0..0.2", 0.1, True),
    ],
)
def test_a_run_at_no_power_of_counts_is_not_laid_beside_those_that_have_one(
    over: str, value: str | float, expected: bool
) -> None:
    space = SearchSpace.parse([over])
    assert comparable({"model.popularity": value}, space) == expected
    assert comparable({"model.dim": 3}, SearchSpace.parse(["model.dim=2..4"]))


def test_the_median_is_of_runs_that_can_be_compared() -> None:
    space = SearchSpace.parse(["model.popularity=0.2,0.3,auto"])
    own = {"model.popularity": "0.2"}
    finished = [
        replace(trial(n, 0.5, [(1, 0.5)]), values={"model.popularity": choice})
        for n, choice in enumerate(["auto"] * 4 + ["0.2"] * 3, 1)
    ]

    def ended(runs: list[Trial]) -> bool:
        pruning = Pruning(proposed(space, runs, 0), "recall@20")
        pruning.on_evaluation(None, {"recall@20": 0.1, "epoch": 1})  # type: ignore[arg-type]
        return pruning.behind

    assert not ended(finished)
    assert ended([*finished, replace(trial(8, 0.5, [(1, 0.5)]), values=own)])
