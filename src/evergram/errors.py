"""Everything that Evergram raises on purpose.

    EvergramError
    ├── DataError (ValueError)            a file or a row that cannot be used
    ├── RecipeError (ValueError)          a recipe's key or value
    ├── ShapeError (ValueError)           tensors that do not fit together
    ├── TrainingError (RuntimeError)      a run that cannot go on
    ├── DegradationError (RuntimeError)   a version that loses more than it may
    ├── StoreError (RuntimeError)         a store that cannot be reached, read or written
    ├── ServiceError (RuntimeError)       a service that cannot be reached, or that refuses
    └── LineageError (ValueError)         a lineage that cannot do what was asked
        ├── FormatError                   written by a later Evergram
        ├── IntegrityError                a file that is not what was published
        └── UnknownVersionError (LookupError)

A message says what was given, what is allowed and what to do, in one sentence.
"""


class EvergramError(Exception):
    """Base of all of them; the command prints it as one line and exits with 2."""


class DataError(EvergramError, ValueError):
    """A file or a row that cannot be used."""


class RecipeError(EvergramError, ValueError):
    """A recipe's key or value."""


class ShapeError(EvergramError, ValueError):
    """Tensors that do not fit together."""


class TrainingError(EvergramError, RuntimeError):
    """A run that cannot go on."""


class DegradationError(EvergramError, RuntimeError):
    """A version that loses more than it may."""


class StoreError(EvergramError, RuntimeError):
    """A store that cannot be reached, read or written."""


class ServiceError(EvergramError, RuntimeError):
    """A service that cannot be reached, or that refuses what was asked."""


class LineageError(EvergramError, ValueError):
    """A lineage that cannot do what was asked."""


class FormatError(LineageError):
    """Written in a format that this Evergram does not read."""


class IntegrityError(LineageError):
    """A file that is not what was published."""


class UnknownVersionError(LineageError, LookupError):
    """A version that the lineage does not have."""
