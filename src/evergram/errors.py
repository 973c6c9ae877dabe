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

Each message is one sentence: what was given, what is allowed, and what to do.
"""


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
