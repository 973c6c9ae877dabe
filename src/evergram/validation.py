"""Convert pydantic's validation errors to one plain sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from evergram.did_you_mean import did_you_mean

SHOWN = 80  # maximum characters of an invalid value in a sentence

# What a value must be, and pydantic's error types.
_REQUIREMENTS = {
    "greater than {gt}": "greater_than",
    "at least {ge}": "greater_than_equal",
    "less than {lt}": "less_than",
    "at most {le}": "less_than_equal",
    "a finite number": "finite_number",
    "a number": "float_type float_parsing",
    "an integer": "int_type int_parsing int_from_float",
    "an integer of at most 64 bits": "int_parsing_size",
    "true or false": "bool_type bool_parsing",
    "a string": "string_type",
    "a string of at least {min_length} characters": "string_too_short",
    "a string of at most {max_length} characters": "string_too_long",
    "a string that matches {pattern}": "string_pattern_mismatch",
    "a list": "list_type tuple_type set_type",
    "a list of at least {min_length}": "too_short",
    "a list of at most {max_length}": "too_long",
    "a table of keys and values": "dict_type mapping_type model_type model_attributes_type "
    "dataclass_type",
    "left out": "none_required",
}
_BY_TYPE = {kind: words for words, kinds in _REQUIREMENTS.items() for kind in kinds.split()}


def sentence_of(
    error: ValidationError, model: type[BaseModel] | None = None, name: str = "it"
) -> str:
    """Return a sentence about the first problem, with a full stop.

    Args:
        error: raised by `model.model_validate`, or by the validation of a single value.
        model: the model, or None for a single value.
        name: the sentence's subject if the problem has no key.
    """
    problems = error.errors(include_url=False)
    first = problems[0]
    names, kind = _key_path(first["loc"], model)
    key = ".".join(names) or name
    if first["type"] == "json_invalid":
        reason = _clause(str(first.get("ctx", {}).get("error", first["msg"])))
        return f"it is not valid JSON ({reason})."
    if first["type"] in ("value_error", "assertion_error"):
        problem = _clause(str(first["msg"]).removeprefix("Value error, "))
        if problem.startswith("it must "):
            return f"{key} is {shown(first['input'])}; {problem}."
        # A table's validator names the keys itself, a single value's cannot.
        return f"{problem}." if isinstance(first["input"], dict) else f"{key}: {problem}."
    if first["type"] == "missing":
        return f"the key {key} is missing."
    if first["type"] == "extra_forbidden" or first["loc"][-1:] == ("[key]",):
        return _unknown(names, kind, first)
    # A value that may have several types has one problem for each.
    same = [p for p in problems if _key_path(p["loc"], model)[0] == names]
    whole = min(same, key=lambda p: len(p["loc"]))
    required = dict.fromkeys(_required(p, element=len(p["loc"]) > len(whole["loc"])) for p in same)
    choices = [word for p in same for word in _choices(p)]
    meant = did_you_mean(whole["input"], choices) if isinstance(whole["input"], str) else ""
    return f"{key} is {shown(whole['input'])}; it must be {', or '.join(required)}{meant}."


def shown(value: Any) -> str:
    """Return a value as a user would write it, shortened if it is long."""
    if value is None or isinstance(value, bool):
        text = {None: "nothing", True: "true", False: "false"}[value]
    else:
        text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _choices(problem: Any) -> list[str]:
    """Return the allowed strings of a value; empty unless the problem is a wrong choice."""
    if problem["type"] != "literal_error":
        return []
    return re.findall(r"'([^']*)'", problem["ctx"]["expected"])


def _required(problem: Any, *, element: bool) -> str:
    """Return what a value must be; for an `element` of a list, what all elements must be."""
    limits = problem.get("ctx") or {}
    if problem["type"] in _BY_TYPE:
        texts = {k: _plain(v) if isinstance(v, int | float) else v for k, v in limits.items()}
        required = _BY_TYPE[problem["type"]].format_map(texts)
    elif problem["type"] == "literal_error":
        required = f"{'one of ' if ' or ' in limits['expected'] else ''}{limits['expected']}"
    else:  # another type: pydantic's message without its first words
        message = str(problem["msg"]).removeprefix("Input ").removeprefix("should ")
        message = message.removeprefix("Value error, ").removeprefix("it must be ")
        required = _clause(message).removeprefix("be ").removeprefix("a valid ")
    return f"a list in which each element is {required}" if element else required


def _plain(limit: float) -> str:
    """Format a number without an exponent: 2147483648, not 2.14748e+09."""
    return f"{limit:.0f}" if limit == int(limit) else f"{limit:g}"


def _clause(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def unknown_key(names: Sequence[str], allowed: Sequence[str]) -> str:
    """Return a clause about an unknown key, given by the names on its path."""
    hint = did_you_mean(names[-1], allowed, write=lambda name: ".".join([*names[:-1], name]))
    return f"the key {'.'.join(names)} is unknown; allowed here are: {', '.join(allowed)}{hint}"


def _unknown(names: Sequence[str], kind: Any, problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        allowed = list(getattr(kind, "model_fields", ()))
    else:  # a key of a dict: pydantic's message lists the expected ones
        expected = str((problem.get("ctx") or {}).get("expected", ""))
        allowed = [name.strip("' ") for name in expected.replace(" or ", ", ").split(",")]
    return f"{unknown_key(names, allowed)}."


def _key_path(
    location: Sequence[int | str], model: type[BaseModel] | None
) -> tuple[list[str], Any]:
    """Return the keys on the path to a location, without pydantic's names for members of a union,
    and the model that has the last key."""
    names: list[str] = []
    kind: Any = model
    holder: Any = model
    for part in location:
        models = _models(kind)
        if isinstance(part, int):
            if models:  # an index in a list of tables
                names[-1] += f"[{part}]"
                kind = models[0]
        elif part == "[key]":  # the problem is the preceding name itself
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
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for each in get_args(kind) for model in _models(each)]
