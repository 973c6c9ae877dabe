"""Turn pydantic's validation errors into one sentence in plain words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from evergram.did_you_mean import did_you_mean

# Characters of a wrong value that a sentence repeats.
SHOWN = 80

# What the value must be, with pydantic's types of the error.
_REQUIREMENTS = {
    "greater than {gt}": "greater_than",
    "at least {ge}": "greater_than_equal",
    "less than {lt}": "less_than",
    "at most {le}": "less_than_equal",
    "a finite number": "finite_number",
    "a number": "float_type float_parsing",
    "a whole number": "int_type int_parsing int_from_float",
    "a whole number of at most 64 bits": "int_parsing_size",
    "true or false": "bool_type bool_parsing",
    "text": "string_type",
    "text of at least {min_length} characters": "string_too_short",
    "text of at most {max_length} characters": "string_too_long",
    "text of the form {pattern}": "string_pattern_mismatch",
    "a list": "list_type tuple_type set_type",
    "a list of at least {min_length}": "too_short",
    "a list of at most {max_length}": "too_long",
    "a table of names and values": "dict_type mapping_type model_type model_attributes_type "
    "dataclass_type",
    "left out": "none_required",
}
_BY_TYPE = {kind: words for words, kinds in _REQUIREMENTS.items() for kind in kinds.split()}


def sentence_of(
    error: ValidationError, model: type[BaseModel] | None = None, name: str = "it"
) -> str:
    """Return a sentence on the first problem of a value, with its full stop.

    Args:
        error: raised by `model.model_validate`, or by the validation of a single value.
        model: the model, whose keys the sentence names; None for a single value.
        name: how the sentence calls the value as a whole.
    """
    problems = error.errors(include_url=False)
    first = problems[0]
    names, kind = _place(first["loc"], model)
    key = ".".join(names) or name
    if first["type"] == "json_invalid":
        return f"it is no JSON ({_clause(str(first.get('ctx', {}).get('error', first['msg'])))})."
    if first["type"] in ("value_error", "assertion_error"):
        problem = _clause(str(first["msg"]).removeprefix("Value error, "))
        if problem.startswith("it must "):
            return f"{key} is {shown(first['input'])}; {problem}."
        # The validator of a table names the keys itself; that of a single value cannot.
        return f"{problem}." if isinstance(first["input"], dict) else f"{key}: {problem}."
    if first["type"] == "missing":
        return f"the key {key} is missing."
    if first["type"] == "extra_forbidden" or first["loc"][-1:] == ("[key]",):
        return _unknown(names, kind, first)
    # A value that may be of several kinds has one problem for each of them.
    same = [p for p in problems if _place(p["loc"], model)[0] == names]
    whole = min(same, key=lambda p: len(p["loc"]))
    required = dict.fromkeys(_required(p, element=len(p["loc"]) > len(whole["loc"])) for p in same)
    choices = [word for p in same for word in _choices(p)]
    meant = did_you_mean(whole["input"], choices) if isinstance(whole["input"], str) else ""
    return f"{key} is {shown(whole['input'])}; it must be {', or '.join(required)}{meant}."


def shown(value: Any) -> str:
    """Return a value as a person would write it, shortened where it is long."""
    if value is None or isinstance(value, bool):
        text = {None: "nothing", True: "true", False: "false"}[value]
    else:
        text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _choices(problem: Any) -> list[str]:
    """Return the texts that a value may be; none if the problem is not of a choice."""
    if problem["type"] != "literal_error":
        return []
    return re.findall(r"'([^']*)'", problem["ctx"]["expected"])


def _required(problem: Any, *, element: bool) -> str:
    """Return what a value must be; of an `element`, what each of its list must be."""
    limits = problem.get("ctx") or {}
    if problem["type"] in _BY_TYPE:
        shown_ = {k: _plain(v) if isinstance(v, int | float) else v for k, v in limits.items()}
        required = _BY_TYPE[problem["type"]].format_map(shown_)
    elif problem["type"] == "literal_error":
        required = f"{'one of ' if ' or ' in limits['expected'] else ''}{limits['expected']}"
    else:  # a type that is not listed: pydantic's own words, without the grammar around them
        message = str(problem["msg"]).removeprefix("Input ").removeprefix("should ")
        message = message.removeprefix("Value error, ").removeprefix("it must be ")
        required = _clause(message).removeprefix("be ").removeprefix("a valid ")
    return f"a list of which each is {required}" if element else required


def _plain(limit: float) -> str:
    """Return a number without an exponent: 2147483648, not 2.14748e+09."""
    return f"{limit:.0f}" if limit == int(limit) else f"{limit:g}"


def _clause(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def unknown_key(names: Sequence[str], allowed: Sequence[str]) -> str:
    """Return a clause on a key, given by the names that lead to it, that is none of the allowed."""
    meant = did_you_mean(names[-1], allowed, write=lambda name: ".".join([*names[:-1], name]))
    return f"the key {'.'.join(names)} is unknown; allowed here are: {', '.join(allowed)}{meant}"


def _unknown(names: Sequence[str], kind: Any, problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        allowed = list(getattr(kind, "model_fields", ()))
    else:  # a key of a dict: pydantic's message lists the expected ones
        expected = str((problem.get("ctx") or {}).get("expected", ""))
        allowed = [part.strip("' ") for part in expected.replace(" or ", ", ").split(",")]
    return f"{unknown_key(names, allowed)}."


def _place(location: Sequence[int | str], model: type[BaseModel] | None) -> tuple[list[str], Any]:
    """Return the keys that lead to a location, and the model that holds the last of them.

    pydantic's names of the members of a union are left out.
    """
    names: list[str] = []
    kind: Any = model
    holder: Any = model
    for part in location:
        models = _models(kind)
        if isinstance(part, int):
            if models:  # in a list of tables, the index says which
                names[-1] += f"[{part}]"
                kind = models[0]
        elif part == "[key]":  # the name before it is the problem, not what it leads to
            continue
        elif get_origin(kind) is dict:
            names.append(part)
            kind = get_args(kind)[1]
        elif models:
            names.append(part)
            holder = next((each for each in models if part in each.model_fields), models[0])
            field = holder.model_fields.get(part)
            kind = None if field is None else field.annotation
            for table in getattr(field, "metadata", ()):
                if hasattr(table, "every"):  # a table of kinds
                    kind = Union[tuple(table.every())]  # noqa: UP007
    return names, holder


def _models(kind: Any) -> list[Any]:
    """Return the models that a value of a type may be, or hold."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for each in get_args(kind) for model in _models(each)]
