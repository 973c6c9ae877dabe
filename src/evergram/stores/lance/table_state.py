"""The state of a LanceDB table: its version, and which table of that name it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TableState:
    """The state of a table at one moment.

    Args:
        version: LanceDB's number, which every write raises.
        manifest: inode, time of writing in ns and bytes of that version's manifest, which LanceDB
            writes once: a table that is dropped and made anew has the numbers of the one before,
            and other manifests. None if it is not there.
    """

    version: int
    manifest: tuple[int, int, int] | None


def read_state(folder: Path, version: int) -> TableState:
    """Return the state of a table, at the price of a look at one file.

    Args:
        folder: of the table, NAME.lance.
        version: of the table, as LanceDB says it.
    """
    # Newer tables count down, so that the latest is the first in a listing.
    for name in (f"{2**64 - 1 - version:020}", str(version)):
        try:
            status = (folder / "_versions" / f"{name}.manifest").stat()
        except OSError:
            continue
        return TableState(version, (status.st_ino, status.st_mtime_ns, status.st_size))
    return TableState(version, None)
