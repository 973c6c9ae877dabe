"""Answer a name that is not known with the known one that was probably meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, ClassVar, NoReturn

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


def instead(name: str, guesses: Mapping[str, str], known: Iterable[object]) -> str:
    """Return the end of a sentence on a name that is not there: "; use …", a known one, or "".

    Args:
        guesses: by the pattern of a name, such as "from_*", what to use in place of it.
    """
    for pattern, use in guesses.items():
        if fnmatchcase(name, pattern):
            return f"; use {use}"
    return "" if name.startswith("_") else did_you_mean(name, known)


class _Guided(type):
    if not TYPE_CHECKING:  # It would hide misspelt attributes.

        def __getattr__(cls, name: str) -> NoReturn:
            known = [each for each in dir(cls) if not each.startswith("_")]
            use = instead(name, getattr(cls, "guesses", {}), known)
            text = f"{cls.__name__} has no attribute {name!r}{use}"
            raise AttributeError(text, name=name, obj=cls)


class Guided(metaclass=_Guided):
    """A class that answers a name from another library with its own.

    Args:
        guesses: as of `instead`.
    """

    guesses: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # It would hide misspelt attributes.

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):  # a property that raised
                return object.__getattribute__(self, name)
            return getattr(type(self), name)
