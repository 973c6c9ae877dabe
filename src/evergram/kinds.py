"""Kinds: the implementations to choose from in a folder, such as encoders, and their settings.

A folder's `kinds.py` has a settings class for each kind, and a table {kind: settings class}. The
class has the keys of a recipe's table, with types and defaults, and builds the object. To add a
kind from outside the package, add its settings to the table:
`ESTIMATORS["window"] = WindowSettings`.

No `kinds.py` imports torch at the top: each class imports what it builds when it builds it, so that
checking a recipe is fast.

A settings class declares what it provides (`traits`), and a key what it requires (`Needs`). `unmet`
compares them and writes the error, so there are no rules for specific pairs of settings.
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
    """Return a list unchanged, and wrap anything else in a list."""
    return value if isinstance(value, list) else [value]


# Number types for settings.
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# A list with one entry per version; the last applies to all later versions.
PerVersion = Annotated[list[Positive], Field(min_length=1), BeforeValidator(as_list)]


class Trait(Enum):
    """A property of a recipe or a run. The value describes it for errors, with the settings that
    have it."""

    # Of [data] and [split].
    TEST_FILE = "a file of test pairs (data.test)"
    GIVEN_SPLIT = "test pairs from a file (split.kind = 'given')"
    SEPARATE_SELECTION = "validation pairs apart from the test pairs"
    # Of [model].
    SIZED = "an encoder built from the recipe (model.kind other than 'module')"
    FREE_VECTORS = "a free vector for each entity (model.kind = 'factorization')"
    MADE_START = "tables that start from vectors (model.start = 'smooth')"
    UNIT_ROWS = "rows of unit norm (model.normalize = true)"
    FREE_NORMS = "rows of any norm (model.normalize = false)"
    ID_TABLES = "id tables (model.kind = 'factorization', for example)"
    FEATURE_TABLES = "feature tables (model.kind = 'two_tower', for example)"
    LAYERS = "layers (model.kind = 'two_tower', for example), or a task with parameters"
    BATCH_PRODUCTS = (
        "matrix products per batch (model.kind = 'two_tower' or 'module', or task.kind = "
        "'softmax_all')"
    )
    MAPPABLE = "tables that can be read in part (model.kind = 'factorization' or 'two_tower')"
    # Of [task].
    PENALTY = "a penalty (a task.penalty above 0, or task.sparse)"
    GRAMIANS = "a term with Gramians (a task.penalty above 0)"
    MEASURES = "a term with measures (one with Gramians, or task.l2_measure = 'penalty')"
    NORMS = "an L2 penalty (task.l2 above 0)"
    SQUARED_LOSS = "the squared loss (task.kind = 'pointwise' with task.loss = 'squared')"
    SINGLE_PAIRS = "batches of single pairs (task.kind other than 'softmax_all')"
    SOME_CANDIDATES = (
        "steps that read only a batch's candidates (task.kind other than 'softmax_all', such as "
        "'pointwise')"
    )
    # Of [gramian].
    DRAWN_APART = "an estimator that samples entities (gramian.sampler)"
    # Of [training].
    STEPS = "an optimizer that takes steps (training.optimizer other than 'als')"
    SOME_ROWS = "an optimizer with sparse updates (training.optimizer = 'adaptive', 'sgd' or 'als')"
    EPOCHS = "training (training.epochs above 0)"
    # Of [upgrade].
    NEW_MODEL = "a new model (upgrade.start other than 'previous')"
    FITTED_AFTERWARDS = "a transform fitted after training (upgrade.method = 'post-closed')"
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


# Traits of a run, which do not depend on the recipe alone.
OF_A_RUN = frozenset({Trait.NO_JOINT_TRANSFORM, Trait.ONE_PROCESS, Trait.CPU})


class Needs:
    """Metadata of a key: the traits without which it would have no effect or would be invalid.

    Args:
        values: only these values require them; None means every value that is written or differs
            from the default.
        free: values that require nothing.
    """

    def __init__(
        self, *traits: Trait, values: tuple[Any, ...] | None = None, free: tuple[Any, ...] = ()
    ) -> None:
        self.traits = traits
        self.values = values
        self.free = free

    def of(self, value: Any) -> tuple[Trait, ...]:
        """Return the traits that a value requires."""
        is_free = value is None or value in self.free
        is_free = is_free or (self.values is not None and value not in self.values)
        return () if is_free else self.traits


class Settings(BaseModel):
    """A table of a recipe: strict (no unknown keys, no type coercion) and immutable."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)

    # Traits that all of its keys require.
    needs: ClassVar[tuple[Trait, ...]] = ()

    @property
    def traits(self) -> frozenset[Trait]:
        """The traits that it provides."""
        return frozenset()


class KindSettings(Settings):
    """The settings of one kind. `kind` is its name in recipes and artefacts, declared as
    `kind: Literal["window"] = "window"`. Never rename it or reuse it for something else."""

    kind: str = ""


def kind_of(settings: type[BaseModel]) -> str:
    return str(settings.model_fields["kind"].default)


def keys_of(settings: type[BaseModel], table: str) -> dict[str, Any]:
    """Return the type of each key of a settings class, including nested ones, by path."""
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
    """Import and return the object with a dotted name."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def traits_where(conditions: Mapping[Trait, object]) -> frozenset[Trait]:
    return frozenset(trait for trait, holds in conditions.items() if holds)


S = TypeVar("S", bound=Settings)


class Kinds(dict[str, type[S]]):
    """A table of kinds, which is also the type of a recipe's table: `Annotated[Base, KINDS]`.

    The names of built-in kinds cannot be reassigned, because published versions refer to them.

    Args:
        default: the kind if none is given; by default the first one.
    Raises: RecipeError: a name is that of a built-in kind.
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
                    raise ValueError(f"{settings.__name__} and {self[name].__name__} share a name.")
                self[name] = settings
        self.own.update(self)
        self.default: str | None = None if required else default or next(iter(self.own))

    # Whether a kind's name can be written instead of a table.
    is_short: ClassVar[bool] = False

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __setitem__(self, kind: str, settings: type[S]) -> None:
        if self.own.get(kind, settings) is not settings:
            raise RecipeError(
                f"The kind {kind!r} is the built-in {self.own[kind].__name__}; give "
                f"{settings.__name__} another name."
            )
        chooser = settings.model_fields.get(self.chooser)
        if chooser is None or kind not in get_args(chooser.annotation):
            raise RecipeError(
                f"{settings.__name__} is registered as {kind!r}; add {self.chooser}: "
                f"Literal[{kind!r}] = {kind!r} to it."
            )
        super().__setitem__(kind, settings)

    def of(self, values: Any) -> S:
        """Validate a table's values. Raises: pydantic.ValidationError, ValueError."""
        if isinstance(values, Settings):
            return values  # type: ignore[return-value]
        if self.is_short and isinstance(values, str):
            values = {self.chooser: values}
        if not isinstance(values, Mapping):
            return next(iter(self.values())).model_validate(values)  # raises: not a table
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
        """Return the values with abbreviations expanded."""
        return values

    def class_of(self, values: Mapping[str, Any]) -> type[S] | None:
        """Return the settings class that the values select, or None."""
        return self.get(values.get(self.chooser, self.default))

    def fields_of(self, values: Mapping[str, Any]) -> set[str]:
        """Return the keys of the class that the values select; empty if they are invalid."""
        try:
            settings = self.class_of(self.completed(values))
        except (TypeError, ValueError):
            return set()
        return set() if settings is None else set(settings.model_fields)

    def every(self) -> list[type[S]]:
        """Return all settings classes, without duplicates."""
        return list(dict.fromkeys(self.values()))

    def types_of_keys(self, path: str, table: str) -> dict[str, Any]:
        """Return the type of each key of all kinds, by path.

        Args:
            path: the table's path; if `is_short`, it and the kinds' keys are keys of `table`.
        """
        parent = table if self.is_short else path
        types: dict[str, Any] = {}
        for settings in self.every():
            types = {**keys_of(settings, parent), **types}
        types.pop(f"{parent}.{self.chooser}")
        return {path if self.is_short else f"{path}.{self.chooser}": Literal[tuple(self)], **types}

    def unknown(self, key: str, settings: type[S], name: str) -> str:
        """Return a clause about a key that the selected settings do not have."""
        users = [repr(kind) for kind, each in self.items() if key in each.model_fields]
        chooser = f"{self.table}.{self.chooser}"
        if not users:
            return unknown_key([self.table, key], list(settings.model_fields))
        return (
            f"{self.table}.{key} is used only with {chooser} = {' or '.join(users)}, but it is "
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
    """Return a sentence for each key, "table.key", whose needs are not met.

    Args:
        written: keys, "table.key", that the user wrote; these are checked even if they have the
            default value.
    """
    sentences = {}
    for name, table in tables.items():
        for key, field in type(table).model_fields.items():
            path, value = f"{name}.{key}", getattr(table, key)
            required = _required(table, field, value, is_written=path in written)
            missing = [trait for trait in required if trait not in has]
            if missing:
                sentences[path] = (
                    f"{path} is {shown(value)}, which needs {missing[0].value}; change that, or "
                    f"leave {path} out."
                )
    return sentences


def _required(
    table: BaseModel, field: FieldInfo, value: Any, *, is_written: bool
) -> Iterator[Trait]:
    """Yield the traits that a key of a table requires."""
    if is_written:
        yield from getattr(table, "needs", ())
    is_set = is_written or value != field.get_default(call_default_factory=True)
    for each in field.metadata:
        if isinstance(each, Needs) and (is_set or each.values is not None):
            yield from each.of(value)
