"""The command `evergram`: it parses options, calls the library and prints, without other logic.

`app` defines the groups and the order of the help, `options` the declaration of commands and their
shared options, `printing` the output as tables or JSON, and `failures` the message and exit code of
each error. The other files have the commands.

Each command imports what it needs when it is called, so that `evergram --help` does not load torch.
"""

from __future__ import annotations

import sys

from evergram.cli import failures, lineages, models, serve, stores, vectors
from evergram.cli.app import app as app
from evergram.cli.app import commands_of, log_format_of, parser, with_json_first
from evergram.collectives import is_first_process
from evergram.errors import reason_and_remedy
from evergram.log_lines import set_log_format, write_line

__all__ = ["main"]

# Importing these files adds their commands to the app.
_COMMANDS = (lineages, models, serve, stores, vectors)


def main() -> None:
    """Run the command. Errors give one line on stderr and an exit code, see docs/commands.md."""
    with failures.lasting_streams() as failure:
        code = _exit_code()
        if not code and (error := failure()) is not None:
            code = failures.REFUSED
            sentence = f"stdout: {reason_and_remedy(error)}; the command itself has finished."
            sys.stderr.write(failures.error_line(sentence, code))
    if code:
        sys.exit(code)


def _exit_code() -> int:
    """Run the command, report an error, and return the exit code."""
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
    if code in (failures.INTERRUPTED, failures.TERMINATED) and is_first_process():
        to_repeat = "store" in [each.name for each in commands_of(sys.argv[1:])]
        rest = "run the same command again" if to_repeat else "the lineage is unchanged"
        write_line("interrupted", f"interrupted; {rest}", level="error")
    return code
