"""Answer a name that is not known with the known one that was probably meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches

# The least likeness of two names: twice the letters in runs that both have, over all letters.
LIKENESS = 0.6


def did_you_mean(
    name: object,
    known: Iterable[object],
    *,
    write: Callable[[str], str] = repr,
    most: int = 1,
    likeness: float = LIKENESS,
) -> str:
    """Return " (did you mean 'x'?)" for the end of a clause; "" if no known name is near.

    Capital letters are compared as small ones.

    Args:
        write: how the sentence writes a known name.
        most: of the nearest names, say at most so many.
        likeness: the least that counts as near, from 0 to 1, as difflib's ratio.
    """
    names = {str(each).casefold(): str(each) for each in known}
    near = get_close_matches(str(name).casefold(), names, n=most, cutoff=likeness)
    if not near:
        return ""
    return f" (did you mean {' or '.join(sorted(write(names[each]) for each in near))}?)"
