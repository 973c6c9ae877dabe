"""The command `evergram`: parse, call, print. Nothing is decided here.

Read in this order:

1. `app`: the app, its groups, and the order of its help. `old_names`: names before the groups.
   `options`: what several commands share. `printing`: results, as a table or as JSON.
   `failures`: the sentence and the exit code of each error.
2. Commands of the top level: `models` (demo, train, upgrade, compare, diagnose),
   `starting` (init), `preparing` (prepare), `evaluations` (evaluate), `tuning` (tune), `serve`,
   and the folder `reproduction` (reproduce).
3. A file or a folder for each group: `lineage/`, `consumers`, `stores`, `vectors/`.

Each command imports what it calls when it is called, so that `evergram --help` does not wait for
torch.
"""

from __future__ import annotations

import sys

from evergram.cli import (
    consumers,
    evaluations,
    lineage,
    models,
    preparing,
    reproduction,
    serve,
    starting,
    stores,
    tuning,
    vectors,
)
from evergram.cli.app import app
from evergram.cli.failures import INTERRUPTED, error_line, sentence_and_code, warnings_on_stderr
from evergram.cli.old_names import with_new_names
from evergram.cli.options import refuse_unshared
from evergram.collectives import is_first_process

__all__ = ["app", "main"]

# The files and folders whose import adds their commands to the app.
_COMMANDS = (
    *(consumers, evaluations, lineage, models, preparing),
    *(reproduction, serve, starting, stores, tuning, vectors),
)


def main() -> None:
    """Run the command; an error becomes one line on stderr and an exit code of docs/commands.md."""
    try:
        arguments, renamed = with_new_names(sys.argv[1:])
        if renamed and is_first_process():
            sys.stderr.write(f"note: {renamed}\n")
        refuse_unshared(arguments)
        with warnings_on_stderr():
            code = app(args=arguments, standalone_mode=False)
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
