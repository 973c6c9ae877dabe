"""Whatever pydantic refuses is reported in plain words."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evergram.errors import RecipeError
from evergram.lineage.consumers.record import Probe
from evergram.training.recipe import Recipe
from evergram.validation import sentence_of

# What pydantic's messages are made of.
GRAMMAR = re.compile(
    r"Input|should be|valid (integer|number|string|list|dict)|unable to parse|instance of|\[type="
    r"|type=|constrained|literal\[|function-|pydantic|Extra inputs|Field required|Value error"
)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    size: Annotated[int, Field(ge=1, lt=2**31)] = 1
    name: str = "a"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    inner: Inner = Inner()
    rate: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    kinds: list[Inner] = []
    names: dict[Literal["query", "candidate"], str] = {}
    sides: dict[Literal["query", "candidate"], Inner] = {}
    many: Annotated[list[str], Field(min_length=2)] = ["a", "b"]
    flag: bool = False


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"inner": 3}, "inner is 3; it must be a table of names and values."),
        ({"inner": {"size": 0}}, "inner.size is 0; it must be at least 1."),
        ({"inner": {"size": 2**31}}, "inner.size is 2147483648; it must be less than 2147483648."),
        ({"inner": {"size": 1.5}}, "inner.size is 1.5; it must be a whole number."),
        ({"inner": {"name": None}}, "inner.name is nothing; it must be text."),
        ({"rate": 2.0}, "rate is 2.0; it must be at most 1, or 'auto'."),
        ({"flag": "yes"}, "flag is 'yes'; it must be true or false."),
        ({"many": ["a"]}, "many is ['a']; it must be a list of at least 2."),
        ({"kinds": [{}, {"size": "x"}]}, "kinds[1].size is 'x'; it must be a whole number."),
        (
            {"inner": {"sise": 1}},
            "the key inner.sise is unknown; allowed here are: size, name (did you mean inner.size?",
        ),
        (
            {"sides": {"qery": {}}},
            "the key sides.qery is unknown; allowed here are: query, candidate (did you mean sid",
        ),
        ({"zzz": 1}, "the key zzz is unknown; allowed here are: inner, rate, kinds, names, "),
        (
            {"names": {"qery": "a"}},
            "the key names.qery is unknown; allowed here are: query, candidate (did you mean nam",
        ),
        ({"inner": {"name": ["x" * 200]}}, "inner.name is ['xxxxxxxxxxxx"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_must_be(values: Any, sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(values)
    text = sentence_of(caught.value, Outer)
    assert text.startswith(sentence)
    assert len(text) < 200
    assert not GRAMMAR.search(text)


def test_a_missing_key_and_invalid_json_are_named() -> None:
    class Needs(BaseModel):
        path: str

    with pytest.raises(ValidationError) as missing:
        Needs.model_validate({})
    assert sentence_of(missing.value, Needs) == "the key path is missing."
    with pytest.raises(ValidationError) as broken:
        Needs.model_validate_json("{")
    assert sentence_of(broken.value, Needs).startswith("it is no JSON (EOF while parsing")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just({"x": 1}),
    st.lists(st.one_of(st.integers(-2, 2), st.text(max_size=2), st.none()), max_size=3),
)  # fmt: skip
KEYS = [
    (table, name)
    for table, field in Recipe.model_fields.items()
    for name in (
        field.annotation.model_fields
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        else [""]
    )
]


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(KEYS), VALUES)
def test_no_key_of_a_recipe_lets_the_grammar_through(key: tuple[str, str], value: Any) -> None:
    table, name = key
    values: dict[str, Any] = {"data": {"kind": "synthetic"}}
    values[table] = {**values.get(table, {}), name: value} if name else value
    try:
        Recipe.of(values)
    except RecipeError as error:
        message = str(error)
        assert message.startswith("The recipe: ")
        assert not GRAMMAR.search(message.replace(repr(value), "")), message
        assert "\n" not in message


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(Probe.model_fields)), VALUES)
def test_no_field_of_a_probe_lets_the_grammar_through(name: str, value: Any) -> None:
    values = {"model": "a", "data": "b", "side": "query", "metric": "auc", name: value}
    try:
        Probe.model_validate(values)
    except ValidationError as error:
        sentence = sentence_of(error, Probe)
        assert not GRAMMAR.search(sentence.replace(repr(value), "")), sentence
