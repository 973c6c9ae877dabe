"""A lineage: its versions, read as any of them, and every way to change it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor

from evergram.errors import LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.catalog import Catalog
from evergram.lineage.consumers import pinned_to
from evergram.lineage.fold_in import Missing
from evergram.lineage.id_lists import Lists
from evergram.lineage.locks import (
    refuse_unwritable,
    training_claim,
    unchanged,
    write_record,
    writing,
)
from evergram.lineage.publication import check_id_types, forget_lost, publish_version, read_lost
from evergram.lineage.publication_checks import check_artefact
from evergram.lineage.record import NEWEST, STABLE, LineageRecord, Withdrawal
from evergram.lineage.remote import training_note
from evergram.lineage.version_files import VersionReader
from evergram.lineage.view import View, view_of


class Lineage(Catalog):
    """A folder of versions, with the embeddings of the newest and of every version with a label.

    >>> from evergram import Lineage
    >>> lineage = Lineage.open("lineages/films")
    >>> [manifest.version for manifest in lineage.versions]
    [0, 1, 2]
    >>> ids, vectors = lineage.embeddings("candidate")  # of production, as stored
    >>> vectors.shape[1] == lineage.manifest(2).dim
    True

    A version becomes visible by one rename of `lineage.json`, and so does every change of labels.
    Files that a killed process left before that are not part of the lineage, and the next
    publication removes them. See `open` and `create`.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        if self.next_version:
            return type(self).open, (self.place,)
        return type(self).create, (self.place, self.name)  # nothing is published yet

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        readable = self.readable
        numbers = ", ".join(map(str, readable)) or "none"
        if len(readable) > 5:
            numbers = f"{readable[0]} to {readable[-1]} ({len(readable)} of them)"
        live = f", production {self.production}" if readable else ""
        return f"Lineage({self.name!r} at {self.address}, versions {numbers}{live})"

    # Reading a version as another.

    def view(self, version: int | str | None = None, source: int | str | None = None) -> View:
        """Return the stored embeddings of one version, read as another.

        Args:
            version: the version that they are read as; by default `source`, or else production.
            source: the version whose embeddings are stored; by default production, as in a
                service, or the newest to read a version after production.
        Raises: UnknownVersionError. LineageError: the version is retired, or later than source.
            IntegrityError: a file is not what was published.
        """
        return view_of(self, version, source)

    def fold_in(
        self,
        candidates: Lists,
        weights: Lists | None = None,
        version: int | str | None = None,
        *,
        values: Lists | None = None,
        missing: Missing = "error",
    ) -> Tensor:
        """Return the vectors of new queries, float32 [Q, D], from the candidates they met.

        `lineage.fold_in([12, 7])` is the vector of one query that met 12 and 7, [1, D].

        Args:
            version: that they are read as; production by default. They are computed from the
                candidates that `view` reads for this version.
            candidates, weights, values, missing: see `View.fold_in`, whose errors it raises too.
        Raises: UnknownVersionError.
        """
        return self.view(version).fold_in(candidates, weights, values, missing=missing)

    # Changes of labels and versions.

    def label(self, name: str, version: int | str) -> None:
        """Put a label on a version, or move it there; `stable` is the label of production.

        Raises: UnknownVersionError: no such version. LineageError: the name cannot be a label; the
            label is `stable` and the version's embeddings are not stored; or, as for all changes,
            another process has changed the lineage since it was opened, or is changing it.
        """
        stored = self.versions_with_embeddings
        self._write(lambda record: record.with_label(name, version, stored))

    def unlabel(self, name: str) -> None:
        """Remove a label. Raises: LineageError: there is none, or a consumer is pinned to it."""

        def without(record: LineageRecord) -> LineageRecord:
            after = record.without_label(name)
            left = sorted(self._pins(record).keys() - self._pins(after).keys())
            if left:
                raise LineageError(
                    f"The label {name!r} of {self.name} cannot be removed: pinned to it "
                    f"{'is' if len(left) == 1 else 'are'} {', '.join(left)}; they must go to "
                    "another version first."
                )
            return after

        self._write(without)

    def promote(self, version: int | str = NEWEST) -> int:
        """Put a version into production: the label `stable` moves to it. An earlier version can be
        put back the same way.

        Returns: its number.
        Raises: as `label`.
        """
        number = self.resolve(version)
        self.label(STABLE, number)
        return number

    def withdraw(self, version: int | str, reason: str) -> None:
        """Take the newest version back; its number is never used again.

        Raises: LineageError: it is not the newest, a label or a consumer is on it, or the
            embeddings of the version before are not stored any more.
        """
        number = self.resolve(version)
        if number != self.newest:
            raise LineageError(
                f"Only the newest version, {self.newest}, can be withdrawn, not {number}: later "
                "ones lead through it. 'evergram lineage retire' ends the reading of it."
            )
        if not reason.strip():
            raise LineageError("A withdrawal needs a reason; say why.")
        withdrawal = Withdrawal(
            fingerprint=self.manifest(number).fingerprint,
            reason=reason.strip(),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )

        def remove() -> None:
            for folder in (self.embeddings_folder(number), self.folder(number)):
                shutil.rmtree(folder, ignore_errors=True)
                if self.remote is not None:
                    self.remote.storage.remove(folder.relative_to(self.path).as_posix())

        stored = self.versions_with_embeddings
        self._write(
            lambda record: record.without_newest(withdrawal, self._pins(record), stored), remove
        )
        del self.manifests[number]

    def retire(self, version: int | str) -> None:
        """End the reading of a version; the chain still leads through it.

        Raises: LineageError: it is the newest, or a label or a consumer is on it.
        """
        self._write(lambda record: record.with_retired(version, self._pins(record)))

    def _write(
        self,
        change: Callable[[LineageRecord], LineageRecord],
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a changed record, and tidy up under the same lock, as another may publish after
        it."""
        with writing(self.path, self.remote):
            after = change(unchanged(self.path, self.record, self.address, labels=True))
            write_record(self.path, after, self.remote)
            tidy()
        self.record = after

    def _pins(self, record: LineageRecord) -> dict[str, int]:
        """Return the version that each consumer would read by default if this were the record."""
        return pinned_to(self.address, record.resolve)

    # Publication.

    def publish(self, artefact: Artefact, *, promote: bool = True) -> int:
        """Add a version. Returns: its number.

        If consumers have probes, it must be published by `evergram.publish`, which runs them.

        Args:
            promote: whether production moves to it. If not, `stable` stays on, or is put on, the
                version in production now, whose embeddings are then kept.
        Raises: ShapeError: the transform does not lead from it to the newest, or vectors are of
            another dim. DataError: a vector is not finite; an id is missing or there twice; or
            something else cannot be written. LineageError: it was made after another version; a
            consumer's probe was not run on it; another process is publishing or has published
            meanwhile; or the folder cannot be written; the lineage is then as it was.
        """
        check_artefact(self, artefact)
        return publish_version(self, artefact, promote=promote)

    def check_ids(self, ids: Mapping[str, pa.Array]) -> None:
        """Refuse ids, by side, that are text where those of the newest version are integers.

        Raises: DataError: an id of a side is no integer.
        """
        check_id_types(self, ids)

    # A training run.

    @contextmanager
    def training(self) -> Iterator[Path]:
        """Yield `work_dir` for one run, and keep other processes from training the lineage's next
        version meanwhile. An interrupted run's checkpoints stay in it; nothing empty does.

        Raises: LineageError: another process trains it; the error says who, and since when. Of a
            lineage that lives elsewhere only processes of this machine are seen for certain; others
            are named in a warning.
        """
        elsewhere = nullcontext() if self.remote is None else training_note(self.remote.storage)
        with training_claim(self.work_dir, str(self)), elsewhere:
            try:
                yield self.work_dir
            finally:
                # The contents of a cache are part of a checkpoint.
                for cache in self.work_dir.glob("cache-*.bin"):
                    cache.unlink(missing_ok=True)

    def refuse_unwritable(self) -> None:
        """Raises: LineageError: no version could be published, as nothing can be written."""
        refuse_unwritable(self.work_dir, str(self))

    def lost(self) -> VersionReader:
        """Return the model of an upgrade that was not published because another version came first.

        Raises: LineageError: none is kept.
        """
        return read_lost(self.path, self.work_dir, str(self))

    def forget_lost(self) -> None:
        """Remove the model that `lost` returns, as after its publication; if there is one."""
        forget_lost(self.work_dir)
