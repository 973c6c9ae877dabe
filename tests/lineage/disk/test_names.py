"""The one rule of names."""

from __future__ import annotations

import pytest

from evergram.errors import LineageError
from evergram.lineage.disk.names import check_name, is_name


@pytest.mark.parametrize("text", ["a", "0", "Shop-1.eu_v", "x" * 128])
def test_letters_digits_and_three_signs_are_a_name(text: str) -> None:
    assert is_name(text)


@pytest.mark.parametrize("text", ["", ".a", "-a", "_a", "a b", "a/b", "a@b", "a\n", "é", "x" * 129])
def test_another_text_is_refused_with_the_rule(text: str) -> None:
    assert not is_name(text)
    with pytest.raises(LineageError, match=r"cannot be the name of a label: a name is made of"):
        check_name(text, "a label")
