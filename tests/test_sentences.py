"""What is said of a wrong name, a wrong value or the system's refusal, and as which line."""

from __future__ import annotations

import errno
import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evergram.did_you_mean import did_you_mean
from evergram.errors import RecipeError, reason_and_remedy
from evergram.log_lines import (
    LineFormatter,
    LogFormat,
    line_of,
    log_to_stderr,
    set_log_format,
)
from evergram.training.recipe import Recipe
from evergram.validation import sentence_of

ESTIMATORS = ("exact", "sampled", "sagram", "sogram")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("sogran", " (did you mean 'sogram'?)"),
        ("SOGRAM", " (did you mean 'sogram'?)"),
        ("xyzzy", ""),
    ],
)
def test_the_nearest_name_is_meant(name: object, answer: str) -> None:
    assert did_you_mean(name, ESTIMATORS) == answer


@given(
    st.sampled_from(("factorization", "lightgcn", "temperature")),
    st.integers(0, 10**6),
    st.sampled_from(["", "q", "z"]),
)
def test_one_wrong_letter_in_a_long_name_is_forgiven(name: str, at: int, letter: str) -> None:
    at %= len(name)
    wrong = name[:at] + letter + name[at + 1 :]
    assert did_you_mean(wrong, {"factorization", "lightgcn", "temperature"}) == (
        f" (did you mean '{name}'?)"
    )


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "No space left on device; free some space, or choose a path on another disk",
        ),
        (
            OSError("Error writing bytes to file. Detail: [errno 30] Read-only file system"),
            "Read-only file system; choose a writable path",
        ),
        (OSError("torn."), "torn; check that the file"),
    ],
)
def test_the_reason_and_the_remedy(error: OSError, sentence: str) -> None:
    assert reason_and_remedy(error).startswith(sentence)


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
        ({"inner": 3}, "inner is 3; it must be a table of keys and values."),
        ({"inner": {"size": 0}}, "inner.size is 0; it must be at least 1."),
        ({"inner": {"size": 1.5}}, "inner.size is 1.5; it must be an integer."),
        ({"rate": 2.0}, "rate is 2.0; it must be at most 1, or 'auto'."),
        ({"many": ["a"]}, "many is ['a']; it must be a list of at least 2."),
        ({"kinds": [{}, {"size": "x"}]}, "kinds[1].size is 'x'; it must be an integer."),
        (
            {"inner": {"sise": 1}},
            "the key inner.sise is unknown; allowed here are: size, name (did you mean inner.size?",
        ),
        (
            {"sides": {"qery": {}}},
            "the key sides.qery is unknown; allowed here are: query, candidate (did you mean sid",
        ),
        ({"zzz": 1}, "the key zzz is unknown; allowed here are: inner, rate, kinds, names, "),
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
    assert sentence_of(broken.value, Needs).startswith("it is not valid JSON (EOF while parsing")


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


@pytest.fixture
def as_json() -> Iterator[None]:
    set_log_format(LogFormat.json)
    yield
    set_log_format(LogFormat.text)


def record(level: int, message: str, error: bool = False) -> logging.LogRecord:
    try:
        raise ValueError("why")
    except ValueError:
        info = sys.exc_info() if error else None
    return logging.LogRecord("evergram.serving", level, "f.py", 1, message, ("x",), info)


@pytest.mark.usefixtures("as_json")
def test_for_programs_it_has_the_time_the_level_the_event_and_the_figures() -> None:
    line = line_of("progress", "½\n", before="x", at=0.5, n=3, loss=math.nan, path=Path("a"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "info",
        "event": "progress",
        "message": "½\n",
        "n": 3,
        "loss": None,
        "path": "a",
    }


@pytest.mark.parametrize(
    ("level", "name", "event"),
    [
        (logging.INFO, "info", "service"),
        (logging.WARNING, "warning", "warning"),
        (logging.CRITICAL, "error", "service"),
    ],
)
@pytest.mark.usefixtures("as_json")
def test_a_record_of_a_log_is_a_line_with_its_logger(level: int, name: str, event: str) -> None:
    formatter = LineFormatter("%(message)s", "service")
    line = json.loads(formatter.format(record(level, "of %s")))
    assert (line["level"], line["event"], line["message"]) == (name, event, "of x")
    assert line["logger"] == "evergram.serving"
    assert "traceback" not in line


def test_the_log_of_a_service_is_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, ours = logging.getLogger(), logging.getLogger("evergram")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(ours, "level", ours.level)
    log_to_stderr()
    ours.info("Loaded.")
    assert capsys.readouterr().err.endswith(" Loaded.\n")
