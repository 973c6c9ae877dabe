"""The command: parse, call, print."""

from __future__ import annotations

import sys

from evergram.cli import consumers, lineages, models, releases, serve, stores, vectors
from evergram.cli.failures import INTERRUPTED, told, warnings_told
from evergram.cli.options import app

__all__ = [
    "app",
    "consumers",
    "lineages",
    "main",
    "models",
    "releases",
    "serve",
    "stores",
    "vectors",
]


def main() -> None:
    """Entry point: an error is one line on stderr, and an exit code of docs/commands.md."""
    try:
        with warnings_told():
            code = app(standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        sentence, code = told(error)
        if sentence:
            sys.stderr.write(f"error: {sentence}\n")
    if code == INTERRUPTED:
        sys.stderr.write("interrupted; the lineage is as it was\n")
    if code:
        sys.exit(code)
