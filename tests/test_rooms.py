"""What each room says is public."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

import evergram

ROOMS = [m.name for m in iter_modules(evergram.__path__, "evergram.") if m.ispkg]
PUBLIC = [name for name in ROOMS if hasattr(import_module(name), "__all__")]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_once_and_the_room_says_what_it_is_for(name: str) -> None:
    room = import_module(name)
    assert room.__doc__
    assert len(set(room.__all__)) == len(room.__all__)
    for public in room.__all__:
        assert getattr(room, public) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = room.nothing


def test_rooms_that_have_kinds_are_public() -> None:
    assert {"evergram.encoders", "evergram.tasks"} <= set(PUBLIC)
