"""What pydantic finds wrong with a value, said in one sentence without pydantic's grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

# Characters of a wrong value that are repeated in an error.
SHOWN = 80

# By pydantic's type of an error, what the value must be.
WANTED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda c: f"greater than {_plain(c['gt'])}",
    "greater_than_equal": lambda c: f"at least {_plain(c['ge'])}",
    "less_than": lambda c: f"less than {_plain(c['lt'])}",
    "less_than_equal": lambda c: f"at most {_plain(c['le'])}",
    "finite_number": lambda _: "a finite number",
    "float_type": lambda _: "a number",
    "float_parsing": lambda _: "a number",
    "int_type": lambda _: "a whole number",
    "int_parsing": lambda _: "a whole number",
    "int_parsing_size": lambda _: "a whole number of at most 64 bits",
    "int_from_float": lambda _: "a whole number",
    "bool_type": lambda _: "true or false",
    "bool_parsing": lambda _: "true or false",
    "string_type": lambda _: "text",
    "string_too_short": lambda c: f"text of at least {c['min_length']} characters",
    "string_too_long": lambda c: f"text of at most {c['max_length']} characters",
    "string_pattern_mismatch": lambda c: f"text of the form {c['pattern']}",
    "literal_error": lambda c: f"{'one of ' if ' or ' in c['expected'] else ''}{c['expected']}",
    "list_type": lambda _: "a list",
    "tuple_type": lambda _: "a list",
    "set_type": lambda _: "a list",
    "too_short": lambda c: f"a list of at least {c['min_length']}",
    "too_long": lambda c: f"a list of at most {c['max_length']}",
    "dict_type": lambda _: "a table of names and values",
    "mapping_type": lambda _: "a table of names and values",
    "model_type": lambda _: "a table of names and values",
    "model_attributes_type": lambda _: "a table of names and values",
    "dataclass_type": lambda _: "a table of names and values",
    "none_required": lambda _: "left out",
}


def sentence_of(
    error: ValidationError, model: type[BaseModel] | None = None, name: str = "it"
) -> str:
    """The first problem with a value, in one sentence with its full stop.

    Args:
        error: what `model.model_validate` raised, or a check of one value alone.
        model: gives the names of keys, and what else is allowed in place of an unknown one.
        name: what to call the value as a whole.
    """
    problems = error.errors(include_url=False)
    first = problems[0]
    names, kind = _place(first["loc"], model)
    key = ".".join(names) or name
    if first["type"] == "json_invalid":
        return f"it is no JSON ({_clause(str(first.get('ctx', {}).get('error', first['msg'])))})."
    if first["type"] in ("value_error", "assertion_error"):
        said = _clause(str(first["msg"]).removeprefix("Value error, "))
        if said.startswith("it must "):
            return f"{key} is {shown(first['input'])}; {said}."
        # A check of a whole table names the keys itself; one of a single value does not know its.
        return f"{said}." if isinstance(first["input"], dict) else f"{key}: {said}."
    if first["type"] == "missing":
        return f"the key {key} is missing."
    if first["type"] == "extra_forbidden" or first["loc"][-1:] == ("[key]",):
        return _unknown(names, kind, first)
    # Where a value may be of several kinds, each of them says why it is not one.
    same = [p for p in problems if _place(p["loc"], model)[0] == names]
    whole = min(same, key=lambda p: len(p["loc"]))
    wanted = list(dict.fromkeys(_wanted(p, within=len(p["loc"]) > len(whole["loc"])) for p in same))
    return f"{key} is {shown(whole['input'])}; it must be {', or '.join(wanted)}."


def shown(value: Any) -> str:
    """A value as a person wrote it, cut where it is long."""
    if value is None or isinstance(value, bool):
        text = {None: "nothing", True: "true", False: "false"}[value]
    else:
        text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _wanted(problem: Any, *, within: bool) -> str:
    """What a value must be; `within`: what each of a list must be."""
    say = WANTED.get(problem["type"])
    if say is not None:
        wanted = say(problem.get("ctx") or {})
    else:  # a kind of error that nobody has met yet is still said without the grammar around it
        said = str(problem["msg"]).removeprefix("Input ").removeprefix("should ")
        said = said.removeprefix("Value error, ").removeprefix("it must be ")
        wanted = _clause(said).removeprefix("be ").removeprefix("a valid ")
    return f"a list of which each is {wanted}" if within else wanted


def _plain(limit: float) -> str:
    """2147483648 and not 2.14748e+09."""
    return f"{limit:.0f}" if limit == int(limit) else f"{limit:g}"


def _clause(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _unknown(names: Sequence[str], kind: Any, problem: Any) -> str:
    key = ".".join(names)
    if problem["type"] == "extra_forbidden":
        allowed = list(kind.model_fields) if _is_model(kind) else []
    else:  # a name in a table of names: pydantic says which are expected
        expected = str((problem.get("ctx") or {}).get("expected", ""))
        allowed = [part.strip("' ") for part in expected.replace(" or ", ", ").split(",")]
    near = get_close_matches(names[-1], allowed, n=1)
    if not near:
        return f"the key {key} is unknown; allowed here are: {', '.join(allowed)}."
    meant = ".".join([*names[:-1], near[0]])
    return (
        f"the key {key} is unknown; allowed here are: {', '.join(allowed)}; did you mean {meant}?"
    )


def _place(location: Sequence[int | str], model: type[BaseModel] | None) -> tuple[list[str], Any]:
    """The keys that lead to a location, without the names that pydantic gives to the parts of a
    union, and the model that holds the last of them."""
    names: list[str] = []
    kind: Any = model
    holder: Any = model
    for part in location:
        if isinstance(part, int):
            item = _item(kind)
            if item is not None:  # a list of tables: which of them matters
                names[-1] += f"[{part}]"
                kind = item
        elif _is_model(kind):
            names.append(part)
            holder = kind
            field = kind.model_fields.get(part)
            kind = None if field is None else field.annotation
        elif get_origin(kind) is dict and part != "[key]":
            names.append(part)
            kind = get_args(kind)[1]
    return names, holder


def _item(kind: Any) -> Any:
    """The model that a list holds; None where it holds plain values."""
    if get_origin(kind) in (Union, UnionType):
        found = [_item(k) for k in get_args(kind)]
        return next((k for k in found if k is not None), None)
    if get_origin(kind) in (list, tuple):
        return next((k for k in get_args(kind) if _is_model(k)), None)
    return None


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
