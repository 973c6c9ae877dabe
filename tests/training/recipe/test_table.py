"""A table whose keys depend on a kind."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from evergram.kinds import KindSettings
from evergram.training.recipe.table import KindTable


class RoundSettings(KindSettings):
    """A shape without corners."""

    kind = "round"
    radius: int = 1


class SquareSettings(KindSettings):
    """A shape with four corners."""

    kind = "square"
    side: int = 2


class ShapeTable(KindTable):
    """A table that chooses among two shapes."""

    kinds: ClassVar[Any] = {"round": RoundSettings, "square": SquareSettings}
    kind: str = "round"
    colour: str = "red"


def table_with(settings: type[KindSettings]) -> type[KindTable]:
    """`ShapeTable` with a third kind."""

    class Wider(ShapeTable):
        kinds: ClassVar[Any] = {**ShapeTable.kinds, "third": settings}

    return Wider


def test_a_table_has_the_keys_of_every_kind_and_chosen_those_of_one() -> None:
    table = ShapeTable.of({"kind": "square", "side": 5, "radius": 3})
    assert table.chosen == SquareSettings(side=5)
    assert ShapeTable.of({}).chosen == RoundSettings(radius=1)
    assert type(table).keys_with({"kind": "square"}) == {"kind", "colour", "side"}


def test_unknown_kinds_and_keys_are_refused_and_nothing_is_converted() -> None:
    for values in ({"kind": "oval"}, {"height": 1}, {"radius": "1"}, {"colour": 3}):
        with pytest.raises(ValidationError):
            ShapeTable.of(values)


def test_a_kind_whose_key_means_another_thing_elsewhere_is_refused() -> None:
    class Clashing(KindSettings):
        """Its radius is of another type than that of `RoundSettings`."""

        kind = "third"
        radius: float = 1.0

    class Coloured(KindSettings):
        """Its colour is the table's own key."""

        kind = "third"
        colour: str = "red"

    with pytest.raises(TypeError, match="'third' has a key 'radius' of another type or default"):
        table_with(Clashing).with_kinds()
    with pytest.raises(TypeError, match="'third' has a key 'colour', and so has its table"):
        table_with(Coloured).with_kinds()
