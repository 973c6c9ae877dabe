"""A table whose keys depend on a kind."""

from __future__ import annotations

import json
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

    for clashing, message in (
        (
            Clashing,
            "'third' cannot be chosen: it has a key 'radius' of another type or default "
            "than the kind 'round' has; give the key of Clashing another name",
        ),
        (Coloured, "'third' cannot be chosen: it has a key 'colour' which is a key of the table"),
    ):
        table = table_with(clashing)
        # The others can be chosen as before.
        assert table.of({"radius": 3}).chosen == RoundSettings(radius=3)
        assert table.of({"colour": "blue"}).model_dump()["colour"] == "blue"
        with pytest.raises(ValidationError, match=message):
            table.of({"kind": "third"})


def test_keys_of_kinds_from_outside_are_dumped_where_their_kind_is_chosen() -> None:
    assert ShapeTable.of({}).model_dump() == {"kind": "round", "colour": "red", "radius": 1}
    dumped = ShapeTable.of({"kind": "square"}).model_dump_json()
    assert json.loads(dumped) == {"kind": "square", "colour": "red", "side": 2}
    assert ShapeTable.of(json.loads(dumped)).chosen == SquareSettings()
