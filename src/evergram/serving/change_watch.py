"""Detect that a lineage, or the list of its consumers, has changed."""

from __future__ import annotations

from pathlib import Path

RECORD, CONSUMERS = "lineage.json", "consumers.json"
# Identifies one state of a file: two equal stamps mean that nothing was written in between.
FileStamp = tuple[object, ...]


class ChangeWatch:
    """Watches `lineage.json` and `consumers.json`, which every change of a lineage rewrites.

    Args:
        place: a folder, or an fsspec address such as `s3://bucket/shop`.
    """

    def __init__(self, place: str | Path) -> None:
        from evergram.lineage.remote_storage import filesystem, local_folder

        folder = local_folder(place)
        # None where the lineage is on another machine.
        self.folder: Path | None = None if folder is None else folder.resolve()
        self._remote = None if folder is not None else filesystem(str(place))

    def stamps(self) -> tuple[FileStamp, FileStamp]:
        """Return the stamps of the lineage and of its consumers, as they are now.

        Raises: OSError, or a remote driver's own error: the place cannot be reached.
        """
        return self._stamp(RECORD), self._stamp(CONSUMERS)

    def _stamp(self, name: str) -> FileStamp:
        """Return a file's time, length and inode; of a remote file its content.

        Not every remote place keeps times.
        """
        if self.folder is not None:
            try:
                status = (self.folder / name).stat()
            except FileNotFoundError:
                return ()
            return status.st_mtime_ns, status.st_size, status.st_ino
        assert self._remote is not None
        files, path = self._remote
        files.invalidate_cache()
        try:
            return (files.cat_file(f"{path.rstrip('/')}/{name}"),)
        except FileNotFoundError:
            return ()
