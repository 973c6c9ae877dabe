"""One writer at a time: the lock of a lineage, and the replacement of its record in one step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from filelock import Timeout
from safetensors import SafetensorError

from evergram.atomic_files import make_folder, remove_tree, write_text
from evergram.errors import LineageError
from evergram.file_lock import file_lock
from evergram.lineage.disk.lineage_record import LineageRecord, read_record
from evergram.lineage.disk.path_check import check_parts
from evergram.lineage.disk.permissions import file_mode
from evergram.lineage.remote.mirror import RECORD, Remote
from evergram.system_errors import reason_and_remedy


@contextmanager
def writing(path: Path, remote: Remote | None = None) -> Iterator[None]:
    """Hold the lock of a lineage.

    Args:
        path: its folder, or its mirror.
        remote: if `path` is a mirror, where the lineage lives; its lock is held, too.

    Raises: LineageError: another process holds it, or something cannot be written. IntegrityError:
        a symbolic link leads out of the folder.
    """
    where = path if remote is None else remote.address
    try:
        path.mkdir(parents=True, exist_ok=True)
        check_parts(path)
        with (
            file_lock(path / ".lock", timeout=0, mode=file_mode(path)),
            nullcontext() if remote is None else remote.transaction(),
        ):
            yield
    except Timeout:
        raise LineageError(
            f"Another process is publishing to {where} or changing it; wait for it and try again."
        ) from None
    except (OSError, SafetensorError) as error:
        raise LineageError(f"{where} cannot be written: {_reason(error)}.") from error


def _reason(error: OSError | SafetensorError) -> str:
    # An error of safetensors has the system's words in its text.
    system = error if isinstance(error, OSError) else OSError(str(error))
    return reason_and_remedy(system, "the lineage is as it was")


def write_record(path: Path, record: LineageRecord, remote: Remote | None = None) -> None:
    """Replace `lineage.json` by one rename, and one upload: readers see the old one or the new."""
    write_text(path / RECORD, record.to_json(), file_mode(path))
    if remote is not None:
        remote.commit()


def unchanged(path: Path, opened: LineageRecord, where: str, *, labels: bool) -> LineageRecord:
    """Return the record as it is on disk, if it is still what it was.

    Args:
        opened: the record when the lineage was opened.
        where: what to call the lineage in an error.
        labels: whether labels and retired versions must be the same, too.
    Raises: LineageError: another process has changed it meanwhile.
    """
    file = path / RECORD
    current = read_record(file) if file.exists() else opened.model_copy(update={"versions": []})
    same = current.versions == opened.versions and current.withdrawn == opened.withdrawn
    if labels:
        same = same and (current.labels, current.retired) == (opened.labels, opened.retired)
    if not same:
        newest = current.versions[-1] if current.versions else "none"
        raise LineageError(
            f"{where} has changed since it was opened (its newest version is {newest}); open it "
            "again, or run the command again."
        )
    return current


def clear_left(path: Path, record: LineageRecord) -> None:
    """Remove folders that are not of a published version: a killed publication left them."""
    for parent in (path / "versions", path / "embeddings"):
        make_folder(parent, file_mode(path))
        for left in parent.iterdir():
            if not (left.name.isdecimal() and int(left.name) in record.versions):
                remove_tree(left)
