"""Kinds: a room's closed list of things of one sort, such as its encoders, each with its settings.

A room's `kinds.py` holds a class of settings for each kind and one table of them, {kind: settings}.
The class has the keys of a recipe's table, with their types and defaults, and it builds the object.
To add a kind from outside the package, put its settings into the table:
`ESTIMATORS["window"] = WindowSettings`.

No `kinds.py` imports torch: a class of settings imports what it builds when it builds it, so that a
recipe is checked at once.

A class of settings says what it has (`traits`), a key what it needs (`Needs`), and `unmet` compares
the two and writes the error. No pair of settings is forbidden by a rule of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from evergram.did_you_mean import did_you_mean
from evergram.errors import RecipeError
from evergram.validation import shown, unknown_key


def as_list(value: Any) -> Any:
    """Return a list as it is, and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


# Types of numbers in settings.
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# A list with one entry for each version; the last holds for all later ones.
PerVersion = Annotated[list[Positive], Field(min_length=1), BeforeValidator(as_list)]


class Trait(Enum):
    """What a recipe or a run can have; the text says it, and which settings have it."""

    # Of [data] and [split].
    TEST_FILE = "a file of test pairs (data.test)"
    GIVEN_SPLIT = "test pairs of a file (split.kind = 'given')"
    SEPARATE_SELECTION = "pairs that select and do not test"
    # Of [model].
    SIZED = "an encoder that the recipe makes (model.kind other than 'module')"
    FREE_VECTORS = "a free vector for each entity (model.kind = 'factorization')"
    MADE_START = "tables that start from vectors (model.start = 'smooth')"
    UNIT_ROWS = "rows of unit norm (model.normalize = true)"
    FREE_NORMS = "rows of any norm (model.normalize = false)"
    ID_TABLES = "tables of ids (model.kind = 'factorization', for example)"
    FEATURE_TABLES = "tables of features (model.kind = 'two_tower', for example)"
    LAYERS = "layers (model.kind = 'two_tower', for example), or a task with parameters"
    BATCH_PRODUCTS = (
        "products of a batch (model.kind = 'two_tower' or 'module', or task.kind = 'softmax_all')"
    )
    MAPPABLE = "tables of which a step reads a part (model.kind = 'factorization' or 'two_tower')"
    # Of [task].
    PENALTY = "a penalty (a task.penalty above 0, or task.sparse)"
    GRAMIANS = (
        "a term with Gramians (a task.penalty above 0, or task.kind = 'second_order' or "
        "'spherical')"
    )
    MEASURES = "a term with measures (one with Gramians, or task.l2_measure = 'penalty')"
    NORMS = "a weight of norms (task.l2 above 0)"
    SQUARED_LOSS = "squares (task.kind = 'pointwise' with task.loss = 'squared')"
    SINGLE_PAIRS = "batches of single pairs (task.kind other than 'softmax_all')"
    SOME_CANDIDATES = (
        "steps that read a batch's candidates (task.kind other than 'softmax_all', such as "
        "'pointwise')"
    )
    # Of [gramian].
    DRAWN_APART = "an estimator with entities of its own (gramian.sampler)"
    # Of [training].
    STEPS = "an optimizer that takes steps (training.optimizer other than 'als')"
    SOME_ROWS = "an optimizer that moves some rows (training.optimizer = 'adaptive' or 'sgd')"
    EPOCHS = "training (training.epochs above 0)"
    # Of [upgrade].
    NEW_MODEL = "a model that does not go on from another (upgrade.start other than 'previous')"
    FITTED_AFTERWARDS = "a transform that is fitted afterwards (upgrade.method = 'post-closed')"
    NOTHING_TO_FIT = "a transform that is not fitted (upgrade.transform = 'truncate')"
    CLOSED_FORM = (
        "a transform with a closed form (upgrade.transform = 'linear' or 'affine', for example)"
    )
    # Of a run.
    NO_JOINT_TRANSFORM = (
        "a transform that is not trained with the model (upgrade.method = 'post-closed')"
    )
    ONE_PROCESS = "one process"
    CPU = "a CPU (--device cpu)"


# Traits of a run, which a recipe alone does not decide.
OF_A_RUN = frozenset({Trait.NO_JOINT_TRANSFORM, Trait.ONE_PROCESS, Trait.CPU})


class Needs:
    """Metadata of a key: the traits without which it would change nothing, or could not be.

    Args:
        traits: all that are needed.
        values: only these values need them; None: whatever is written, and all but the default.
        free: values that need nothing.
    """

    def __init__(
        self, *traits: Trait, values: tuple[Any, ...] | None = None, free: tuple[Any, ...] = ()
    ) -> None:
        self.traits = traits
        self.values = values
        self.free = free

    def of(self, value: Any) -> tuple[Trait, ...]:
        """Return the traits that a value needs."""
        is_free = value is None or value in self.free
        is_free = is_free or (self.values is not None and value not in self.values)
        return () if is_free else self.traits


class Settings(BaseModel):
    """A table of a recipe: unknown keys are errors, values are not converted, nothing changes."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)

    # What each of its keys needs of the rest of the recipe.
    needs: ClassVar[tuple[Trait, ...]] = ()

    @property
    def traits(self) -> frozenset[Trait]:
        """What it has that keys of other tables may need."""
        return frozenset()


class KindSettings(Settings):
    """The settings of one kind. `kind` is its name in recipes and artefacts, written
    `kind: Literal["window"] = "window"`; it is never renamed or used again for another thing."""

    kind: str = ""


def kind_of(settings: type[BaseModel]) -> str:
    """Return the kind of a class of settings."""
    return str(settings.model_fields["kind"].default)


def keys_of(settings: type[BaseModel], table: str) -> dict[str, Any]:
    """Return the type of each key of a class of settings, by its path, nested ones included."""
    types: dict[str, Any] = {}
    for name, field in settings.model_fields.items():
        path = f"{table}.{name}" if table else name
        nested = next((each for each in field.metadata if isinstance(each, Kinds)), None)
        if nested is None:
            types[path] = field.annotation
        else:
            types |= nested.types_of_keys(path, table)
    return types


def imported(name: str) -> Any:
    """Return the object that a dotted name leads to, and import its file now."""
    module, _, own = name.rpartition(".")
    return getattr(import_module(module), own)


def traits_where(conditions: Mapping[Trait, object]) -> frozenset[Trait]:
    """Return the traits whose condition holds."""
    return frozenset(trait for trait, holds in conditions.items() if holds)


S = TypeVar("S", bound=Settings)


class Kinds(dict[str, type[S]]):
    """A table of kinds, which is also the type of a recipe's table: `Annotated[Base, KINDS]`.

    Names of the package's own kinds are not given to others, as published versions hold them.

    Args:
        table: its name in a recipe.
        own: the package's settings.
        chooser: the key that chooses among them.
        default: the name that is chosen where none is written; None is the first.
        required: whether a name must be written.
    Raises: RecipeError: a name is a kind's of the package.
    """

    def __init__(
        self,
        table: str,
        own: Iterable[type[S]],
        chooser: str = "kind",
        default: str | None = None,
        *,
        required: bool = False,
    ) -> None:
        super().__init__()
        self.table = table
        self.chooser = chooser
        self.own: dict[str, type[S]] = {}
        for settings in own:
            for name in get_args(settings.model_fields[chooser].annotation):
                if name in self:
                    raise ValueError(f"{settings.__name__} has the name of {self[name].__name__}.")
                self[name] = settings
        self.own.update(self)
        self.default: str | None = None if required else default or next(iter(self.own))

    # Whether a name alone stands for a table with this kind.
    is_short: ClassVar[bool] = False

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __setitem__(self, kind: str, settings: type[S]) -> None:
        if self.own.get(kind, settings) is not settings:
            raise RecipeError(
                f"The kind {kind!r} is the package's own {self.own[kind].__name__}; give "
                f"{settings.__name__} another name."
            )
        chooser = settings.model_fields.get(self.chooser)
        if chooser is None or kind not in get_args(chooser.annotation):
            raise RecipeError(
                f"{settings.__name__} is put into the table as {kind!r}; write {self.chooser}: "
                f"Literal[{kind!r}] = {kind!r} in it."
            )
        super().__setitem__(kind, settings)

    def of(self, values: Any) -> S:
        """Return the settings of a table's values. Raises: pydantic.ValidationError, ValueError."""
        if isinstance(values, Settings):
            return values  # type: ignore[return-value]
        if self.is_short and isinstance(values, str):
            values = {self.chooser: values}
        if not isinstance(values, Mapping):
            return next(iter(self.values())).model_validate(values)  # says that it is no table
        values = self.completed(values)
        name = values.get(self.chooser, self.default)
        key = f"{self.table}.{self.chooser}"
        if name is None:
            raise ValueError(f"the key {key} is missing")
        settings = self.class_of(values) if isinstance(name, str) else None
        if settings is None:
            raise ValueError(
                f"{key} is {shown(name)}; it must be one of {', '.join(map(repr, self))}"
                f"{did_you_mean(name, self)}"
            )
        for unknown in sorted(values.keys() - settings.model_fields.keys()):
            raise ValueError(self.unknown(unknown, settings, name))
        return settings.model_validate(values)

    def completed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values with those that others of them stand for."""
        return values

    def class_of(self, values: Mapping[str, Any]) -> type[S] | None:
        """Return the class that values choose; None if there is none."""
        return self.get(values.get(self.chooser, self.default))

    def fields_of(self, values: Mapping[str, Any]) -> set[str]:
        """Return the keys of the class that values choose; none where they are wrong."""
        try:
            settings = self.class_of(self.completed(values))
        except (TypeError, ValueError):
            return set()
        return set() if settings is None else set(settings.model_fields)

    def every(self) -> list[type[S]]:
        """Return the classes of settings that there are."""
        return list(dict.fromkeys(self.values()))

    def types_of_keys(self, path: str, table: str) -> dict[str, Any]:
        """Return the type of each key that the kinds have, by its path.

        Args:
            path: of the table; a short one is a key of `table`, and so are those of its kinds.
        """
        own = table if self.is_short else path
        types: dict[str, Any] = {}
        for settings in self.every():
            types = {**keys_of(settings, own), **types}
        types.pop(f"{own}.{self.chooser}")
        return {path if self.is_short else f"{path}.{self.chooser}": Literal[tuple(self)], **types}

    def unknown(self, key: str, settings: type[S], name: str) -> str:
        """Return a clause on a key that the chosen settings do not have."""
        users = [repr(kind) for kind, each in self.items() if key in each.model_fields]
        chooser = f"{self.table}.{self.chooser}"
        if not users:
            return unknown_key([self.table, key], list(settings.model_fields))
        return (
            f"{self.table}.{key} is used with {chooser} = {' or '.join(users)} only, and it is "
            f"{name!r}; leave {self.table}.{key} out, or change {chooser}"
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.of)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        tables = [handler(settings.__pydantic_core_schema__) for settings in self.every()]
        return {"anyOf": [*tables, *([{"enum": list(self)}] if self.is_short else [])]}


def unmet(
    tables: Mapping[str, BaseModel], has: Collection[Trait], written: Collection[str]
) -> dict[str, str]:
    """Return each key whose needs are not met, "table.key", with a sentence that says so.

    Args:
        tables: of a recipe, by name; a class of settings may have `needs` for all of its keys.
        has: the traits of the recipe and the run.
        written: keys that were written, "table.key"; they are checked even if they say the default.
    """
    found = {}
    for name, table in tables.items():
        for key, field in type(table).model_fields.items():
            path, value = f"{name}.{key}", getattr(table, key)
            wanted = list(_wanted(table, field, value, is_written=path in written))
            lacking = [trait for trait in wanted if trait not in has]
            if lacking:
                found[path] = (
                    f"{path} is {shown(value)}, which needs {lacking[0].value}; change that, or "
                    f"leave {path} out."
                )
    return found


def _wanted(table: BaseModel, field: FieldInfo, value: Any, *, is_written: bool) -> Iterator[Trait]:
    """Yield the traits that a key of a table needs."""
    if is_written:
        yield from getattr(table, "needs", ())
    is_said = is_written or value != field.get_default(call_default_factory=True)
    for each in field.metadata:
        if isinstance(each, Needs) and (is_said or each.values is not None):
            yield from each.of(value)
