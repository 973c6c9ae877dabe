"""The versions of a lineage by number and by label, and every change of labels."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from evergram.errors import IntegrityError, LineageError
from evergram.lineage import record_changes
from evergram.lineage.disk.lineage_record import (
    FORMAT_VERSION,
    LineageRecord,
    Withdrawal,
    parse_record,
    read_record,
)
from evergram.lineage.disk.manifest import Manifest, check_files, read_manifest
from evergram.lineage.disk.names import check_name
from evergram.lineage.disk.path_check import check_inside, check_parts
from evergram.lineage.locks.write_lock import unchanged, write_record, writing
from evergram.lineage.remote.addresses import local_folder
from evergram.lineage.remote.mirror import RECORD, Remote


class Catalog:
    """What `lineage.json` and the manifests say, opened once.

    Every change is one rename of `lineage.json`, under the lock; a change against an older state
    than that on disk is refused.
    """

    def __init__(self, path: Path, record: LineageRecord, remote: Remote | None = None) -> None:
        self.path = path
        self._remote = remote
        self._record = record
        self._checked: set[str] = set()
        check_inside(path, *(self._folder(n) / "manifest.json" for n in record.versions))
        self._manifests = {n: read_manifest(self._folder(n)) for n in record.versions}
        for n, manifest in self._manifests.items():
            if manifest.version != n or (manifest.transform is None) != (n == 0):
                raise IntegrityError(
                    f"{self._folder(n)} holds the manifest of another version; "
                    "restore it from a copy of the lineage."
                )

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Of a folder, or of an fsspec address such as `s3://bucket/shop`.

        Raises: LineageError: there is none, it is damaged, of a later format or out of reach.
        """
        folder = local_folder(path)
        if folder is not None:
            check_parts(folder)
            return cls(folder, read_record(folder / RECORD))
        remote = Remote(str(path))
        return cls(remote.folder, parse_record(remote.pull(), remote.address), remote)

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether there is a lineage, damaged or not. Raises: LineageError: it is out of reach."""
        folder = local_folder(path)
        if folder is None:
            return Remote(str(path)).pull() is not None
        return (folder / RECORD).exists()

    @classmethod
    def create(cls, path: str | Path, name: str = "embeddings") -> Self:
        """A lineage without versions; nothing is written before the first is published.

        Args:
            name: see `names.RULE`.
        Raises: LineageError: one is there already, or it cannot have that name.
        """
        check_name(name, "a lineage")
        folder = local_folder(path)
        if cls.exists(path):
            raise LineageError(
                f"{path} already holds a lineage; 'evergram upgrade' adds a version to it, or "
                "choose another folder."
            )
        record = LineageRecord(format_version=FORMAT_VERSION, name=name, versions=[])
        if folder is None:
            remote = Remote(str(path))
            remote.pull()
            return cls(remote.folder, record, remote)
        if folder.exists() and not folder.is_dir():
            raise LineageError(f"{folder} is a file; a lineage is a folder.")
        return cls(folder, record)

    @property
    def address(self) -> str:
        """Where it is opened: the folder, or the address that `path` is a mirror of."""
        return str(self.path) if self._remote is None else self._remote.address

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def versions(self) -> list[Manifest]:
        """The manifests of all versions but the withdrawn, oldest first; see `retired`."""
        return list(self._manifests.values())

    @property
    def readable(self) -> list[int]:
        """The versions that are neither withdrawn nor retired, ascending."""
        return record_changes.readable(self._record)

    @property
    def retired(self) -> list[int]:
        """Versions that are no longer read, but that the chain leads through."""
        return list(self._record.retired)

    @property
    def withdrawn(self) -> dict[int, Withdrawal]:
        """What stays of the versions that were taken back; in the chain each is an identity."""
        return dict(self._record.withdrawn)

    @property
    def next_version(self) -> int:
        """The number that the next version gets."""
        return self._record.next_version

    @property
    def newest(self) -> int:
        """Raises: UnknownVersionError: nothing is published yet."""
        return record_changes.newest(self._record)

    @property
    def production(self) -> int:
        """The version labelled `stable`, else the newest. Raises: UnknownVersionError."""
        return record_changes.production(self._record)

    @property
    def labels(self) -> dict[str, int]:
        return dict(self._record.labels)

    @property
    def versions_with_embeddings(self) -> list[int]:
        """Versions whose own embeddings are stored, ascending: the newest's, and what was labelled
        when the newest was published or since."""
        at = self.path / "embeddings"
        last = self._record.versions[-1:]
        return [n for n in self.readable if n in last or (at / str(n)).is_dir()]

    def resolve(self, what: int | str | None) -> int:
        """The version that a number, its text ("0", "v0"), a label, "newest" or None means; None
        is production.

        Raises: UnknownVersionError: there is none, or it was withdrawn. LineageError: retired.
        """
        return record_changes.resolve(self._record, what)

    def version_of(self, fingerprint: str) -> int | None:
        """The latest version with this fingerprint, a withdrawn one as well; None where no one."""
        known = {n: m.fingerprint for n, m in self._manifests.items()}
        known |= {n: w.fingerprint for n, w in self._record.withdrawn.items()}
        return max((n for n, found in known.items() if found == fingerprint), default=None)

    def check_fingerprint(self, fingerprint: str | None, version: int, what: str) -> None:
        """Raises: LineageError: `what`, said to be of `version`, carries another fingerprint."""
        if fingerprint is None or fingerprint == self.manifest(version).fingerprint:
            return
        number = self.version_of(fingerprint)
        whose = "of no version of it" if number is None else f"of its version {number}"
        raise LineageError(
            f"{what} is not of version {version} of {self}, but {whose}: its fingerprint is "
            f"{fingerprint}; give vectors of version {version}, or name the right version."
        )

    def files(self, version: int) -> dict[str, bool]:
        """Return the published files of a version, by their path in the lineage: whether each was
        compared with its hash since the lineage was opened. A file is when it is read.

        Raises: UnknownVersionError.
        """
        manifest = self.manifest(version)
        names = [f"versions/{version}/{name}" for name in manifest.files]
        if version in self.versions_with_embeddings:
            names += [f"embeddings/{version}/{side}.parquet" for side in manifest.embeddings]
        return {name: name in self._checked for name in sorted(names)}

    def manifest(self, version: int) -> Manifest:
        """Raises: UnknownVersionError."""
        if version not in self._manifests:
            raise record_changes.unknown(self._record, version)
        return self._manifests[version]

    # Changes.

    def label(self, name: str, version: int | str) -> None:
        """Set a label, or move it. `stable` is production: only a held version can have it.

        Raises: UnknownVersionError. LineageError: no such name; or another process has changed the
            lineage since it was opened, or is changing it, as for all of these.
        """
        self._change(
            lambda record: record_changes.with_label(
                record, name, version, self.versions_with_embeddings
            )
        )

    def unlabel(self, name: str) -> None:
        """Remove a label. Raises: LineageError: there is none, or a consumer is pinned to it."""

        def removed(record: LineageRecord) -> LineageRecord:
            after = record_changes.without_label(record, name)
            left = sorted(self._pins(record).keys() - self._pins(after).keys())
            if left:
                raise LineageError(
                    f"The label {name!r} of {self.name} cannot be removed: pinned to it "
                    f"{'is' if len(left) == 1 else 'are'} {', '.join(left)}; they must go to "
                    "another version first."
                )
            return after

        self._change(removed)

    def withdraw(self, version: int | str, reason: str) -> None:
        """Take the newest version back; its number is never used again.

        Raises: LineageError: it is not the newest, a label or a consumer is on it, or the
            embeddings of the version before are not stored any more.
        """
        number = self.resolve(version)
        if number != self.newest:
            raise LineageError(
                f"Only the newest version, {self.newest}, can be withdrawn, not {number}: later "
                "ones lead through it. 'evergram retire' ends the reading of it."
            )
        if not reason.strip():
            raise LineageError("A withdrawal needs a reason; say why.")
        withdrawal = Withdrawal(
            fingerprint=self.manifest(number).fingerprint,
            reason=reason.strip(),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._change(
            lambda r: record_changes.without_newest(
                r, withdrawal, self._pins(r), self.versions_with_embeddings
            )
        )
        del self._manifests[number]
        shutil.rmtree(self.path / "embeddings" / str(number), ignore_errors=True)
        shutil.rmtree(self._folder(number), ignore_errors=True)
        if self._remote is not None:
            self._remote.remove(f"embeddings/{number}")
            self._remote.remove(f"versions/{number}")

    def retire(self, version: int | str) -> None:
        """End the reading of a version. Raises: LineageError: it is in use, or the newest."""
        self._change(
            lambda record: record_changes.with_retired(record, version, self._pins(record))
        )

    def _change(self, change: Callable[[LineageRecord], LineageRecord]) -> None:
        with writing(self.path, self._remote):
            record = change(unchanged(self.path, self._record, str(self), labels=True))
            write_record(self.path, record, self._remote)
        self._record = record

    def _pins(self, record: LineageRecord) -> dict[str, int]:
        from evergram.lineage.consumers.registry import pinned_to

        return pinned_to(self.address, lambda what: record_changes.resolve(record, what))

    def _folder(self, version: int) -> Path:
        return self.path / "versions" / str(version)

    def _check_files(self, folder: Path, hashes: Mapping[str, str]) -> None:
        """As `check_files`; of a lineage that is elsewhere, what is not here yet is brought."""
        check_inside(self.path, *(folder / name for name in hashes))
        (check_files if self._remote is None else self._remote.check_files)(folder, hashes)
        self._checked.update((folder / name).relative_to(self.path).as_posix() for name in hashes)
