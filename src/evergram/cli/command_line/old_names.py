"""Names that commands had before they were grouped: each works for one release more.

They are no commands of the app, so no page of help shows them: `main` replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence

from evergram.cli.command_line.words import command_at

# The words of a command line before, and those that take their place.
RENAMED = {
    "versions": "lineage list",
    **{name: f"lineage {name}" for name in ("check", "label", "promote", "withdraw", "retire")},
    "consumers": "consumer list",
    **{f"consumer-{name}": f"consumer {name}" for name in ("add", "pin", "token", "remove")},
    "probe": "consumer probe",
    **{name: f"store {name}" for name in ("fill", "backfill")},
    **{
        name: f"vectors {name}"
        for name in ("align", "transform", "import", "export", "export-transform", "encode")
    },
    "plan-migration": "vectors plan-migration",
}


def with_new_names(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return a command line with today's name of its command.

    Returns:
        the arguments, and, where the name was an old one, a sentence that says the new one.
    """
    words, place = list(arguments), command_at(arguments)
    if place is None or words[place] not in RENAMED:
        return words, None
    old, new = words[place], RENAMED[words[place]]
    words[place : place + 1] = new.split()
    return words, (
        f"'evergram {old}' is now 'evergram {new}'; the old name works in this release, and not "
        "in the next."
    )
