"""A name that is nearly a known one is answered with it, and one that is like none is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.did_you_mean import did_you_mean

ESTIMATORS = ("exact", "sampled", "sagram", "sogram", "storm")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("sogran", " (did you mean 'sogram'?)"),
        ("SOGRAM", " (did you mean 'sogram'?)"),
        ("xyzzy", ""),
        ("", ""),
        (3, ""),
    ],
)
def test_the_nearest_name_is_meant(name: object, answer: str) -> None:
    assert did_you_mean(name, ESTIMATORS) == answer


def test_several_may_be_meant_and_are_written_as_asked() -> None:
    assert did_you_mean("sigram", ESTIMATORS, most=2, write=str.upper) == (
        " (did you mean SAGRAM or SOGRAM?)"
    )
    assert did_you_mean("10", [1, 100]) == " (did you mean '100'?)"


def one_edit_away(name: str) -> st.SearchStrategy[str]:
    """The name with a letter left out, doubled or changed."""
    places = st.integers(0, len(name) - 1)
    changed = st.tuples(places, st.sampled_from("qz")).map(
        lambda edit: name[: edit[0]] + edit[1] + name[edit[0] + 1 :]
    )
    return places.map(lambda i: name[:i] + name[i + 1 :]) | changed


@given(st.sampled_from(("factorization", "lightgcn", "temperature")).flatmap(one_edit_away))
def test_one_wrong_letter_in_a_long_name_is_forgiven(name: str) -> None:
    known = {"factorization", "lightgcn", "temperature"}
    assert any(f"'{each}'" in did_you_mean(name, known) for each in known)
