"""Objects with files or connections, of which each process opens its own."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

_alive: WeakSet[Reopened] = WeakSet()
# What a forked process got from its parent: closing it would end the parent's connections.
_inherited: list[dict[str, Any]] = []
_lock = threading.RLock()


class Reopened:
    """An object that another process opens for itself, by what `__reduce__` returns.

    So it can be pickled, for a spawned process or another machine, and after a fork it is opened
    again at its first use.
    """

    @abstractmethod
    def __reduce__(self) -> tuple[Any, ...]:
        """Return a function and its arguments, which open the same; perhaps attributes to set."""

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        self = super().__new__(cls)
        _alive.add(self)
        return self

    def __copy__(self) -> Self:
        """Return a copy that shares the files and connections."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    if not TYPE_CHECKING:  # It would hide misspelt attributes.

        def __getattr__(self, name: str) -> Any:
            with _lock:
                if "_reopened_by" in vars(self):
                    again = reopened(vars(self)["_reopened_by"])
                    del vars(self)["_reopened_by"]
                    vars(self).update(vars(again))
            return object.__getattribute__(self, name)


def reopened(by: Reopened | tuple[Any, ...]) -> Any:
    """Open an object once more, given it or what its `__reduce__` returned."""
    function, arguments, *state = by if isinstance(by, tuple) else by.__reduce__()
    again = function(*arguments)
    for attributes in state:
        vars(again).update(attributes)
    return again


def _forget_inherited() -> None:
    """Leave the files and connections of the parent alone, in a process that was just forked."""
    global _lock
    _lock = threading.RLock()
    for each in list(_alive):
        # One that was being opened, or cannot be, must not keep the others from being forgotten.
        with suppress(Exception):
            by = vars(each).get("_reopened_by") or each.__reduce__()
            _inherited.append(dict(vars(each)))
            vars(each).clear()
            vars(each)["_reopened_by"] = by


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)
