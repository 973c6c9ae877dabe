"""The command `evergram`: parse, call, print. Nothing is decided here.

Read in this order:

1. `options`: the app, and what several commands share. `printing`: results, as a table or as JSON.
   `failures`: the sentence and the exit code of each error.
2. One file a group of commands: `models` (train, upgrade, diagnose, compare, demo),
   `evaluations` (evaluate, plan-migration), `preparing` (prepare, encode),
   `vectors` (align, transform, export-transform),
   `lineages`, `releases`, `consumers`, `stores`, `serve`, `tuning` (tune), and the folder
   `reproduction` (reproduce).

Each command imports what it calls when it is called, so that `evergram --help` does not wait for
torch.
"""

from __future__ import annotations

import sys

from evergram.cli import (
    consumers,
    evaluations,
    lineages,
    models,
    preparing,
    releases,
    reproduction,
    serve,
    stores,
    tuning,
    vectors,
)
from evergram.cli.failures import INTERRUPTED, error_line, sentence_and_code, warnings_on_stderr
from evergram.cli.options import app, refuse_unshared
from evergram.collectives import is_first_process

__all__ = ["app", "main"]

# The files and folders whose import adds their commands to the app.
_COMMANDS = (
    *(consumers, evaluations, lineages, models, preparing),
    *(releases, reproduction, serve, stores, tuning, vectors),
)


def main() -> None:
    """Run the command; an error becomes one line on stderr and an exit code of docs/commands.md."""
    try:
        refuse_unshared(sys.argv[1:])
        with warnings_on_stderr():
            code = app(standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        sentence, code = sentence_and_code(error)
        if sentence:
            sys.stderr.write(error_line(sentence))
    if code == INTERRUPTED and is_first_process():
        sys.stderr.write("interrupted; the lineage is as it was\n")
    if code:
        sys.exit(code)
