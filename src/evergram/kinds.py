"""Kinds: a room's closed list of things of one sort, such as its encoders, each with its settings.

A room's `kinds.py` holds a settings model for each kind and one table of them, {kind: settings}.
Recipes take their choices, keys and defaults from these tables; artefacts hold the kind's name. To
add a kind from outside the package, put its settings into the table:
`ESTIMATORS["window"] = WindowSettings`.

No `kinds.py` imports torch: a settings model imports its class when it builds an object, so that a
recipe is checked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from evergram.errors import RecipeError


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


class KindSettings(BaseModel):
    """The settings of one kind: its keys in a recipe's table, with their types and defaults.

    A key that two kinds of one table share must have the same type and default in both; otherwise
    a recipe that chooses the later of the two is refused.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)

    # The name in recipes and artefacts: never reused for another thing, never renamed.
    kind: ClassVar[str]


S = TypeVar("S", bound=KindSettings)


class Kinds(dict[str, type[S]]):
    """A table of kinds. The package's own keep their names, as published versions hold these.

    Raises: RecipeError: a name is a kind's of the package, or a key's type is not known.
    """

    def __init__(self, own: Mapping[str, type[S]]) -> None:
        super().__init__(own)
        self.own: dict[str, type[S]] = dict(own)
        for settings in own.values():
            _refuse_unknown_types(settings)

    def __setitem__(self, kind: str, settings: type[S]) -> None:
        if self.own.get(kind, settings) is not settings:
            raise RecipeError(
                f"The kind {kind!r} is the package's own {self.own[kind].__name__}; give "
                f"{settings.__name__} another name."
            )
        _refuse_unknown_types(settings)
        super().__setitem__(kind, settings)


def _refuse_unknown_types(settings: type[KindSettings]) -> None:
    """Raises: RecipeError: a type of a key is not imported where the class is written."""
    if settings.model_rebuild(raise_errors=False) is False:
        raise RecipeError(
            f"A key of {settings.__name__} has a type that {settings.__module__} does not know; "
            "import the types of its keys there, outside of `if TYPE_CHECKING`."
        )


def table_of(*settings: type[S]) -> Kinds[S]:
    """Return {kind: settings}. Raises: ValueError: two have one kind. RecipeError: as `Kinds`."""
    table = {each.kind: each for each in settings}
    if len(table) < len(settings):
        raise ValueError(f"Two of {', '.join(s.__name__ for s in settings)} have the same kind.")
    return Kinds(table)


def kinds_where(table: Mapping[str, type[S]], name: str, value: object = True) -> tuple[str, ...]:
    """Return the kinds whose class attribute `name` is `value`, in the table's order."""
    return tuple(kind for kind, each in table.items() if getattr(each, name) == value)
