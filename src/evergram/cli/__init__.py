"""The command `evergram`: parse, call, print. Nothing is decided here.

Read in this order:

1. `options`: the app, and what several commands share. `printing`: results, as a table or as JSON.
   `failures`: the sentence and the exit code of each error.
2. One file a group of commands: `models` (train, upgrade, evaluate, diagnose, compare, demo),
   `vectors` (align, transform), `lineages`, `releases`, `consumers`, `stores`, `serve`,
   `reproduce`, which runs `reproduction/` of a checkout (`checkout`).

Each command imports what it calls when it is called, so that `evergram --help` does not wait for
torch.
"""

from __future__ import annotations

import sys

from evergram.cli import consumers, lineages, models, releases, reproduce, serve, stores, vectors
from evergram.cli.failures import INTERRUPTED, sentence_and_code, warnings_on_stderr
from evergram.cli.options import app

__all__ = ["app", "main"]

# The files whose import adds their commands to the app.
_COMMANDS = (consumers, lineages, models, releases, reproduce, serve, stores, vectors)


def main() -> None:
    """Run the command; an error becomes one line on stderr and an exit code of docs/commands.md."""
    try:
        with warnings_on_stderr():
            code = app(standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        sentence, code = sentence_and_code(error)
        if sentence:
            sys.stderr.write(f"error: {sentence}\n")
    if code == INTERRUPTED:
        sys.stderr.write("interrupted; the lineage is as it was\n")
    if code:
        sys.exit(code)
