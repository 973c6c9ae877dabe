"""Answer a name that is not known with the known one that was probably meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches


def did_you_mean(
    name: object, known: Iterable[object], *, write: Callable[[str], str] = repr
) -> str:
    """Return " (did you mean 'x'?)" for the end of a clause; "" if no known name is near.

    Capital letters are compared as small ones.

    Args:
        write: how the sentence writes a known name.
    """
    names = {str(each).casefold(): str(each) for each in known}
    near = get_close_matches(str(name).casefold(), names, n=1)
    return f" (did you mean {write(names[near[0]])}?)" if near else ""
