"""The package `reproduction` is found in a checkout, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

import evergram
from evergram.cli.reproduction.checkout import checkout, reproduction
from evergram.errors import DataError

ROOT = Path(__file__).parents[3]


def test_it_is_that_of_the_installed_source() -> None:
    assert checkout() == ROOT
    assert reproduction("row").NOT_BUILT == "not built yet"


def test_a_wheel_finds_it_in_the_working_directory_or_says_where_it_is_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evergram, "__file__", str(tmp_path / "site" / "evergram" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="in a checkout of Evergram's repository"):
        checkout()
    monkeypatch.chdir(ROOT)
    assert checkout() == ROOT
