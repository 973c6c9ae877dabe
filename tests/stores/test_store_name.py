"""The rule for the name of a store in a database."""

from __future__ import annotations

import pytest

from evergram.errors import DataError
from evergram.stores.store_name import checked_name


@pytest.mark.parametrize("name", ["a", "_emb", "9", "Select-From_2", "x" * 40])
def test_a_name_is_returned_as_it_is(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a b", 'a"b', "a/b", "é", "a\n", "x" * 41])
def test_another_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(DataError, match="at most 40 ASCII letters, digits, _ and -, and no -"):
        checked_name(name)
