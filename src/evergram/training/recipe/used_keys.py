"""Which keys of a recipe are used by which kinds: whatever is written and not used is an error."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evergram.data.loaders import READ_FROM_A_PATH
from evergram.training.recipe.methods import METHODS

if TYPE_CHECKING:
    from evergram.training.recipe import Recipe


@dataclass(frozen=True)
class Only:
    """Keys that are used with some values of another key alone.

    Args:
        keys: of the recipe, "table.key" each, divided by spaces; "table.*" for all of a table.
        by: the key that decides.
        values: those of `by` with which they are used.
        test: decides in place of `values`, where more than one key matters.
        needs: what `test` asks for, in words.
    """

    keys: str
    by: str
    values: tuple[Any, ...] = ()
    test: Callable[[Recipe], bool] | None = None
    needs: str = ""

    def covers(self, key: str) -> bool:
        return any(
            key == own or (own.endswith(".*") and key.startswith(own[:-1]))
            for own in self.keys.split()
        )

    def holds(self, recipe: Recipe) -> bool:
        if self.test is not None:
            return self.test(recipe)
        return value_of(recipe, self.by) in self.values

    def sentence(self, recipe: Recipe, key: str) -> str:
        """Why `key` is not used, and what to do."""
        needs = self.needs
        if self.test is None:
            needs = f"{self.by} = {' or '.join(map(repr, self.values))}"
        value = value_of(recipe, self.by)
        given = repr(value[0] if isinstance(value, list) and len(value) == 1 else value)
        if value is None:
            given = "not set"
        elif _preset(recipe).get(self.by.removeprefix("upgrade.")) == value:
            given += f" (upgrade.method = {recipe.upgrade.method!r})"
        return (
            f"{key} is used with {needs} only, and {self.by} is {given}; leave {key} out, or "
            f"change {self.by}."
        )


def _drives_apart(recipe: Recipe) -> bool:
    """Whether the penalty on all pairs has any weight."""
    return any(recipe.task.penalty)


def _has_gramians(recipe: Recipe) -> bool:
    task = recipe.task
    orthogonal = task.query_orthogonal or task.candidate_orthogonal
    return _drives_apart(recipe) or bool(orthogonal) or task.kind == "second_order"


def _has_measures(recipe: Recipe) -> bool:
    task = recipe.task
    return _has_gramians(recipe) or (bool(task.l2) and task.l2_measure == "penalty")


# A new kind, or a new key of one, is a line here. Each key may stand in several: all must hold.
RULES = (
    Only("data.path", "data.kind", READ_FROM_A_PATH),
    Only("data.metadata", "data.kind", ("amazon",)),
    Only("data.prefix", "data.kind", ("mediawiki",)),
    Only("data.test data.query_features data.candidate_features", "data.kind", ("table",)),
    Only("data.columns data.shared_ids", "data.kind", ("table",)),
    Only("data.queries data.candidates", "data.kind", ("synthetic",)),
    Only("data.interactions data.drift", "data.kind", ("synthetic",)),
    Only("data.test", "split.kind", ("given",)),
    Only("split.share", "split.kind", ("random", "given")),
    Only("split.versions split.end split.last", "split.kind", ("time",)),
    Only("split.selection", "split.kind", ("random", "time")),
    Only("model.input_dim", "model.kind", ("two_tower", "graphsage")),
    Only("model.hidden", "model.kind", ("two_tower",)),
    Only("model.ids", "model.kind", ("graphsage",)),
    Only("model.layers", "model.kind", ("graphsage", "lightgcn")),
    Only("task.loss task.target", "task.kind", ("pointwise",)),
    Only("task.temperature", "task.kind", ("softmax", "second_order")),
    Only("task.centred", "task.kind", ("second_order",)),
    Only("task.l2_measure", "task.l2", test=lambda r: bool(r.task.l2), needs="task.l2 above 0"),
    Only(
        "task.query_measure task.candidate_measure",
        "task.penalty",
        test=_has_measures,
        needs="a task.penalty above 0 (or an orthogonal term, task.kind = 'second_order', or "
        "task.l2_measure = 'penalty')",
    ),
    Only(
        "prior.*",
        "task.penalty",
        test=lambda r: _drives_apart(r) or r.task.sparse != "none",
        needs="a task.penalty above 0 (or task.sparse)",
    ),
    Only("prior.value", "prior.kind", ("constant",)),
    Only("prior.query prior.candidate", "prior.kind", ("files",)),
    Only("prior.rank", "prior.kind", ("svd",)),
    Only(
        "gramian.* training.precondition",
        "task.penalty",
        test=_has_gramians,
        needs="a task.penalty above 0 (or an orthogonal term, or task.kind = 'second_order')",
    ),
    Only("gramian.rate gramian.decay", "gramian.kind", ("sogram", "storm")),
    Only("gramian.beta gramian.memory", "gramian.kind", ("sagram",)),
    Only("gramian.form", "gramian.kind", ("sampled",)),
    Only(
        "gramian.batch gramian.sampler gramian.batch_size",
        "gramian.kind",
        ("sampled", "sagram", "sogram", "storm"),
    ),
    Only("gramian.sampler gramian.batch_size", "gramian.batch", ("independent",)),
    Only("training.table_rate", "model.kind", ("factorization", "two_tower")),
    Only("training.feature_rate", "model.kind", ("two_tower",)),
    Only("training.layer_rate", "model.kind", ("two_tower", "graphsage", "lightgcn")),
    Only(
        "training.watch_candidates",
        "training.watch_minutes",
        test=lambda r: r.training.watch_minutes is not None,
        needs="training.watch_minutes",
    ),
    Only("upgrade.weight upgrade.unit", "upgrade.fit", ("joint",)),
    Only("upgrade.objects upgrade.rows upgrade.select_after", "upgrade.fit", ("joint",)),
    Only(
        "upgrade.steps upgrade.solver upgrade.transform_rate", "upgrade.fit", ("joint", "posthoc")
    ),
    Only("upgrade.fit_epochs", "upgrade.fit", ("posthoc",)),
    Only("upgrade.fit_epochs", "upgrade.solver", ("gradient",)),
    Only(
        "upgrade.transform_rate",
        "upgrade.solver",
        test=lambda r: r.upgrade.fit == "joint" or r.upgrade.solver == "gradient",
        needs="upgrade.solver = 'gradient' (or upgrade.fit = 'joint')",
    ),
    Only(
        "upgrade.transform_rate upgrade.fit_epochs",
        "upgrade.transform",
        test=lambda r: r.upgrade.transform != "truncate",
        needs="an upgrade.transform that is learned",
    ),
    Only("upgrade.rank", "upgrade.transform", ("low_rank",)),
    Only("upgrade.orthogonality", "upgrade.transform", ("lambda_orthogonal",)),
    Only("upgrade.transform_hidden", "upgrade.transform", ("residual_mlp",)),
)


def unused(recipe: Recipe, keys: Collection[str], *, comparing: bool = False) -> dict[str, str]:
    """Each of `keys` that changes nothing in `recipe`, and a sentence that says so.

    Args:
        keys: "table.key", as they were written.
        comparing: whether [upgrade] is for all methods of [compare], too.
    """
    recipes = [recipe]
    if comparing:
        methods = (recipe.upgrade.model_copy(update=METHODS[m]) for m in recipe.compare.methods)
        recipes += [recipe.model_copy(update={"upgrade": method}) for method in methods]
    preset = _preset(recipe)
    idle = {}
    for key in sorted(keys):
        table, _, name = key.partition(".")
        if table == "upgrade" and preset.get(name) == getattr(recipe.upgrade, name):
            continue  # what the method has named already
        rules = [rule for rule in RULES if rule.covers(key)]
        if not any(all(rule.holds(each) for rule in rules) for each in recipes):
            failed = next(rule for rule in rules if not rule.holds(recipe))
            idle[key] = failed.sentence(recipe, key)
    return idle


def _preset(recipe: Recipe) -> dict[str, str]:
    """What `upgrade.method` has named."""
    return METHODS.get(recipe.upgrade.method or "", {})


def value_of(recipe: Recipe, key: str) -> Any:
    table, _, name = key.partition(".")
    return getattr(getattr(recipe, table), name)
