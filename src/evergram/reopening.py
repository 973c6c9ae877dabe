"""Objects with open files or connections that each process must open for itself."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

_alive: WeakSet[Reopened] = WeakSet()
# State inherited by a forked process, kept because closing it would end the parent's connections.
_inherited: list[dict[str, Any]] = []
_lock = threading.RLock()


class Reopened:
    """An object that other processes open again with what `__reduce__` returns: after unpickling,
    in a spawned process or on another machine, and at its first use after a fork."""

    @abstractmethod
    def __reduce__(self) -> tuple[Any, ...]:
        """Return a function and arguments that open it again, optionally attributes to set."""

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        self = super().__new__(cls)
        _alive.add(self)
        return self

    def __copy__(self) -> Self:
        """Return a copy that shares the files and connections."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    if not TYPE_CHECKING:  # mypy would accept misspelt attributes

        def __getattr__(self, name: str) -> Any:
            with _lock:
                if "_reopened_by" in vars(self):
                    new = reopened(vars(self)["_reopened_by"])
                    del vars(self)["_reopened_by"]
                    vars(self).update(vars(new))
            return object.__getattribute__(self, name)


def reopened(by: Reopened | tuple[Any, ...]) -> Any:
    """Open a new instance, given an object or the result of its `__reduce__`."""
    function, arguments, *state = by if isinstance(by, tuple) else by.__reduce__()
    new = function(*arguments)
    for attributes in state:
        vars(new).update(attributes)
    return new


def _forget_inherited() -> None:
    """In a forked process, detach all objects from the parent's files and connections."""
    global _lock
    _lock = threading.RLock()
    for each in list(_alive):
        # Continue with the others if one was only half opened.
        with suppress(Exception):
            by = vars(each).get("_reopened_by") or each.__reduce__()
            _inherited.append(dict(vars(each)))
            vars(each).clear()
            vars(each)["_reopened_by"] = by


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)
