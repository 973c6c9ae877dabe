"""Recipes: all settings of a run in one TOML file, with strict checks."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, ValidationError

from evergram.data.data_sets import whole_path
from evergram.data.loaders import LOADERS, DataSettings
from evergram.encoders.kinds import ENCODERS, EncoderSettings, FactorizationSettings
from evergram.errors import RecipeError
from evergram.gramian.kinds import ESTIMATORS, EstimatorSettings, SOGramSettings
from evergram.kinds import OF_A_RUN, Kinds, Settings, Trait, keys_of, unmet
from evergram.lineage.record import RULE, is_name
from evergram.tasks.kinds import TASKS, PointwiseSettings, TaskSettings
from evergram.training.recipe.tables import (
    PRIORS,
    SPLITS,
    TRAININGS,
    UPGRADES,
    AdaptiveTraining,
    JointUpgrade,
    Metric,
    PriorSettings,
    RandomSplit,
    SplitSettings,
    Training,
    UpgradeSettings,
    ZeroSettings,
)
from evergram.validation import sentence_of

Seed = Annotated[int, Field(ge=0, lt=2**31)]

# The fixed values, in a `Recipe`, of the additional keys of `reproduction.recipe.PaperRecipe`.
FIXED: dict[str, Any] = {
    "split.selection": "strict",
    "model.scale": 0.1,
    "model.residual": True,
    "model.repeats": False,
    "gramian.gradient": "examples",
    "gramian.correct_start": True,
    "training.short_batch": False,
    "training.feature_rate": 0.005,
    "upgrade.transform_rate": 3e-3,
    "upgrade.objects": "all",
    "upgrade.rows": 512,
    "upgrade.fit_epochs": 100,
    "upgrade.select_after": 0,
}


def _named(value: str) -> str:
    """Raise ValueError if this is not a valid name of a lineage."""
    if not is_name(value):
        raise ValueError(f"name is {value!r}; {RULE}")
    return value


class Recipe(Settings):
    """All settings of a run. Created by `load`, `of` or `stored`.

    >>> from evergram import Recipe
    >>> recipe = Recipe.of({"data": {"kind": "synthetic"}, "model": {"dim": [32, 40]}})
    >>> recipe.model.dim_of(version=1)
    40
    >>> Recipe.load("recipes/synthetic.toml", ["training.epochs=5"]).training.epochs
    5
    """

    # Tables with several kinds, which have different keys.
    kinds: ClassVar[Mapping[str, Kinds[Any]]] = {
        each.table: each
        for each in (LOADERS, SPLITS, ENCODERS, TASKS, PRIORS, ESTIMATORS, TRAININGS, UPGRADES)
    }

    name: Annotated[str, AfterValidator(_named)] = "embeddings"
    seed: Seed = 0
    metrics: Annotated[list[Metric], Field(min_length=1)] = Field(
        default=["recall@20", "ndcg@20", "map@10"]
    )
    data: Annotated[DataSettings, LOADERS]
    split: Annotated[SplitSettings, SPLITS] = RandomSplit()
    model: Annotated[EncoderSettings, ENCODERS] = FactorizationSettings()
    task: Annotated[TaskSettings, TASKS] = PointwiseSettings()
    prior: Annotated[PriorSettings, PRIORS] = ZeroSettings()
    gramian: Annotated[EstimatorSettings, ESTIMATORS] = SOGramSettings()
    training: Annotated[Training, TRAININGS] = AdaptiveTraining()
    upgrade: Annotated[UpgradeSettings, UPGRADES] = JointUpgrade()

    def __repr__(self) -> str:
        return f"Recipe({self.name!r}, {self.model.kind}, data {self.data.kind})"

    @classmethod
    def key_types(cls) -> dict[str, Any]:
        """Return the type of each possible key, by its path."""
        return keys_of(cls, "")

    @property
    def tables(self) -> dict[str, Settings]:
        """The tables that have kinds, by name."""
        return {name: getattr(self, name) for name in self.kinds}

    @property
    def traits(self) -> frozenset[Trait]:
        """The traits of all tables."""
        traits = frozenset[Trait]().union(*(table.traits for table in self.tables.values()))
        if Trait.UNIT_ROWS in traits and self.task.l2 == "auto":
            traits -= {Trait.NORMS}  # the norms are constant
        return traits

    def written_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a written recipe without the keys that this recipe's kinds lack."""
        filtered = copied(values)
        for name, table in self.tables.items():
            if isinstance(filtered.get(name), dict):
                fields = type(table).model_fields
                filtered[name] = {k: v for k, v in filtered[name].items() if k in fields}
        return filtered

    @property
    def refits(self) -> bool:
        """Whether the published model is trained again, on all but the test pairs."""
        refit = self.training.refit
        return self.split.kind == "given" if refit == "auto" else refit

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """Read a recipe from a TOML file, with overrides.

        Args:
            overrides: "key.path=value" each, with values in TOML.
        Raises: RecipeError: the file is missing or is not TOML, a key or value is not allowed, or
            a written key has no effect.
        """
        path = Path(path)
        values = values_of_file(path)
        return cls.of(values, overrides, folder=path.parent, source=str(path))

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        overrides: Sequence[str] = (),
        *,
        folder: Path | None = None,
        source: str = "The recipe",
    ) -> Recipe:
        """Return a recipe from nested dicts, written by hand or from `model_dump`.

        A written key without effect is an error. If an override makes it ineffective, the key is
        dropped with a warning instead.

        Args:
            folder: to which paths in `values` are relative; paths in overrides are relative to the
                working directory.
            source: name of the recipe in errors.
        Raises: RecipeError: as `load`.
        """
        tables = copied(values)
        if folder is not None:
            resolve_paths(tables, folder)
        return cls._checked(tables, overrides, cls._written(tables), source)

    @classmethod
    def stored(cls, values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
        """Return the recipe that a lineage stores, with all keys. Only keys of `overrides` must
        have an effect. Keys that a `Recipe` does not have are dropped.

        Raises: RecipeError: as `load`; or a dropped key has another value than a `Recipe` uses.
        """
        tables = {k: v for k, v in copied(values).items() if k in cls.model_fields}
        for name, kinds in cls.kinds.items():
            table = tables.get(name)
            if isinstance(table, dict) and (fields := kinds.fields_of(table)):
                completed = kinds.completed(table)
                for key in completed.keys() - fields:
                    value = completed[key]
                    if value != (fixed := FIXED.get(f"{name}.{key}", value)):
                        raise RecipeError(
                            f"The stored recipe has {name}.{key} = {value!r}, but a Recipe always "
                            f"uses {fixed!r}; read it with reproduction.recipe.PaperRecipe."
                        )
                tables[name] = {k: v for k, v in completed.items() if k in fields}
        return cls._checked(tables, overrides, set(), "The recipe")

    @classmethod
    def of_data(cls, values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
        """Return a stored recipe with its data and split, and defaults elsewhere. This process need
        not know the kinds of the stored model and task.

        Raises: RecipeError: as `load`.
        """
        keys = ("name", "seed", "metrics", "data", "split")
        data_values = {k: values[k] for k in keys if k in values}
        # With a refit the selection pairs are training pairs.
        data_values["training"] = {"refit": values["training"].get("refit", "auto")}
        return cls.stored(data_values, overrides)

    @classmethod
    def _checked(
        cls, values: dict[str, Any], overrides: Sequence[str], written: set[str], source: str
    ) -> Recipe:
        """Return the recipe with overrides, without the keys that these make ineffective. `written`
        has the keys of `values` that the user wrote, "table.key"."""
        added = override_keys(overrides)
        upgrade = values.get("upgrade")
        if "upgrade.method" in added and isinstance(upgrade, dict):
            values = {**values, "upgrade": UPGRADES.without_defaults(upgrade)}
        tables = overridden(values, overrides)
        dropped = cls._drop_other_kinds(tables, added)
        recipe = cls._valid(tables, source)
        while True:
            required = (written - dropped) | added
            ineffective = unmet(recipe.tables, recipe.traits | OF_A_RUN, required)
            for key, sentence in sorted(ineffective.items()):
                table, _, name = key.partition(".")
                if key in added or not overrides or name not in tables.get(table, {}):
                    raise RecipeError(f"{source}: {sentence}")
                del tables[table][name]
            if not ineffective:
                break
            dropped |= ineffective.keys()
            recipe = cls._valid(tables, source)
        if dropped & written:
            logging.getLogger(__name__).warning(
                "%s: left out keys that have no effect with the overrides: %s.",
                source,
                ", ".join(sorted(dropped & written)),
            )
        return recipe

    @classmethod
    def _written(cls, values: Mapping[str, Any]) -> set[str]:
        """Return the keys that the user wrote, "table.key": all keys, except in tables from
        `model_dump`, which always have every key."""
        is_dump = cls.model_fields.keys() <= values.keys()
        written = set()
        for name, table in values.items():
            if name not in cls.kinds or not isinstance(table, dict):
                continue
            if not (is_dump and cls.kinds[name].fields_of(table) <= table.keys()):
                written |= {f"{name}.{key}" for key in table}
        return written

    @classmethod
    def _drop_other_kinds(cls, values: dict[str, Any], added: Collection[str]) -> set[str]:
        """Remove and return keys of tables with overrides that belong to other kinds."""
        dropped = set()
        for name, kinds in cls.kinds.items():
            table = values.get(name)
            if not isinstance(table, dict) or not any(k.startswith(f"{name}.") for k in added):
                continue
            fields = kinds.fields_of(table)
            others = {k for each in kinds.every() for k in each.model_fields}
            for key in (others - fields) & table.keys():
                if fields and f"{name}.{key}" not in added:
                    dropped.add(f"{name}.{key}")
                    del table[key]
        return dropped

    @classmethod
    def _valid(cls, values: Mapping[str, Any], source: str) -> Recipe:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise RecipeError(f"{source}: {sentence_of(error, cls)}") from None


def values_of_file(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file, unchecked. Raises: RecipeError: as `Recipe.load`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(
            f"Cannot read the recipe {path}: {error.strerror}; give the path of a TOML file."
        ) from error
    except (UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(
            f"The recipe {path} is not valid TOML in UTF-8: {error}; correct it (docs/recipes.md "
            "has an example)."
        ) from error


# The keys that are paths, by table.
_PATHS = {
    "data": ("path", "test", "query_features", "candidate_features"),
    "task": ("query_measure", "candidate_measure"),
    "prior": ("query", "candidate"),
}


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the tables that may be modified."""
    return {k: dict(v) if isinstance(v, dict) else v for k, v in values.items()}


def overridden(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values with each override "key.path=value" set. Relative paths start from the
    working directory. Raises: RecipeError: an override has another form."""
    tables = copied(values)
    for override in overrides:
        key, equals, text = override.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
            raise RecipeError(
                f"--set {override!r} is not of the form key.path=value, such as model.dim=64."
            )
        table = tables
        for name in names[:-1]:
            if table.get(name) is None:
                table[name] = {}
            elif isinstance(table[name], str):
                table[name] = {"kind": table[name]}  # expand upgrade.transform = "affine"
            table = table[name]
            if not isinstance(table, dict):
                raise RecipeError(f"--set {override!r}: {name} is a value, not a table.")
        table[names[-1]] = value_of(text)
    if overrides:
        resolve_paths(tables, Path.cwd())
    return tables


def override_keys(overrides: Sequence[str]) -> set[str]:
    """Return the keys that overrides set, as "table.key"."""
    return {
        f"{name}.{key}"
        for override in overrides
        for name, table in overridden({}, [override]).items()
        for key in (table if isinstance(table, dict) else ())
    }


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table with dotted keys."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        flattened |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flattened


def resolve_paths(values: dict[str, Any], folder: Path) -> None:
    """Make relative paths, which start from `folder`, and `$EVERGRAM_DATA/…` absolute, in place."""
    for name, keys in _PATHS.items():
        table = values.get(name)
        if not isinstance(table, dict):
            continue
        for key in keys:
            if isinstance(table.get(key), str):
                table[key] = str(whole_path(table[key], folder))
            elif isinstance(table.get(key), list):
                table[key] = [
                    str(whole_path(v, folder)) if isinstance(v, str) else v for v in table[key]
                ]


def value_of(text: str) -> Any:
    """Return a TOML value from text; text that is not TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def toml_of(tables: Mapping[str, Any]) -> str:
    """Return tables as TOML, with top-level keys first."""
    plain = {k: v for k, v in tables.items() if not isinstance(v, dict)}
    lines = [f"{_key(k)} = {toml_value(v)}" for k, v in plain.items()]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [
                "",
                f"[{_key(name)}]",
                *(f"{_key(k)} = {toml_value(v)}" for k, v in table.items()),
            ]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "_").isidentifier()
    return name if bare else toml_value(name)


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        # JSON does not escape DEL, and TOML does not allow it unescaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, (int, float)) else str(value)
