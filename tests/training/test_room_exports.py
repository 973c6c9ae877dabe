"""What the rooms of training, releasing and evaluation name as public is there, and no more."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

ROOMS = ["training", "releasing", "evaluation"]


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_there_and_is_the_rooms_own(room: str) -> None:
    module = importlib.import_module(f"evergram.{room}")
    assert dir(module) == module.__all__ == sorted(module.__all__)
    assert module.__doc__
    for name in module.__all__:
        public = getattr(module, name)
        assert public.__name__ == name
        assert public.__module__.startswith(f"evergram.{room}.")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize("room", ROOMS)
def test_importing_a_room_does_not_load_torch(room: str) -> None:
    code = f"import sys, evergram.{room}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
