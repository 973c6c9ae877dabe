"""The command `evergram`: parse, call, print. Nothing is decided here.

`app` has the groups, the order of the help and how a command is declared, `options` what several
commands share, `printing` results as a table or JSON, and `failures` the sentence and the exit code
of each error. The other files have the commands.

Each command imports what it calls when it is called, so that `evergram --help` does not wait for
torch.
"""

from __future__ import annotations

import sys

from evergram.cli import failures, lineages, models, serve, stores, vectors
from evergram.cli.app import app as app
from evergram.cli.app import log_format_of, parser, with_json_first
from evergram.collectives import is_first_process
from evergram.errors import reason_and_remedy
from evergram.log_lines import set_log_format, write_line

__all__ = ["main"]

# The files whose import adds their commands to the app.
_COMMANDS = (lineages, models, serve, stores, vectors)


def main() -> None:
    """Run the command; an error becomes one line on stderr and an exit code of docs/commands.md."""
    with failures.lasting_streams() as failure:
        code = _exit_code()
        if not code and (error := failure()) is not None:
            code = failures.REFUSED
            sentence = f"stdout: {reason_and_remedy(error)}; the command itself is done."
            sys.stderr.write(failures.error_line(sentence, code))
    if code:
        sys.exit(code)


def _exit_code() -> int:
    """Run the command, say what went wrong, and return the exit code."""
    try:
        arguments = with_json_first(sys.argv[1:])
        set_log_format(log_format_of(arguments))
        with failures.warnings_on_stderr():
            code: int = parser()(args=arguments, standalone_mode=False) or 0
    except KeyboardInterrupt:
        code = failures.INTERRUPTED
    except Exception as error:
        sentence, code = failures.sentence_and_code(error)
        if sentence:
            sys.stderr.write(failures.error_line(sentence, code))
    if code == failures.INTERRUPTED and is_first_process():
        write_line("interrupted", "interrupted; the lineage is as it was", level="error")
    return code
