"""The rules of which keys of a recipe are used; a key that is written and not used is an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evergram.data.loaders import LOADERS
from evergram.encoders.kinds import ENCODERS
from evergram.gramian.kinds import ESTIMATORS
from evergram.kinds import kinds_where
from evergram.tasks.kinds import TASKS
from evergram.training.recipe.methods import METHODS
from evergram.training.recipe.objective import GramianRecipe, ModelRecipe, PriorRecipe, TaskRecipe
from evergram.training.recipe.table import KindTable
from evergram.training.recipe.upgrade import UpgradeRecipe

if TYPE_CHECKING:
    from evergram.training.recipe import Recipe


@dataclass(frozen=True)
class Only:
    """A rule: these keys are used only with some values of another key.

    Args:
        keys: "table.key" each, divided by spaces; "table.*" for all of a table.
        by: the key that decides.
        values: the values of `by` with which the keys are used.
        test: decides in place of `values`, where more than one key matters.
        needs: the condition of `test`, in words.
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
        """Return a sentence on why `key` is not used, and on the remedy."""
        needs = self.needs
        if self.test is None:
            needs = f"{self.by} = {' or '.join(map(repr, self.values))}"
        value = value_of(recipe, self.by)
        if value == "auto":
            return (
                f"{key} is used with {needs} only, and {self.by} = 'auto' is 0 here; leave {key} "
                f"out, or give {self.by} a number."
            )
        shown = repr(value[0] if isinstance(value, list) and len(value) == 1 else value)
        if value is None:
            shown = "not set"
        elif _preset(recipe).get(self.by.removeprefix("upgrade.")) == value:
            shown += f" (upgrade.method = {recipe.upgrade.method!r})"
        return (
            f"{key} is used with {needs} only, and {self.by} is {shown}; leave {key} out, or "
            f"change {self.by}."
        )


def _drives_apart(recipe: Recipe) -> bool:
    """Whether the penalty on all pairs has any weight; see `strengths_of` for that of "auto"."""
    task = recipe.task
    return task.chosen.needs_penalty if task.penalty == "auto" else any(task.penalty)


def _shortens(recipe: Recipe) -> bool:
    """Whether squared norms have any weight; see `strengths_of` for that of "auto"."""
    task = recipe.task
    if task.l2 == "auto":
        return task.chosen.needs_penalty and not recipe.model.normalize
    return task.l2 > 0


def _limits_objects(recipe: Recipe) -> bool:
    """Whether alignment is over some of the objects: a pass over a graph has all at hand."""
    objects, alone = recipe.upgrade.objects, recipe.upgrade.fit == "posthoc"
    draws = not alone and not recipe.model.chosen.passes_over_graph
    return objects == "batch" or (objects == "all" and draws)


def _has_gramians(recipe: Recipe) -> bool:
    task = recipe.task
    orthogonal = task.query_orthogonal or task.candidate_orthogonal
    return _drives_apart(recipe) or bool(orthogonal) or task.chosen.wants_means


def _has_measures(recipe: Recipe) -> bool:
    # An automatic l2 is under the penalty's measure where the recipe names none.
    under = recipe.task.l2_measure or ("penalty" if recipe.task.l2 == "auto" else "examples")
    return _has_gramians(recipe) or (_shortens(recipe) and under == "penalty")


def rules() -> tuple[Only, ...]:
    """Return every rule; each key may stand in several, and all of them must hold."""
    return *_rules_of_kinds(), *_rules_of_penalty(), *RULES


def _rules_of_kinds() -> Iterator[Only]:
    """The rules that follow from the settings of every kind: a new kind needs no line here."""
    for name, table in KIND_TABLES.items():
        users: dict[str, list[str]] = {}
        for kind, settings in table.kinds.items():
            for key in settings.model_fields:
                users.setdefault(key, []).append(kind)
        for key, kinds in users.items():
            if len(kinds) < len(table.kinds) and key not in table.model_fields:
                yield Only(f"{name}.{key}", f"{name}.{table.chooser}", tuple(kinds))
    yield Only("data.path", "data.kind", tuple(kind for kind in LOADERS if kind != "synthetic"))
    yield Only(
        "gramian.batch gramian.sampler gramian.batch_size gramian.pool_size",
        "gramian.kind",
        kinds_where(ESTIMATORS, "learns_from_batches"),
    )
    made = kinds_where(ENCODERS, "made_by_recipe")
    if len(made) < len(ENCODERS):
        yield Only("model.dim model.scale", "model.kind", made)
    yield Only("model.start", "model.kind", kinds_where(ENCODERS, "takes_start"))
    for rate in ("table_rate", "feature_rate"):
        yield Only(f"training.{rate}", "model.kind", _with_rate(rate))
    layered = _with_rate("layer_rate")
    yield Only(
        "training.layer_rate",
        "model.kind",
        test=lambda r: r.model.kind in layered or r.task.chosen.has_parameters,
        needs=f"model.kind = {' or '.join(map(repr, layered))} (or task.temperature = 'learned')",
    )
    mixed = kinds_where(ENCODERS, "mixes_precision")
    yield Only("training.precision", "model.kind", mixed)
    yield Only("training.tables", "model.kind", kinds_where(ENCODERS, "maps_tables"))
    yield Only(
        "upgrade.transform_rate upgrade.fit_epochs",
        "upgrade.transform",
        test=lambda r: r.upgrade.chosen.is_learned,
        needs="an upgrade.transform that is learned",
    )


def _with_rate(rate: str) -> tuple[str, ...]:
    return tuple(kind for kind, settings in ENCODERS.items() if rate in settings.rates)


def _rules_of_penalty() -> Iterator[Only]:
    """The rules of keys that a penalty on all pairs uses, or another term with Gramians."""
    by_moments = " or ".join(map(repr, kinds_where(TASKS, "wants_means")))
    yield Only(
        "task.query_measure task.candidate_measure",
        "task.penalty",
        test=_has_measures,
        needs=f"a task.penalty above 0 (or an orthogonal term, task.kind = {by_moments}, or "
        "task.l2_measure = 'penalty')",
    )
    yield Only(
        "prior.*",
        "task.penalty",
        test=lambda r: _drives_apart(r) or r.task.sparse != "none",
        needs="a task.penalty above 0 (or task.sparse)",
    )
    yield Only(
        "gramian.* training.precondition",
        "task.penalty",
        test=_has_gramians,
        needs=f"a task.penalty above 0 (or an orthogonal term, or task.kind = {by_moments})",
    )


KIND_TABLES: dict[str, type[KindTable]] = {
    "model": ModelRecipe,
    "task": TaskRecipe,
    "prior": PriorRecipe,
    "gramian": GramianRecipe,
    "upgrade": UpgradeRecipe,
}
# Keys that are used with some settings of the tables themselves.
RULES = (
    Only("data.metadata data.minimum_products data.described_only", "data.kind", ("amazon",)),
    Only("data.prefix", "data.kind", ("mediawiki",)),
    Only("data.query_features data.candidate_features", "data.kind", ("table",)),
    Only("data.shared_ids", "data.kind", ("table",)),
    Only("data.bad_rows", "data.kind", ("table", "adjacency_list", "prepared", "python")),
    Only("data.test data.columns data.weights", "data.kind", ("table", "prepared", "python")),
    Only(
        "data.columns data.weights data.bad_rows",
        "split.kind",
        test=lambda r: r.data.kind != "prepared" or r.split.kind == "given",
        needs="split.kind = 'given' (of prepared data, for the test file)",
    ),
    Only(
        "data.minimum_value",
        "data.kind",
        test=lambda r: r.data.kind != "python",
        needs="data that the recipe names",
    ),
    Only("data.queries data.candidates", "data.kind", ("synthetic",)),
    Only("data.interactions data.drift", "data.kind", ("synthetic",)),
    Only("data.test", "split.kind", ("given",)),
    Only("split.share", "split.kind", ("random", "given")),
    Only("split.versions split.end split.last", "split.kind", ("time",)),
    Only("split.selection", "split.kind", ("random", "time")),
    Only(
        "model.hash_seed",
        "model.hash_rows",
        test=lambda r: getattr(r.model, "hash_rows", None) is not None,
        needs="model.hash_rows",
    ),
    Only(
        "training.short_batch",
        "task.positives",
        test=lambda r: r.task.drawn != "whole_queries",
        needs="pairs that are drawn one by one",
    ),
    Only(
        "training.batch_size training.short_batch training.table_rate training.decay "
        "training.precondition gramian.*",
        "training.optimizer",
        test=lambda r: not r.training.sweeps,
        needs="an optimizer that takes steps ('adaptive', 'adam', 'sgd')",
    ),
    Only(
        "task.neighbours",
        "task.neighbour_share",
        test=lambda r: getattr(r.task.chosen, "neighbour_share", 0) > 0,
        needs="task.neighbour_share above 0",
    ),
    Only("training.rescale_rows", "model.kind", ("factorization",)),
    Only(
        "training.rescale_rows",
        "model.normalize",
        test=lambda r: r.model.normalize,
        needs="model.normalize = true",
    ),
    Only("training.rescale_rows", "training.optimizer", ("adam",)),
    Only(
        "model.start",
        "model.hash_rows",
        test=lambda r: getattr(r.model, "hash_rows", None) is None,
        needs="a row for each id",
    ),
    Only(
        "task.l2",
        "model.normalize",
        test=lambda r: not r.model.normalize or r.task.l2 in ("auto", 0),
        needs="model.normalize = false",
    ),
    Only("task.l2_measure", "task.l2", test=_shortens, needs="task.l2 above 0"),
    Only(
        "gramian.sampler gramian.batch_size gramian.pool_size gramian.gradient",
        "gramian.batch",
        test=lambda r: r.gramian.is_independent,
        needs="gramian.batch = 'independent'",
    ),
    Only("gramian.pool_size", "gramian.sampler", ("adaptive",)),
    Only(
        "training.watch_candidates",
        "training.watch_minutes",
        test=lambda r: r.training.watch_minutes is not None,
        needs="training.watch_minutes",
    ),
    Only("upgrade.weight", "upgrade.fit", ("joint",)),
    Only("upgrade.objects upgrade.rows upgrade.select_after", "upgrade.fit", ("joint", "posthoc")),
    Only(
        "upgrade.select_after",
        "upgrade.objects",
        test=lambda r: r.upgrade.fit == "joint" or r.upgrade.objects != "all",
        needs="upgrade.objects = 'paper-code' or 'batch' (or upgrade.fit = 'joint')",
    ),
    Only(
        "upgrade.rows",
        "upgrade.objects",
        test=lambda r: _limits_objects(r),
        needs="upgrade.objects = 'batch' (or 'all', with an encoder that needs no graph)",
    ),
    Only(
        "upgrade.steps upgrade.unit upgrade.solver upgrade.transform_rate upgrade.transform_start",
        "upgrade.fit",
        ("joint", "posthoc"),
    ),
    Only("upgrade.transform_start", "upgrade.transform", ("linear",)),
    Only(
        "upgrade.transform",
        "upgrade.fit",
        test=lambda r: r.upgrade.fit != "none" or not r.upgrade.chosen.is_learned,
        needs="upgrade.fit = 'joint' or 'posthoc' (but for 'truncate', which nothing fits)",
    ),
    Only(
        "upgrade.consumer_weight upgrade.consumers",
        "upgrade.fit",
        test=lambda r: r.upgrade.weighs_consumers,
        needs="upgrade.fit = 'joint' (or 'posthoc', with upgrade.solver = 'closed')",
    ),
    Only(
        "upgrade.consumers",
        "upgrade.consumer_weight",
        test=lambda r: r.upgrade.consumer_weight > 0,
        needs="upgrade.consumer_weight above 0",
    ),
    Only("upgrade.fit_epochs", "upgrade.fit", ("posthoc",)),
    Only("upgrade.fit_epochs", "upgrade.solver", ("gradient",)),
    Only(
        "upgrade.transform_rate upgrade.transform_start upgrade.objects upgrade.rows "
        "upgrade.select_after",
        "upgrade.solver",
        test=lambda r: r.upgrade.fit == "joint" or r.upgrade.solver == "gradient",
        needs="upgrade.solver = 'gradient' (or upgrade.fit = 'joint')",
    ),
)


def unused(recipe: Recipe, keys: Collection[str], *, comparing: bool = False) -> dict[str, str]:
    """Return each of `keys` that changes nothing in `recipe`, with a sentence on why.

    Args:
        keys: "table.key", as they were written.
        comparing: whether [upgrade] is for all methods of [compare], too.
    """
    recipes = [recipe]
    if comparing:
        methods = (recipe.upgrade.model_copy(update=METHODS[m]) for m in recipe.compare.methods)
        recipes += [recipe.model_copy(update={"upgrade": method}) for method in methods]
    preset = _preset(recipe)
    idle, every = {}, rules()
    for key in sorted(keys):
        table, _, name = key.partition(".")
        if table == "upgrade" and preset.get(name) == getattr(recipe.upgrade, name):
            continue  # the method names it already
        of_key = [rule for rule in every if rule.covers(key)]
        if not any(all(rule.holds(each) for rule in of_key) for each in recipes):
            failed = next(rule for rule in of_key if not rule.holds(recipe))
            idle[key] = failed.sentence(recipe, key)
    return idle


def _preset(recipe: Recipe) -> dict[str, str]:
    """The settings that `upgrade.method` names."""
    return METHODS.get(recipe.upgrade.method or "", {})


def value_of(recipe: Recipe, key: str) -> Any:
    """Return the value of "table.key"."""
    table, _, name = key.partition(".")
    return getattr(getattr(recipe, table), name)
