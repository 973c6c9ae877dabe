"""Whether a lineage, or the list of its consumers, has changed."""

from __future__ import annotations

from pathlib import Path

RECORD, CONSUMERS = "lineage.json", "consumers.json"
Mark = tuple[object, ...]


class Watch:
    """Looks at the two files by which every change of a lineage becomes visible.

    Args:
        place: a folder, or an fsspec address such as `s3://bucket/shop`.
    """

    def __init__(self, place: str | Path) -> None:
        from evergram.lineage.remote.addresses import filesystem, local_folder

        folder = local_folder(place)
        # None for an address elsewhere.
        self.folder = None if folder is None else folder.resolve()
        self._remote = None if folder is not None else filesystem(str(place))

    def look(self) -> tuple[Mark, Mark]:
        """Marks of the lineage and of its consumers; another one where it has changed.

        Raises: OSError and a driver's own: it cannot be reached.
        """
        return self._mark(RECORD), self._mark(CONSUMERS)

    def _mark(self, name: str) -> Mark:
        if self.folder is not None:
            try:
                found = (self.folder / name).stat()
            except FileNotFoundError:
                return ()
            return found.st_mtime_ns, found.st_size, found.st_ino
        assert self._remote is not None
        files, path = self._remote
        files.invalidate_cache()
        try:
            return (files.cat_file(f"{path.rstrip('/')}/{name}"),)
        except FileNotFoundError:
            return ()
