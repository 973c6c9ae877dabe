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


def as_list(value: Any) -> Any:
    """Return a list as it is, and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


# Types of numbers in settings.
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
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


def table_of(*settings: type[S]) -> dict[str, type[S]]:
    """Return {kind: settings}. Raises: ValueError: two have one kind."""
    table = {each.kind: each for each in settings}
    if len(table) < len(settings):
        raise ValueError(f"Two of {', '.join(s.__name__ for s in settings)} have the same kind.")
    return table


def kinds_where(table: Mapping[str, type[S]], name: str, value: object = True) -> tuple[str, ...]:
    """Return the kinds whose class attribute `name` is `value`, in the table's order."""
    return tuple(kind for kind, each in table.items() if getattr(each, name) == value)
