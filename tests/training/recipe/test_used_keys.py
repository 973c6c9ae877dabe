"""A key that is written and changes nothing is refused; one that is stored or used never is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from evergram.data.loaders import LOADERS
from evergram.errors import RecipeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.recipe import Recipe
from evergram.training.recipe.data import PYTHON
from evergram.training.recipe.used_keys import Only, rules

ROOT = Path(__file__).parents[3]
TINY: dict[str, Any] = {
    "data": {"kind": "synthetic", "queries": 60, "candidates": 40, "interactions": 900},
    "split": {"kind": "random"},
    "model": {"dim": 4},
    "training": {"epochs": 1, "batch_size": 128},
}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("data.path=x.csv", "data.path is used with data.kind = 'movielens' or .* is 'synthetic'"),
        (
            "data.test=x.csv",
            "data.test is used with data.kind = 'table' or 'prepared' or 'python' only",
        ),
        (
            "split.versions=[0.5]",
            "split.versions is used with split.kind = 'time' only, .*'random'",
        ),
        ("split.kind=time split.share=0.2", "split.share is used with split.kind = 'random' or"),
        ("model.hidden=[8]", "model.hidden is used with model.kind = 'two_tower' only.* 'factor"),
        ("model.kind=lightgcn model.ids=true", "model.ids is used with model.kind = 'graphsage'"),
        ("task.temperature=2.0", "task.temperature is used with task.kind = 'softmax' or 'second_"),
        (
            "task.kind=bpr task.target=value",
            "task.target is used with task.kind = 'pointwise' only",
        ),
        ("task.l2=0 task.l2_measure=penalty", "task.l2_measure is used with task.l2 above 0 only"),
        ("task.penalty=0 gramian.kind=exact", "gramian.kind is used with a task.penalty above 0"),
        (
            "task.kind=softmax_all gramian.rate=0.1",
            "task.penalty = 'auto' is 0 here; leave gramian.rate out, or give task.penalty a numb",
        ),
        (
            "upgrade.fit=none upgrade.transform=affine",
            "upgrade.transform is used with upgrade.fit = 'joint' or 'posthoc' .*fit is 'none'",
        ),
        ("task.penalty=0 prior.kind=svd", "prior.kind is used with a task.penalty above 0"),
        (
            "training.optimizer=als training.precondition=0.5",
            "training.precondition is used with an optimizer that takes steps",
        ),
        (
            "training.optimizer=als gramian.rate=0.1",
            "gramian.rate is used with an optimizer that takes steps .* is 'als'",
        ),
        ("prior.rank=4", "prior.rank is used with prior.kind = 'svd' only, and .* 'zero'"),
        ("prior.kind=constant prior.rank=4", "prior.rank is used with prior.kind = 'svd' only"),
        ("gramian.beta=1", "gramian.beta is used with gramian.kind = 'sagram' only"),
        ("gramian={kind='exact',rate=0.1}", "gramian.rate is used with gramian.kind = 'sogram' or"),
        ("gramian.sampler=sqrt", "gramian.sampler is used with gramian.batch = 'independent' only"),
        (
            "gramian.batch=independent gramian.pool_size=99",
            "gramian.pool_size is used with gramian.sampler = 'adaptive' only, .* is 'linear'",
        ),
        ("gramian.kind=exact gramian.batch=previous", "gramian.batch is used with gramian.kind ="),
        ("training.layer_rate=0.1", "training.layer_rate is used with model.kind = 'two_tower' or"),
        (
            "training.watch_candidates=9",
            "watch_candidates is used with training.watch_minutes only",
        ),
        (
            "upgrade.consumers=['ads']",
            "upgrade.consumers is used with upgrade.consumer_weight above 0 only",
        ),
        (
            "upgrade.method=post-lin-sloss upgrade.consumer_weight=0.5",
            "upgrade.consumer_weight is used with upgrade.fit = 'joint' .or 'posthoc', with",
        ),
        ("upgrade.rank=3", "upgrade.rank is used with upgrade.transform = 'low_rank' only"),
        ("upgrade.fit_epochs=3", "upgrade.fit_epochs is used with upgrade.fit = 'posthoc' only"),
        (
            "upgrade.method=non-bc upgrade.weight=3",
            r"is 'none' \(upgrade.method = 'non-bc'\); leave upgrade.weight out, or change",
        ),
        (
            "upgrade.method=post-closed upgrade.transform_rate=0.1",
            "transform_rate is used with upgrade.solver = 'gradient'",
        ),
        (
            "upgrade.method=joint-notrans upgrade.transform_rate=0.1",
            "transform_rate is used with an upgrade.transform that is learned only",
        ),
    ],
)
def test_a_key_that_changes_nothing_is_refused(overrides: str, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence) as caught:
        Recipe.of(TINY, overrides.split(" "))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: f"{rule.keys} by {rule.by}")
def test_rules_name_keys_and_kinds_that_there_are(rule: Only) -> None:
    def field(key: str) -> Any:
        table, name = key.split(".")
        return Recipe.with_kinds().model_fields[table].annotation.model_fields[name]  # type: ignore[union-attr]

    for key in [k for k in rule.keys.split() if not k.endswith(".*")]:
        assert field(key) is not None
    if rule.test is None:
        kinds = get_args(field(rule.by).annotation)
        assert set(rule.values) < set([*LOADERS, PYTHON] if rule.by == "data.kind" else kinds)
    else:
        assert rule.needs


def test_every_key_that_may_be_written_to_its_default_is_refused_where_it_is_not_used() -> None:
    """To write a default down is to write it: it looks as though it did something."""
    with pytest.raises(RecipeError, match=r"gramian\.beta is used with"):
        Recipe.of({**TINY, "gramian": {"beta": "1/n"}})
    with pytest.raises(RecipeError, match=r"data\.shared_ids is used with"):
        Recipe.of({**TINY, "data": {"kind": "synthetic", "shared_ids": False}})


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_a_dumped_or_stored_recipe_is_never_refused(path: Path) -> None:
    recipe = Recipe.load(path)
    for values in (recipe.model_dump(), recipe.model_dump(mode="json")):
        assert Recipe.of(values) == recipe
        assert Recipe.stored(values) == recipe
    assert Recipe.of(recipe.model_dump(exclude_unset=True)) == recipe
    # What a later Evergram adds, an older lineage does not have.
    older = recipe.model_dump()
    del older["data"]["drift"]
    assert Recipe.stored(older) == recipe
    with pytest.raises(RecipeError, match=r"--set: gramian\.form is used with"):
        Recipe.stored(older, ["gramian.form=pairs", "gramian.kind=exact", "task.penalty=1"])


def test_an_override_puts_keys_of_the_file_out_of_use_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        '[data]\nkind = "synthetic"\n[model]\nkind = "two_tower"\nhidden = [8]\n'
        "[training]\nlayer_rate = 0.1\n"
    )
    with caplog.at_level(logging.WARNING, "evergram"):
        recipe = Recipe.load(path, ["model.kind=factorization"])
    unchanged = Recipe.of({"data": {"kind": "synthetic"}})
    assert recipe.model_dump()["model"]["hidden"] == unchanged.model_dump()["model"]["hidden"]
    (line,) = caplog.messages
    assert "left out" in line
    assert "model.hidden, training.layer_rate" in line
    with pytest.raises(RecipeError, match=r"model\.hidden is used with"):
        Recipe.load(path, ["model.kind=factorization", "model.hidden=[4]"])
    # An override of a whole table replaces the keys that it puts out of use.
    path.write_text('[data]\nkind = "synthetic"\n[training]\nbatch_size = 8\n')
    assert Recipe.load(path, ["training={optimizer='als'}"]).training.batch_size == "auto"
    # A file that is wrong by itself is not made right by an override of something else.
    path.write_text('[data]\nkind = "synthetic"\n[model]\nhidden = [8]\n')
    with pytest.raises(RecipeError, match=r"model\.hidden is used with"):
        Recipe.load(path, ["seed=3"])


def test_a_key_that_any_method_of_a_comparison_uses_may_be_written() -> None:
    values = {**TINY, "split": {"kind": "time"}, "upgrade": {"fit_epochs": 7}}
    with pytest.raises(RecipeError, match="fit_epochs is used with"):
        Recipe.of(values)
    assert Recipe.of(values, comparing=True).upgrade.fit_epochs == 7
    compared = {**values, "compare": {"methods": ["post-lin-sloss"]}}
    assert Recipe.of(compared).upgrade.fit_epochs == 7
    with pytest.raises(RecipeError, match="fit_epochs is used with"):
        Recipe.of({**values, "compare": {"methods": ["bc-aligner", "post-closed"]}})


IDLE = [
    ("", "model.hidden=[9]", "model.ids=true", "model.layers=3", "model.input_dim=7"),
    ("", "task.temperature=3.0", "task.centred=false"),
    ("task.l2=0", "task.l2_measure=penalty"),
    ("", "prior.value=2.0", "prior.rank=3", "gramian.beta=1", "gramian.memory=0.0"),
    ("", "gramian.form=pairs", "gramian.sampler=sqrt", "gramian.batch_size=7"),
    ("", "gramian.sampler=adaptive", "gramian.pool_size=99"),
    ("gramian.batch=independent", "gramian.pool_size=999"),
    ("", "training.feature_rate=0.3", "training.layer_rate=0.3", "training.watch_candidates=3"),
    ("task.kind=bpr", "task.loss=logistic", "task.target=value"),
    ("task.kind=bpr task.penalty=0", "gramian.kind=storm", "gramian.batch=independent"),
    ("task.kind=bpr task.penalty=0", "prior.kind=svd", "training.precondition=0.5"),
    ("task.kind=bpr task.penalty=0", "task.query_measure=1.0"),
    # "auto" is a penalty and an l2 of 0 where the loss keeps scores apart by itself.
    ("task.kind=softmax_all", "gramian.rate=0.1", "prior.kind=svd", "training.precondition=0.5"),
    ("task.kind=bpr", "task.query_measure=1.0", "gramian.kind=storm", "task.l2_measure=examples"),
    ("model.normalize=true", "task.l2_measure=examples"),
    ("gramian.kind=exact", "gramian.batch=independent", "gramian.rate=0.3", "gramian.decay=0.5"),
    ("gramian.kind=sampled", "gramian.rate=0.3", "gramian.decay=0.5"),
    ("gramian.kind=sagram", "gramian.rate=0.3", "gramian.decay=0.5", "gramian.form=pairs"),
    ("", "split.versions=[0.3]"),
    ("split.kind=time", "split.share=0.4"),
]


@pytest.mark.parametrize(("base", "keys"), [(row[0], row[1:]) for row in IDLE])
def test_a_refused_key_would_have_changed_nothing(base: str, keys: tuple[str, ...]) -> None:
    """The same training, to the bit, with the key and without it; `stored` looks at no key."""
    rows = trained(base.split())
    for key in keys:
        with pytest.raises(RecipeError, match=key.split("=")[0]):
            Recipe.of(TINY, [*base.split(), key])
        assert torch.equal(trained([*base.split(), key]), rows), key


def unchecked(overrides: list[str]) -> Recipe:
    from evergram.training.recipe.values import overridden

    return Recipe.stored(overridden(TINY, overrides))


def trained(overrides: list[str]) -> torch.Tensor:
    return train(unchecked(overrides)).block("candidate")[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("base", "keys"),
    [
        (
            "upgrade.method=non-bc",
            ("steps=multi", "weight=3.0", "unit=norm", "objects=batch", "rows=3"),
        ),
        ("upgrade.method=non-bc", ("solver=closed", "transform_rate=0.1", "fit_epochs=2")),
        ("upgrade.method=non-bc", ("select_after=0", "rank=2", "orthogonality=2.0")),
        ("upgrade.method=bc-aligner", ("fit_epochs=2", "transform_hidden=4", "rank=2")),
        ("upgrade.method=joint-notrans", ("transform_rate=0.1",)),
        ("upgrade.objects=paper-code", ("rows=3",)),
        ("upgrade.method=post-closed", ("transform_rate=0.1", "fit_epochs=2", "weight=3.0")),
    ],
)
def test_the_same_of_an_upgrade(tmp_path: Path, base: str, keys: tuple[str, ...]) -> None:
    lineage = Lineage.create(tmp_path / "l")
    lineage.publish(train(unchecked([])))

    def upgraded(*overrides: str) -> list[torch.Tensor]:
        recipe = unchecked(["upgrade.alone=false", base, *overrides])
        artefact = upgrade(recipe, lineage, readings=False)
        assert artefact.transform is not None
        rows = artefact.block("candidate")[1]
        return [rows, *artefact.transform.state_dict().values()]

    expected = upgraded()
    for key in keys:
        with pytest.raises(RecipeError, match=f"upgrade.{key.split('=')[0]}"):
            Recipe.of(TINY, [base, f"upgrade.{key}"])
        for one, two in zip(upgraded(f"upgrade.{key}"), expected, strict=True):
            assert torch.equal(one, two), key
