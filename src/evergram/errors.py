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

Each message is one sentence: what was given, what is allowed, and what to do. For an error of the
system, `reason_and_remedy` says it.
"""

import errno
import os


class EvergramError(Exception):
    """Base of all errors of Evergram; the command prints one as a line and exits with 2."""


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
    """A file was written in a format that this Evergram does not read."""


class IntegrityError(LineageError):
    """A file differs from what was published or saved."""


class UnknownVersionError(LineageError, LookupError):
    """A lineage has no such version."""


# What to do about an error of the system.
_REMEDIES = {
    errno.ENOSPC: "free some space, or name a place on another disk",
    errno.EDQUOT: "free some space, or name a place on another disk",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or name a place on another disk",
    errno.EACCES: "let this user read and write there, or name another place",
    errno.EPERM: "let this user read and write there, or name another place",
    errno.EROFS: "name a place that can be written to",
    errno.ENOENT: "make it first, or correct the name",
    errno.EEXIST: "remove it, or name another place",
    errno.ENOTDIR: "a file stands where a folder is needed: remove it, or name another place",
    errno.EISDIR: "a folder stands where a file is needed: name a file",
    errno.ENOTEMPTY: "empty the folder, or name another place",
    errno.ELOOP: "these links lead to each other: name the file itself",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EINVAL: "name a file or a folder of this machine's disk",
    errno.ENOSYS: "this file system has no locks: name a place on another",
    errno.ENOLCK: "this file system has no locks: name a place on another",
    errno.EBUSY: "wait until no other program uses it, or name another place",
}


def reason_and_remedy(error: OSError, meanwhile: str = "") -> str:
    """Return why the system refused and what to do, without a full stop.

    Args:
        meanwhile: said in between, such as "the lineage is as it was".
    """
    # Its number is in the text of an error of Arrow only.
    number = error.errno or next(
        (n for n in _REMEDIES if os.strerror(n).lower() in str(error).lower()), 0
    )
    reason = error.strerror or (os.strerror(number) if number else str(error))
    remedy = _REMEDIES.get(number, "see that this file can be read and written, and try again")
    if meanwhile:
        return f"{reason.rstrip('.')}; {meanwhile}. {remedy[0].upper()}{remedy[1:]}"
    return f"{reason.rstrip('.')}; {remedy}"
