"""The base of every table of a recipe, and of those whose keys depend on a kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
    model_validator,
)

from evergram.kinds import KindSettings


class RecipeTable(BaseModel):
    """A table of a recipe: unknown keys are refused, values are not converted, nothing changes."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)

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
    # By kind, why it cannot be chosen: one of its keys is another thing elsewhere in the table.
    clashes: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def with_kinds(cls) -> type[Self]:
        """Return the model with the keys of every kind that its table of kinds has now.

        A kind with a key that the table has, or an earlier kind with another type or default, adds
        no keys, and a recipe that chooses it is refused.
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

    @model_validator(mode="before")
    @classmethod
    def _the_kind_does_not_clash(cls, values: Any) -> Any:
        kind = values.get(cls.chooser) if isinstance(values, dict) else None
        if isinstance(kind, str) and kind in cls.clashes:
            raise ValueError(cls.clashes[kind])
        return values

    @model_serializer(mode="wrap")
    def _without_keys_from_outside(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that only kinds from outside the package have, none of them chosen:
        what a program has put into the table must not change the recipes that do not use it."""
        chosen = getattr(self, self.chooser)
        kept = set(self.own_keys or type(self).model_fields)
        for kind, settings in self.kinds.items():
            if kind == chosen or settings.__module__.startswith("evergram."):
                kept |= settings.model_fields.keys()
        return {key: value for key, value in dump(self).items() if key in kept}

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
    owners: dict[str, str] = {}
    clashes: dict[str, str] = {}
    for kind, settings in kinds:
        clash = _clash(settings, table, fields, owners)
        if clash is not None:
            clashes[kind] = f"the kind {kind!r} cannot be chosen: {clash}"
            continue
        for name, field in settings.model_fields.items():
            fields[name] = (field.annotation, field)
            owners.setdefault(name, kind)
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
    model.clashes = clashes
    return model


def _clash(
    settings: type[KindSettings],
    table: type[KindTable],
    fields: Mapping[str, Any],
    owners: Mapping[str, str],
) -> str | None:
    """Return why a kind's keys cannot stand beside the table's own and those of earlier kinds.

    Args:
        fields: the keys of earlier kinds, with their types and fields.
        owners: the kind that each of them is of.
    """
    for name, field in settings.model_fields.items():
        if name in table.model_fields:
            other = "which is a key of the table itself"
        elif name in fields and repr(fields[name][1]) != repr(field):
            other = f"of another type or default than the kind {owners[name]!r} has"
        else:
            continue
        return f"it has a key {name!r} {other}; give the key of {settings.__name__} another name"
    return None


def _is_metric(value: str) -> str:
    if not re.fullmatch(r"(recall|ndcg|map)@[1-9]\d{0,5}", value):
        raise ValueError(
            "it must be recall@K, ndcg@K or map@K with K from 1 to 999999, such as 'recall@20'"
        )
    return value


Metric = Annotated[str, AfterValidator(_is_metric)]
