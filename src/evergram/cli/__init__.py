"""The command `evergram`: parse, call, print. Nothing is decided here.

Read in this order:

1. `app`: the app, its groups, and the order of its help. `command_line`: options before a command,
   and completion by a shell. `options`: what several commands share. `printing`:
   results as a table or JSON. `failures`: the sentence and the exit code of each error.
   `standard_streams`: why no pipe or encoding ends a run.
2. Commands of the top level: `models` (demo, train, upgrade, compare, diagnose),
   `starting` (init), `preparing` (prepare), `evaluations` (evaluate), `tuning` (tune), `serve`,
   and the folder `reproduction` (reproduce).
3. A file or a folder for each group: `lineage/`, `consumers`, `stores/`, `vectors/`.

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
from evergram.cli.command_line.completion import words_of_bash
from evergram.cli.command_line.words import log_format_of, parser
from evergram.cli.failures import (
    INTERRUPTED,
    REFUSED,
    error_line,
    sentence_and_code,
    warnings_on_stderr,
)
from evergram.cli.options import refuse_unshared
from evergram.cli.standard_streams import lasting_streams
from evergram.collectives import is_first_process
from evergram.log_lines import set_log_format, write_line
from evergram.system_errors import reason_and_remedy

__all__ = ["app", "main"]

# The files and folders whose import adds their commands to the app.
_COMMANDS = (
    *(consumers, evaluations, lineage, models, preparing),
    *(reproduction, serve, starting, stores, tuning, vectors),
)


def main() -> None:
    """Run the command; an error becomes one line on stderr and an exit code of docs/commands.md."""
    with lasting_streams() as failure:
        code = _exit_code()
        if not code and (error := failure()) is not None:
            code = REFUSED
            sentence = f"stdout: {reason_and_remedy(error)}; the command itself is done."
            sys.stderr.write(error_line(sentence, code))
    if code:
        sys.exit(code)


def _exit_code() -> int:
    """Run the command, say what went wrong, and return the exit code."""
    try:
        set_log_format(log_format_of(sys.argv[1:]))
        arguments = sys.argv[1:]
        refuse_unshared(arguments)
        with warnings_on_stderr(), words_of_bash():
            code: int = parser()(args=arguments, standalone_mode=False) or 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        sentence, code = sentence_and_code(error)
        if sentence:
            sys.stderr.write(error_line(sentence, code))
    if code == INTERRUPTED and is_first_process():
        write_line("interrupted", "interrupted; the lineage is as it was", level="error")
    return code
