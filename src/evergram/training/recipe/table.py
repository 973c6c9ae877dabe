"""The base of every table of a recipe, and of those whose keys depend on a kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, create_model, model_validator

from evergram.kinds import KindSettings


class RecipeTable(BaseModel):
    """A table of a recipe: unknown keys are refused, values are not converted, nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def keys_with(cls, values: Mapping[str, Any]) -> set[str]:
        """Return every key that may stand in a table with these values."""
        return set(cls.model_fields)


class KindTable(RecipeTable):
    """A table in which one key chooses a kind, and the others are the table's or the kinds' own.

    A class as it is written has the table's own keys; `with_kinds` is the model with every kind's
    keys beside them, so that a recipe with all of them, as lineages keep it, is readable whatever
    it chooses. `used_keys` refuses keys that the chosen kind does not use.
    """

    # The kinds that there are, by name, and the key that chooses among them.
    kinds: ClassVar[Mapping[str, type[KindSettings]]]
    chooser: ClassVar[str] = "kind"
    # The table's own keys, once the kinds' are beside them.
    own_keys: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def with_kinds(cls) -> type[Self]:
        """Return the model with the keys of every kind that its table of kinds has now.

        Raises: TypeError: two kinds, or a kind and the table, disagree about a key.
        """
        written = cls.__base__ if cls.own_keys else cls
        return cast(type[Self], _with_keys(written, tuple(cls.kinds.items())))

    @classmethod
    def keys_with(cls, values: Mapping[str, Any]) -> set[str]:
        kind = values.get(cls.chooser)
        settings = cls.kinds.get(kind) if isinstance(kind, str) else None
        return {*cls.own_keys, *(settings.model_fields if settings else ())}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the table of these values. Raises: pydantic.ValidationError."""
        return cls.with_kinds().model_validate(values)

    @property
    def chosen(self) -> KindSettings:
        """The settings of the chosen kind."""
        settings = self.kinds[getattr(self, self.chooser)]
        return settings(**{name: getattr(self, name) for name in settings.model_fields})

    @model_validator(mode="after")
    def _the_kind_agrees(self) -> Self:
        _ = self.chosen  # runs the kind's own checks
        return self


@lru_cache
def _with_keys(
    table: type[KindTable], kinds: tuple[tuple[str, type[KindSettings]], ...]
) -> type[KindTable]:
    """`KindTable.with_kinds`; one class for the same kinds."""
    fields: dict[str, Any] = {}
    for kind, settings in kinds:
        for name, field in settings.model_fields.items():
            if name in table.model_fields:
                raise TypeError(f"The kind {kind!r} has a key {name!r}, and so has its table.")
            if name in fields and repr(fields[name][1]) != repr(field):
                raise TypeError(
                    f"The kind {kind!r} has a key {name!r} of another type or default than "
                    "another kind; give it another name."
                )
            fields[name] = (field.annotation, field)
    choices = Literal[tuple(kind for kind, _ in kinds)]  # type: ignore[valid-type]
    chooser: Any = (choices, table.model_fields[table.chooser].default)
    model = create_model(
        table.__name__,
        __base__=table,
        __module__=table.__module__,
        __doc__=table.__doc__,
        **{table.chooser: chooser},
        **fields,
    )
    model.own_keys = frozenset(table.model_fields)
    return model


def _is_metric(value: str) -> str:
    if not re.fullmatch(r"(recall|ndcg|map)@[1-9]\d{0,5}", value):
        raise ValueError(
            "it must be recall@K, ndcg@K or map@K with K from 1 to 999999, such as 'recall@20'"
        )
    return value


Metric = Annotated[str, AfterValidator(_is_metric)]
