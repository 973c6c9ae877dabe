"""Suggest a known name for an unknown one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches


def did_you_mean(
    name: object, known: Iterable[object], *, write: Callable[[str], str] = repr
) -> str:
    """Return " (did you mean 'x'?)" to append to a clause; "" if no known name is similar.

    The comparison ignores case.

    Args:
        write: formats a known name.
    """
    names = {str(each).casefold(): str(each) for each in known}
    matches = get_close_matches(str(name).casefold(), names, n=1)
    return f" (did you mean {write(names[matches[0]])}?)" if matches else ""
