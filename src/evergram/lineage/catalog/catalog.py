"""The versions of a lineage by number and by label, as they were when it was opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from evergram.errors import IntegrityError, LineageError
from evergram.lineage.catalog import record_changes
from evergram.lineage.disk.lineage_record import (
    FORMAT_VERSION,
    LineageRecord,
    Withdrawal,
    parse_record,
    read_record,
)
from evergram.lineage.disk.manifest import Manifest, check_files, read_manifest
from evergram.lineage.disk.names import check_name
from evergram.lineage.disk.path_check import check_inside, check_parts, refuse_occupied
from evergram.lineage.locks.write_lock import unchanged
from evergram.lineage.remote.addresses import local_folder
from evergram.lineage.remote.mirror import RECORD, Remote
from evergram.lineage.version_reader import VersionReader


class Catalog:
    """The versions of a lineage by number and by label, as they were when it was opened.

    `Lineage` documents the members that it passes on; `CatalogChanges` changes labels and versions.

    Args:
        path: the folder; of a lineage that lives elsewhere, its mirror.
        record: `lineage.json`.
        remote: where the lineage lives, if that is elsewhere.
    Attributes:
        manifests: by version number, of all versions but the withdrawn.
    Raises: IntegrityError: a manifest is damaged or is another version's.
    """

    def __init__(self, path: Path, record: LineageRecord, remote: Remote | None = None) -> None:
        self.path = path
        self.remote = remote
        self.record: LineageRecord = record
        # Paths of the files that were compared with their hashes since it was opened.
        self._checked: set[str] = set()
        check_inside(path, *(self.folder(n) / "manifest.json" for n in record.versions))
        self.manifests: dict[int, Manifest] = {
            n: read_manifest(self.folder(n)) for n in record.versions
        }
        for n, manifest in self.manifests.items():
            if manifest.version != n or (manifest.transform is None) != (n == 0):
                raise IntegrityError(
                    f"{self.folder(n)} holds the manifest of another version; "
                    "restore it from a copy of the lineage."
                )

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the lineage in a folder or at an address."""
        folder = local_folder(path)
        if folder is not None:
            check_parts(folder)
            return cls(folder, read_record(folder / RECORD))
        remote = Remote(str(path))
        return cls(remote.folder, parse_record(remote.pull(), remote.address), remote)

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Say whether there is a lineage, damaged or not."""
        folder = local_folder(path)
        if folder is None:
            return Remote(str(path)).pull() is not None
        return (folder / RECORD).exists()

    @classmethod
    def create(cls, path: str | Path, name: str = "embeddings") -> Self:
        """Return a new lineage without versions; nothing is written.

        Raises: LineageError: a lineage or other files are there, or the name cannot be used.
        """
        check_name(name, "a lineage")
        folder = local_folder(path)
        if cls.exists(path):
            raise LineageError(
                f"{path} already holds a lineage; add a version to it ('evergram upgrade' where "
                "its models are trained, 'evergram vectors align' where its vectors are of files), "
                "or choose another folder."
            )
        record = LineageRecord(format_version=FORMAT_VERSION, name=name, versions=[])
        if folder is None:
            remote = Remote(str(path))
            remote.pull()
            return cls(remote.folder, record, remote)
        for place in (folder, *folder.parents):
            if place.exists() and not place.is_dir():
                raise LineageError(
                    f"{place} is a file; a lineage is a folder, so name one in its place."
                )
        refuse_occupied(folder, name)
        return cls(folder, record)

    @property
    def address(self) -> str:
        """The folder, or the address that `path` is a mirror of."""
        return str(self.path) if self.remote is None else self.remote.address

    @property
    def place(self) -> str:
        """The address, independent of the current folder."""
        return str(self.path.absolute()) if self.remote is None else self.remote.address

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def work_dir(self) -> Path:
        """The folder in which a run keeps its checkpoints; it is removed by publication."""
        return self.path / ".work"

    @property
    def versions(self) -> list[Manifest]:
        """The manifests of all versions but the withdrawn, oldest first; see `retired`."""
        return list(self.manifests.values())

    @property
    def readable(self) -> list[int]:
        """The versions that are neither withdrawn nor retired, ascending."""
        return record_changes.readable(self.record)

    @property
    def retired(self) -> list[int]:
        """Versions that are no longer read, though the chain still leads through them."""
        return list(self.record.retired)

    @property
    def withdrawn(self) -> dict[int, Withdrawal]:
        """The versions that were taken back, and why; each is an identity step in the chain."""
        return dict(self.record.withdrawn)

    @property
    def next_version(self) -> int:
        """The number that the next version gets."""
        return self.record.next_version

    @property
    def newest(self) -> int:
        """The latest version. Raises: UnknownVersionError: nothing is published yet."""
        return record_changes.newest(self.record)

    @property
    def production(self) -> int:
        """The version labelled `stable`, else the newest. Raises: UnknownVersionError."""
        return record_changes.production(self.record)

    def source_of(self, version: int) -> int:
        """Return the version whose stored rows are read as another unless a source is named:
        production, or the newest for a version after production."""
        return self.production if version <= self.production else self.newest

    @property
    def labels(self) -> dict[str, int]:
        return dict(self.record.labels)

    @property
    def versions_with_embeddings(self) -> list[int]:
        """The versions whose own embeddings are stored, ascending."""
        newest = self.record.versions[-1:]
        return [n for n in self.readable if n in newest or self.embeddings_folder(n).is_dir()]

    def resolve(self, what: int | str | None) -> int:
        """Return the number of a version, of its text, or of a label."""
        return record_changes.resolve(self.record, what)

    def version_of(self, fingerprint: str) -> int | None:
        """Return the latest version with a fingerprint; None if none has it."""
        fingerprints = {n: m.fingerprint for n, m in self.manifests.items()}
        fingerprints |= {n: w.fingerprint for n, w in self.record.withdrawn.items()}
        return max((n for n, other in fingerprints.items() if other == fingerprint), default=None)

    def check_fingerprint(self, fingerprint: str | None, version: int, what: str) -> None:
        """Refuse vectors of another version than they are said to be of.

        Args:
            fingerprint: which the vectors carry, the version's own or that of the file it was made
                from; None if they carry none: vectors of other tools do not, and are taken as said.
            version: which they are said to be of.
            what: to call them in the error, such as the path of their file.
        Raises: LineageError: the fingerprint is another version's.
        """
        manifest = self.manifest(version)
        if fingerprint in (None, manifest.fingerprint, manifest.source_fingerprint):
            return
        sources = {m.source_fingerprint: n for n, m in self.manifests.items()}
        number = self.version_of(fingerprint)
        number = sources.get(fingerprint) if number is None else number
        whose = "of no version of it" if number is None else f"of its version {number}"
        raise LineageError(
            f"{what} is not of version {version} of {self.address}, but {whose}: its fingerprint "
            f"is {fingerprint}; give vectors of version {version}, or name the right version."
        )

    def files(self, version: int) -> dict[str, bool]:
        """Return whether each published file of a version was compared with its hash."""
        manifest = self.manifest(version)
        names = [f"versions/{version}/{name}" for name in manifest.files]
        if version in self.versions_with_embeddings:
            names += [f"embeddings/{version}/{side}.parquet" for side in manifest.embeddings]
        return {name: name in self._checked for name in sorted(names)}

    def manifest(self, version: int) -> Manifest:
        """Return the manifest of a version. Raises: UnknownVersionError: there is none."""
        if version not in self.manifests:
            raise record_changes.unknown(self.record, version)
        return self.manifests[version]

    def recipe(self, version: int) -> dict[str, Any]:
        """Return the recipe of a version that has a model. Raises: LineageError: it has none."""
        manifest = self.manifest(version)
        if manifest.encoder is None:
            raise LineageError(
                f"Version {version} of {self.address} came from a file of embeddings and has no "
                "model. Only a version that was trained can be trained further, or judged on its "
                "data; 'evergram lineage check' needs neither."
            )
        return manifest.recipe

    @property
    def opened_files(self) -> list[str]:
        """The JSON files whose checksums were compared when the lineage was opened."""
        return ["lineage.json", *(f"versions/{n}/manifest.json" for n in self.manifests)]

    # For the rest of this room.

    def folder(self, version: int) -> Path:
        """The folder of a version's files."""
        return self.path / "versions" / str(version)

    def embeddings_folder(self, version: int) -> Path:
        """The folder of a version's stored embeddings; most versions have none."""
        return self.path / "embeddings" / str(version)

    def reader(self, version: int) -> VersionReader:
        """Return a reader of a version's files. Raises: UnknownVersionError: there is none."""
        return VersionReader(self.folder(version), self.manifest(version), self.check_files)

    def add(self, record: LineageRecord, manifest: Manifest) -> None:
        """Add a version that has just been published, with the record that lists it."""
        self.record = record
        self.manifests[manifest.version] = manifest

    def refuse_changed(self) -> None:
        """Refuse to go on if another process has changed the lineage since it was opened.

        Raises: LineageError.
        """
        unchanged(self.path, self.record, self.address, labels=True)

    def check_files(self, folder: Path, hashes: Mapping[str, str]) -> None:
        """Compare files with their hashes, and remember that they were compared.

        Args:
            folder: of the lineage; a remote lineage's files are downloaded to it first.
            hashes: file name to SHA-256.
        Raises: IntegrityError: a file is missing or damaged, or a link leads out of the lineage.
        """
        check_inside(self.path, *(folder / name for name in hashes))
        (check_files if self.remote is None else self.remote.check_files)(folder, hashes)
        self._checked.update((folder / name).relative_to(self.path).as_posix() for name in hashes)
