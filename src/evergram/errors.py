"""The errors that Evergram raises.

    EvergramError
    ├── DataError (ValueError)            a file or a row cannot be used
    ├── RecipeError (ValueError)          a recipe has a wrong key or value
    ├── ShapeError (ValueError)           tensors do not fit together
    ├── TrainingError (RuntimeError)      a training run cannot continue
    ├── DegradationError (RuntimeError)   a version loses more than its limit allows
    ├── StoreError (RuntimeError)         a store cannot be reached, read or written
    ├── ServiceError (RuntimeError)       a service cannot be reached, or refuses a request
    └── LineageError (ValueError)         a lineage cannot do what was asked
        ├── FormatError                   a file was written by a later Evergram
        ├── IntegrityError                a file differs from what was published or saved
        └── UnknownVersionError (LookupError)   a lineage has no such version

Each message is one sentence: what was given, what is allowed, and what to do. `reason_and_remedy`
writes this for errors of the operating system.
"""

import errno
import os


class EvergramError(Exception):
    """Base class of all errors; the command prints one line and exits with status 2."""


class DataError(EvergramError, ValueError):
    """A file or a row cannot be used."""


class RecipeError(EvergramError, ValueError):
    """A recipe has a wrong key or value."""


class ShapeError(EvergramError, ValueError):
    """Tensors do not fit together."""


class TrainingError(EvergramError, RuntimeError):
    """A training run cannot continue."""


class DegradationError(EvergramError, RuntimeError):
    """A version loses more than its limit allows."""


class StoreError(EvergramError, RuntimeError):
    """A store cannot be reached, read or written."""


class ServiceError(EvergramError, RuntimeError):
    """A service cannot be reached, or refuses a request."""


class LineageError(EvergramError, ValueError):
    """A lineage cannot do what was asked."""


class FormatError(LineageError):
    """A file has a format that this version of Evergram cannot read."""


class IntegrityError(LineageError):
    """A file differs from what was published or saved."""


class UnknownVersionError(LineageError, LookupError):
    """A lineage has no such version."""


# What to do about an error of the operating system.
_REMEDIES = {
    errno.ENOSPC: "free some space, or choose a path on another disk",
    errno.EDQUOT: "free some space, or choose a path on another disk",
    errno.EFBIG: "raise the limit on file size (ulimit -f), or choose a path on another disk",
    errno.EACCES: "let this user read and write there, or choose another path",
    errno.EPERM: "let this user read and write there, or choose another path",
    errno.EROFS: "choose a writable path",
    errno.ENOENT: "create it first, or correct the name",
    errno.EEXIST: "remove it, or choose another path",
    errno.ENOTDIR: "a file is where a folder is needed: remove it, or choose another path",
    errno.EISDIR: "this is a folder: choose the path of a file",
    errno.ENOTEMPTY: "empty the folder, or choose another path",
    errno.ELOOP: "these symbolic links form a loop: give the path of the file itself",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EINVAL: "choose a file or folder on a local disk",
    errno.ENOSYS: "this file system does not support locks: choose a path on another",
    errno.ENOLCK: "this file system does not support locks: choose a path on another",
    errno.EBUSY: "wait until no other program uses it, or choose another path",
}


def clause_of(error: Exception) -> str:
    """Return an error's message in one line, without a full stop; or its type, if it has none."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def reason_and_remedy(error: OSError, consequence: str = "") -> str:
    """Return the reason of a system error and what to do, without a full stop.

    Args:
        consequence: a clause to put in between, such as "the lineage is unchanged".
    """
    # Arrow's errors have no errno, only the system's message.
    number = error.errno or next(
        (n for n in _REMEDIES if os.strerror(n).lower() in str(error).lower()), 0
    )
    reason = error.strerror or (os.strerror(number) if number else str(error))
    remedy = _REMEDIES.get(number, "check that the file can be read and written, and try again")
    if consequence:
        return f"{reason.rstrip('.')}; {consequence}. {remedy[0].upper()}{remedy[1:]}"
    return f"{reason.rstrip('.')}; {remedy}"
