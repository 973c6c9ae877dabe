"""Changes of a lineage's labels and versions, each written as one new `lineage.json`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime

from evergram.errors import LineageError
from evergram.lineage.catalog import record_changes
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.consumers.registry import pinned_to
from evergram.lineage.disk.lineage_record import LineageRecord, Withdrawal
from evergram.lineage.locks.write_lock import unchanged, write_record, writing


class CatalogChanges:
    """Changes labels and versions on disk and in the opened catalog; see `Lineage` for each change.

    A change is made under the lineage's lock, and refused if another process has changed the
    lineage since the catalog was opened.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def label(self, name: str, version: int | str) -> None:
        """Put a label on a version, or move it there."""
        self._write(
            lambda record: record_changes.with_label(
                record, name, version, self._catalog.versions_with_embeddings
            )
        )

    def unlabel(self, name: str) -> None:
        """Remove a label to which no consumer is pinned."""

        def without(record: LineageRecord) -> LineageRecord:
            after = record_changes.without_label(record, name)
            left = sorted(self._pins(record).keys() - self._pins(after).keys())
            if left:
                raise LineageError(
                    f"The label {name!r} of {self._catalog.name} cannot be removed: pinned to it "
                    f"{'is' if len(left) == 1 else 'are'} {', '.join(left)}; they must go to "
                    "another version first."
                )
            return after

        self._write(without)

    def withdraw(self, version: int | str, reason: str) -> None:
        """Take the newest version back, and remove its files."""
        catalog = self._catalog
        number = catalog.resolve(version)
        if number != catalog.newest:
            raise LineageError(
                f"Only the newest version, {catalog.newest}, can be withdrawn, not {number}: later "
                "ones lead through it. 'evergram lineage retire' ends the reading of it."
            )
        if not reason.strip():
            raise LineageError("A withdrawal needs a reason; say why.")
        withdrawal = Withdrawal(
            fingerprint=catalog.manifest(number).fingerprint,
            reason=reason.strip(),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )

        def remove() -> None:
            for folder in (catalog.embeddings_folder(number), catalog.folder(number)):
                shutil.rmtree(folder, ignore_errors=True)
                if catalog.remote is not None:
                    catalog.remote.storage.remove(folder.relative_to(catalog.path).as_posix())

        self._write(
            lambda record: record_changes.without_newest(
                record, withdrawal, self._pins(record), catalog.versions_with_embeddings
            ),
            remove,
        )
        del catalog.manifests[number]

    def retire(self, version: int | str) -> None:
        """End the reading of a version that neither a label nor a consumer is on."""
        self._write(lambda record: record_changes.with_retired(record, version, self._pins(record)))

    def _write(
        self,
        change: Callable[[LineageRecord], LineageRecord],
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a changed record, and tidy up under the same lock, as another may publish after
        it."""
        catalog = self._catalog
        with writing(catalog.path, catalog.remote):
            before = unchanged(catalog.path, catalog.record, catalog.address, labels=True)
            after = change(before)
            write_record(catalog.path, after, catalog.remote)
            tidy()
        catalog.record = after

    def _pins(self, record: LineageRecord) -> dict[str, int]:
        """Return the version that each consumer would read by default if this were the record."""
        return pinned_to(self._catalog.address, lambda what: record_changes.resolve(record, what))
