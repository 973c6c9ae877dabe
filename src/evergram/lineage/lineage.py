"""The chain of versions: publish a new one, read any through the newest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from torch import Tensor

from evergram.lineage.artefact import Artefact
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.catalog.catalog_changes import CatalogChanges
from evergram.lineage.catalog.record_changes import NEWEST, STABLE
from evergram.lineage.locks.training_claim import refuse_unwritable, training_claim
from evergram.lineage.new_queries.fold_in import Missing
from evergram.lineage.new_queries.id_lists import Lists
from evergram.lineage.publishing.artefact_check import check_artefact
from evergram.lineage.publishing.beginning import beginning
from evergram.lineage.publishing.lost_race import forget_lost, read_lost
from evergram.lineage.publishing.publication import check_id_types, publish_version
from evergram.lineage.read_only_lineage import ReadOnlyLineage
from evergram.lineage.remote.training_note import training_note
from evergram.lineage.version_reader import VersionReader


class Lineage(ReadOnlyLineage):
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
    publication removes them.

    Args:
        catalog: its versions, opened; see `open` and `create`.
    """

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._changes = CatalogChanges(catalog)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.next_version:
            return super().__reduce__()
        return type(self).create, (self.place, self.name)  # nothing is published yet

    @classmethod
    def create(cls, path: str | Path, name: str = "embeddings") -> Self:
        """Return a new lineage without versions; nothing is written before one is published.

        Args:
            name: letters, digits, '.', '_' and '-', beginning with a letter or a digit.
        Raises: LineageError: a lineage or other files are there already, or the name cannot be
            used.
        """
        return cls(Catalog.create(path, name))

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
            candidates, weights, values, missing: as of `View.fold_in`, whose errors it has, too.
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
        self._changes.label(name, version)

    def unlabel(self, name: str) -> None:
        """Remove a label. Raises: LineageError: there is none, or a consumer is pinned to it."""
        self._changes.unlabel(name)

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
        self._changes.withdraw(version, reason)

    def retire(self, version: int | str) -> None:
        """End the reading of a version; the chain still leads through it.

        Raises: LineageError: it is the newest, or a label or a consumer is on it.
        """
        self._changes.retire(version)

    def publish(self, artefact: Artefact, *, promote: bool = True) -> int:
        """Add a version. Returns: its number.

        If consumers have probes, it must be published by `evergram.publish`, which runs them.

        Args:
            promote: whether production moves to it. If not, `stable` stays on, or is put on, the
                version in production now, whose embeddings are then kept.
        Raises: ShapeError: the transform does not lead from it to the newest, or vectors are of
            another dim. DataError: a vector is not finite; an id is missing or there twice; or
            something else cannot be written. LineageError: it was made after another version; a
            consumer's probe was not run on it; another process is
            publishing or has published meanwhile; or the folder cannot be written; the lineage is
            then as it was.
        """
        return publish_version(self._catalog, artefact, promote=promote)

    @contextmanager
    def beginning(self, first: Artefact) -> Iterator[None]:
        """Publish version 0 of a new lineage for a block that publishes version 1.

        If the block raises, and neither version 1 nor a consumer is there, version 0 is removed
        again, with the folders that were created for it.

        Raises: as `publish`.
        """
        with beginning(self._catalog, first):
            yield

    def check_artefact(self, artefact: Artefact) -> None:
        """Refuse an artefact that cannot be the next version; `publish` does so, too.

        Raises: LineageError: it was made after another version, or a side has no proper name.
            DataError: its metrics are of another form, or it has no embeddings. ShapeError: its
            transform, error or canaries do not fit.
        """
        check_artefact(self._catalog, artefact)

    def check_ids(self, ids: Mapping[str, pa.Array]) -> None:
        """Refuse ids, by side, that are text where those of the newest version are integers.

        Raises: DataError: an id of a side is no integer.
        """
        check_id_types(self._catalog, ids)

    # A training run.

    @property
    def work_dir(self) -> Path:
        """The folder in which a run keeps its checkpoints; it is removed by publication."""
        return self._catalog.work_dir

    @contextmanager
    def training(self) -> Iterator[Path]:
        """Yield `work_dir` for one run, and keep other processes from training the lineage's next
        version meanwhile. An interrupted run's checkpoints stay in it; nothing empty does.

        Raises: LineageError: another process trains it; the error says who, and since when. Of a
            lineage that lives elsewhere only processes of this machine are seen for certain; others
            are named in a warning.
        """
        remote = self._catalog.remote
        elsewhere = nullcontext() if remote is None else training_note(remote.storage)
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
