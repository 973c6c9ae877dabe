"""A recipe: everything that a run is made of, in one TOML file, checked strictly."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, create_model, model_validator

from evergram.errors import RecipeError
from evergram.lineage.paths import RULE, is_name
from evergram.training.recipe.data import DataRecipe, SplitRecipe
from evergram.training.recipe.objective import GramianRecipe, ModelRecipe, PriorRecipe, TaskRecipe
from evergram.training.recipe.presets import PresetName, with_preset
from evergram.training.recipe.table import KindTable, Metric, RecipeTable
from evergram.training.recipe.training import TrainingRecipe
from evergram.training.recipe.upgrade import CompareRecipe, UpgradeRecipe
from evergram.training.recipe.used_keys import unused
from evergram.training.recipe.values import (
    copied,
    overridden,
    override_keys,
    resolve_paths,
    written_keys,
)
from evergram.validation import sentence_of

Seed = Annotated[int, Field(ge=0, lt=2**31)]


def _named(value: str) -> str:
    """Raises: ValueError: the lineage cannot be called so."""
    if not is_name(value):
        raise ValueError(f"name is {value!r}; {RULE}")
    return value


class Recipe(RecipeTable):
    """One TOML file. Made by `load`, `of` or `stored`, which know the keys of every kind.

    >>> from evergram import Recipe
    >>> recipe = Recipe.of({"data": {"kind": "synthetic"}, "model": {"dim": [32, 40]}})
    >>> recipe.model.dim_of(version=1)
    40
    >>> Recipe.load("recipes/synthetic.toml", ["training.epochs=5"]).training.epochs
    5
    """

    name: Annotated[str, AfterValidator(_named)] = "embeddings"
    seed: Seed = 0
    # Settings for every key that is not written, see `presets`.
    preset: PresetName | None = None
    metrics: Annotated[list[Metric], Field(min_length=1)] = Field(
        default=["recall@20", "ndcg@20", "map@10"]
    )
    data: DataRecipe
    split: SplitRecipe = SplitRecipe()
    model: ModelRecipe
    task: TaskRecipe
    prior: PriorRecipe
    gramian: GramianRecipe
    training: TrainingRecipe = TrainingRecipe()
    upgrade: UpgradeRecipe
    compare: CompareRecipe = CompareRecipe()

    def __reduce__(self) -> tuple[Any, ...]:
        # Its class is made of the tables of kinds, and has no place to be imported from.
        return Recipe._checked, (self.model_dump(), "The recipe")

    def __repr__(self) -> str:
        return f"Recipe({self.name!r}, {self.model.kind}, data {self.data.kind})"

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, values: Any) -> Any:
        return with_preset(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        if self.split.kind == "given" and self.data.test is None:
            raise ValueError("split.kind = 'given' needs data.test, the file of test pairs")
        orthogonal = self.task.query_orthogonal or self.task.candidate_orthogonal
        if self.gramian.gradient == "sampled" and orthogonal:
            raise ValueError(
                "gramian.gradient = 'sampled' takes a side's gradient over the entities that its "
                "own Gramian was just estimated from, which the orthogonal terms would multiply "
                "with it; set gramian.gradient = 'examples'"
            )
        if self.training.epochs == 0:
            self._fits_without_training()
        elif self.upgrade.select_after >= self.training.epochs:
            raise ValueError(
                f"upgrade.select_after is {self.upgrade.select_after} and training.epochs "
                f"{self.training.epochs}; no epoch would be left to select"
            )
        if self.training.refit is True and self.split.selection == "paper":
            raise ValueError(
                "training.refit = true trains on the pairs that chose the epoch, and with "
                "split.selection = 'paper' those are the test pairs; set split.selection = "
                "'strict' or leave training.refit at 'auto'"
            )
        task = self.task
        if (task.query_orthogonal or task.candidate_orthogonal) and not self.model.normalize:
            raise ValueError(
                "global orthogonal regularisation is of rows of unit norm; set model.normalize = "
                "true or leave task.query_orthogonal and task.candidate_orthogonal at 0"
            )
        if getattr(task.chosen, "temperature", None) == "learned" and not self.model.normalize:
            raise ValueError(
                "task.temperature = 'learned' is for unit rows, as free rows have lengths to "
                "learn; set model.normalize = true, or give task.temperature a number"
            )
        return self

    def _fits_without_training(self) -> None:
        """Raises: ValueError: without an epoch there is no model, or nothing fits a transform."""
        if self.model.start == "random":
            raise ValueError(
                "training.epochs = 0 publishes the vectors that training would start from, and "
                "with model.start = 'random' they say nothing; set model.start = 'svd' or "
                "'smooth', or training.epochs above 0"
            )
        if self.upgrade.start == "previous":
            raise ValueError(
                "upgrade.start = 'previous' leaves rows of new ids to be trained, and "
                "training.epochs = 0 trains none; set upgrade.start = 'fresh'"
            )
        if self.upgrade.fit == "joint":
            raise ValueError(
                "upgrade.fit = 'joint' learns the transform while the model is trained, and "
                "training.epochs = 0 trains none; set upgrade.fit = 'posthoc' or 'none'"
            )

    @property
    def refits(self) -> bool:
        """Whether the published model is trained once more, on all but the test pairs."""
        refit = self.training.refit
        return self.split.kind == "given" if refit == "auto" else refit

    @classmethod
    def with_kinds(cls) -> type[Recipe]:
        """Return the model with the keys of every kind that the rooms' tables have now."""
        return _with_kinds(
            tuple(
                (name, field.annotation.with_kinds())
                for name, field in Recipe.model_fields.items()
                if isinstance(field.annotation, type) and issubclass(field.annotation, KindTable)
            )
        )

    @classmethod
    def load(
        cls, path: str | Path, overrides: Sequence[str] = (), *, comparing: bool = False
    ) -> Recipe:
        """Return the recipe of a TOML file, with each `key.path=value` of `overrides` set in it.

        Args:
            overrides: their values are TOML.
            comparing: as of `of`.
        Raises: RecipeError: the file is missing or is not TOML, a key or value is not allowed, or
            a key that was written changes nothing.
        """
        path = Path(path)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RecipeError(f"There is no recipe {path}; give the path of a TOML file.") from None
        except OSError as error:
            raise RecipeError(
                f"The recipe {path} cannot be read: {error.strerror}; give the path of a TOML file."
            ) from error
        except UnicodeDecodeError as error:
            raise RecipeError(
                f"The recipe {path} is no text in UTF-8; save it as UTF-8."
            ) from error
        except RecursionError as error:
            raise RecipeError(f"The recipe {path} has too many brackets; take some out.") from error
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(
                f"The recipe {path} is not TOML: {error}; correct it there (docs/recipes.md has an "
                "example)."
            ) from error
        return cls.of(values, overrides, folder=path.parent, source=str(path), comparing=comparing)

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        overrides: Sequence[str] = (),
        *,
        folder: Path | None = None,
        source: str = "The recipe",
        comparing: bool = False,
    ) -> Recipe:
        """Return the recipe of nested dicts, as a person writes them or as `model_dump` gives them.

        A key that was written and changes nothing is refused, see `used_keys`. A key that an
        override has put out of use is left out with a warning.

        Args:
            folder: where relative paths in `values` start; those in overrides start from the
                working directory.
            source: the recipe's name in an error.
            comparing: whether [upgrade] is for all methods of [compare], too.
        Raises: RecipeError: as `load`.
        """
        tables = copied(values)
        if folder is not None:
            resolve_paths(tables, folder)
        chosen = overridden(tables, overrides)
        recipe = cls._checked(chosen, source)
        written, added = written_keys(tables, cls.with_kinds()), override_keys(overrides)
        comparing = comparing or "compare" in tables
        idle = unused(recipe, written | added, comparing=comparing)
        displaced = set()
        if idle and added:
            displaced = idle.keys() - added - cls._idle_before(tables, written, comparing)
        for key in sorted(idle.keys() - displaced):
            raise RecipeError(f"{source}: {idle[key]}")
        if not displaced:
            return recipe
        logging.getLogger(__name__).warning(
            "%s: left out, as what was set in its place does not use it: %s.",
            source,
            ", ".join(sorted(displaced)),
        )
        for key in displaced:
            table, _, name = key.partition(".")
            chosen[table].pop(name, None)  # an override of the whole table has none
        return cls._checked(chosen, source)

    @classmethod
    def stored(cls, values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
        """Return the recipe of a lineage, which has every key whether or not it was written: only
        the keys of `overrides` must be used by something.

        Raises: RecipeError: as `load`.
        """
        recipe = cls._checked(overridden(copied(values), overrides), "The recipe")
        for sentence in unused(recipe, override_keys(overrides)).values():
            raise RecipeError(f"--set: {sentence}")
        return recipe

    @classmethod
    def _checked(cls, values: Mapping[str, Any], source: str) -> Recipe:
        model = cls.with_kinds()
        try:
            return model.model_validate(values)
        except ValidationError as error:
            raise RecipeError(f"{source}: {sentence_of(error, model)}") from None

    @classmethod
    def _idle_before(cls, values: Mapping[str, Any], keys: set[str], comparing: bool) -> set[str]:
        """Return those of `keys` that change nothing without any override either."""
        try:
            return set(unused(cls.with_kinds().model_validate(values), keys, comparing=comparing))
        except ValidationError:  # the overrides have what it lacks
            return keys


@lru_cache
def _with_kinds(tables: tuple[tuple[str, type[KindTable]], ...]) -> type[Recipe]:
    """`Recipe.with_kinds`; one class for the same kinds."""
    fields: dict[str, Any] = {
        name: (table, Field(default_factory=_default_of(table))) for name, table in tables
    }
    return create_model(
        "Recipe", __base__=Recipe, __module__=__name__, __doc__=Recipe.__doc__, **fields
    )


def _default_of(table: type[KindTable]) -> Callable[[], KindTable]:
    return lambda: table.model_validate({})
