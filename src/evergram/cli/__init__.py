"""The command: parse, call, print."""

from __future__ import annotations

import sys

from evergram.cli import consuming, embeddings, lineages, models, operating, serving, storing
from evergram.cli.options import app
from evergram.errors import EvergramError

__all__ = [
    "app",
    "consuming",
    "embeddings",
    "lineages",
    "main",
    "models",
    "operating",
    "serving",
    "storing",
]


def main() -> None:
    """Entry point: an error of ours is one line on stderr and exit code 2."""
    try:
        app()
    except EvergramError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'a file'}: {error.strerror or error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the lineage is as it was\n")
        sys.exit(130)
