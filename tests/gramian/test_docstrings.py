"""The examples in the room's docstrings run, and its exports exist."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import evergram.gramian as room

MODULES = [f"evergram.gramian.{m.name}" for m in pkgutil.iter_modules(room.__path__)]


@pytest.mark.parametrize("name", ["evergram.gramian", *MODULES])
def test_the_examples_of_a_docstring_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_penalty_has_examples() -> None:
    name = "evergram.gramian.gramian_penalty.gramian_penalty"
    assert doctest.testmod(importlib.import_module(name)).attempted >= 10


def test_every_export_is_there_documented_and_listed() -> None:
    assert sorted(room.__all__) == room.__all__
    for name in room.__all__:
        assert getattr(room, name) is not None
        assert name in (room.__doc__ or "") or name in (
            "GramianErrors",
            "Population",
            "exact_moment",
            "orthogonal_penalty",
        )
