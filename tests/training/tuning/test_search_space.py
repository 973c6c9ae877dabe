"""The values that a search may give to keys, what it proposes, and the recipe of its best trial."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import Trial as Proposal

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe
from evergram.training.tuning import KeyRange, SearchSpace
from evergram.training.tuning.best_recipe import toml_of, write_best
from evergram.training.tuning.default_space import default_space
from evergram.training.tuning.proposals import Pruning, Trial, propose

VALUES: dict[str, Any] = {"name": "small", "data": {"kind": "synthetic"}}


def test_a_text_is_a_range_a_range_by_logarithm_or_choices() -> None:
    assert KeyRange.parse("model.dim=16..128") == KeyRange("model.dim", 16, 128)
    assert KeyRange.parse("a.b=log:.01..1e2") == KeyRange("a.b", 0.01, 100.0, log=True)
    assert KeyRange.parse("a.b=-2..1.5") == KeyRange("a.b", -2, 1.5)
    assert KeyRange.parse("a.b = x, y") == KeyRange("a.b", choices=("x", "y"))


def test_what_cannot_be_searched_is_refused_by_its_value() -> None:
    for text in (
        *("model.dim", "=1..2", "a.b=", "a.b=2..1", "a.b=log:0..1", "a.b=log:1,2", "a.b=1,,2"),
        *("a.b=1,1", "a.b=one..2", "a.b=1..inf", "a.b=nan..1"),
    ):
        with pytest.raises(RecipeError, match=re.escape(text)):
            KeyRange.parse(text)
    with pytest.raises(RecipeError, match=r"model\.dim comes twice"):
        SearchSpace.parse(["model.dim=1..2", "model.dim=3,4"])
    with pytest.raises(RecipeError, match="needs a key"):
        SearchSpace.parse([])
    for text, named in (("model.dmi=1..2", "model.dim"), ("model.dim=0..8", "model.dim=0")):
        with pytest.raises(RecipeError, match=re.escape(named)):
            SearchSpace.parse([text]).checked(VALUES)


def test_by_default_keys_that_the_recipe_uses_are_searched() -> None:
    unit = {"kind": "factorization", "normalize": True}
    near = {"kind": "softmax_all", "neighbour_share": 0.1}
    searched: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["task.penalty", "task.l2", "training.table_rate"]),
        (
            {"model": {"kind": "two_tower"}},
            ["task.penalty", "task.l2", "training.table_rate", "training.layer_rate"],
        ),
        (
            {"model": unit, "task": near},
            ["task.temperature", "task.push", "task.neighbour_share", "training.table_rate"],
        ),
        # Its partition function is not weighed against the pairs.
        (
            {"model": unit, "task": {"kind": "softmax_clustered"}},
            ["task.temperature", "training.table_rate"],
        ),
    ]
    for sections, keys in searched:
        assert keys_of(sections) == keys


def test_a_trial_is_the_same_whichever_were_drawn_before() -> None:
    space = SearchSpace.parse(["model.dim=16..128", "training.epochs=1,2,3"])
    trials = [space.draw(3, trial) for trial in range(5)]
    assert space.draw(3, 4) == trials[4]
    assert len({tuple(trial) for trial in trials}) > 1
    assert [space.draw(4, trial) for trial in range(5)] != trials


def test_a_range_between_integers_is_of_numbers_where_the_key_takes_them() -> None:
    space = SearchSpace.parse(["task.penalty=log:1..100", "model.dim=8..16"]).checked(VALUES)
    penalty, dim = space.ranges
    assert (penalty.low, penalty.high) == (1.0, 100.0)
    assert isinstance(penalty.low, float)
    assert isinstance(dim.low, int)


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


DATA = {"data": {"kind": "synthetic"}}


def keys_of(sections: dict[str, Any]) -> list[str]:
    return [one.key for one in default_space(Recipe.of({**DATA, **sections})).ranges]


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)


TOML_VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


@given(
    st.dictionaries(
        NAMES, TOML_VALUES | st.dictionaries(NAMES, TOML_VALUES, max_size=3), max_size=4
    )
)
def test_toml_is_read_as_it_was_written(tables: dict[str, Any]) -> None:
    assert tomllib.loads(toml_of(tables)) == tables


def test_the_file_is_the_recipe_with_its_paths_and_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "recipes" / "mine.toml"
    source.parent.mkdir()
    source.write_text(
        '# mine\nname = "mine"\n[data]\nkind = "table"\npath = "pairs.csv"\n[model]\ndim = 8\n'
    )
    monkeypatch.chdir(tmp_path)
    best = tmp_path / "best.toml"
    write_best(best, source, ["model.dim=12", "task.penalty=0.25", "seed=3"])
    recipe = Recipe.load(best)
    assert recipe == Recipe.load(source, ["model.dim=12", "task.penalty=0.25", "seed=3"])
    assert recipe.data.path == str(source.parent / "pairs.csv")
    assert "comments of mine.toml are not kept" in best.read_text().splitlines()[0]
