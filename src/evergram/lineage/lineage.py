"""`Lineage`: the versions of a lineage, reading them, and all changes."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import torch
from torch import Tensor

from evergram.atomic_files import remove_folder, try_writing
from evergram.compatibility.certificate import StepError
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform, Transform
from evergram.data.split import TrainedPairs
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, IntegrityError, LineageError, ShapeError
from evergram.lineage import locks
from evergram.lineage.artefact import PAIRS, Affine, Artefact, Block, Moments, VersionReader
from evergram.lineage.consumers import pinned_to
from evergram.lineage.publication import (
    check_artefact,
    check_follows,
    check_ids,
    refuse_unprobed,
    write_folders,
)
from evergram.lineage.record import (
    FORMAT_VERSION,
    NEWEST,
    STABLE,
    LineageRecord,
    Manifest,
    Withdrawal,
    check_files,
    check_name,
    parse_record,
    read_manifest,
    read_record,
)
from evergram.lineage.remote import RECORD, Remote, local_folder
from evergram.lineage.view import View
from evergram.vector_files.open_embeddings import read_embeddings

log: logging.Logger = logging.getLogger(__name__)


def side_of(sides: Collection[str], where: str, side: str | None = None) -> str:
    """Return `side` if it is one of the sides of `where`; by default "candidate", or the first."""
    if side is None:
        return "candidate" if "candidate" in sides else next(iter(sides))
    if side not in sides:
        available = f"{' and '.join(sides)}{did_you_mean(side, sides)}"
        raise LineageError(f"There is no side {side!r} in {where}; it has {available}.")
    return side


@dataclass(frozen=True)
class PairHistory:
    """The pairs that versions were trained on, so that no version is tested on them."""

    salt: str | None = None  # of the hashes; None before version 0, and in a lineage of files
    trained: TrainedPairs = field(default_factory=TrainedPairs)
    untested: str | None = None  # why testing is impossible: some training pairs are unknown

    def new(self, trained: tuple[str, TrainedPairs] | None) -> TrainedPairs | None:
        """Return the pairs of `trained` (salt and pairs) that no earlier version was trained on;
        None if that is unknown."""
        if trained is None or self.untested is not None or self.salt not in (None, trained[0]):
            return None
        return trained[1].without(self.trained)


class Lineage:
    """A folder of versions, with the embeddings of the newest version and of labelled ones.

    >>> from evergram import Lineage
    >>> lineage = Lineage.open("lineages/films")
    >>> [manifest.version for manifest in lineage.versions]
    [0, 1, 2]
    >>> ids, vectors = lineage.embeddings("candidate")  # production's
    >>> vectors.shape[1] == lineage.manifest(2).dim
    True

    Use `open` or `create`. The object is a snapshot: it does not see later changes. Every new
    version and change of labels takes effect by one rename of `lineage.json`.

    Args:
        path: the folder; for a remote lineage, its local mirror.
        remote: the remote storage, or None.
    Raises: IntegrityError: a manifest is damaged or belongs to another version.
    """

    def __init__(self, path: Path, record: LineageRecord, remote: Remote | None = None) -> None:
        self.path = path
        self.remote = remote
        self.record: LineageRecord = record
        self._chain: Chain | None = None
        locks.check_inside(path, *(self.folder(n) / "manifest.json" for n in record.versions))
        # By number, without withdrawn versions.
        self.manifests: dict[int, Manifest] = {
            n: read_manifest(self.folder(n)) for n in record.versions
        }
        for n, manifest in self.manifests.items():
            if manifest.version != n or (manifest.transform is None) != (n == 0):
                what = "has the manifest of another version; restore it from a copy"
                raise IntegrityError(f"{self.folder(n)} {what}.")

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the lineage in a folder, or at an fsspec address such as `s3://bucket/shop`. Raises:
        LineageError: there is none, it is damaged, of a later format, or cannot be reached."""
        folder = local_folder(path)
        if folder is not None:
            locks.check_parts(folder)
            return cls(folder, read_record(folder / RECORD))
        remote = Remote(str(path))
        return cls(remote.folder, parse_record(remote.pull(), remote.address), remote)

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Return whether a lineage exists, even if damaged. Raises: LineageError: out of reach."""
        if (folder := local_folder(path)) is None:
            return Remote(str(path)).pull() is not None
        return (folder / RECORD).exists()

    @classmethod
    def create(cls, path: str | Path, name: str = "embeddings") -> Self:
        """Return a new lineage without versions. Nothing is written until one is published.

        Args:
            name: letters, digits, '.', '_' and '-', starting with a letter or digit.
        Raises: LineageError: the folder has a lineage or other files, or the name is invalid.
        """
        check_name(name, "the name of a lineage")
        folder = local_folder(path)
        if cls.exists(path):
            raise LineageError(
                f"{path} already holds a lineage; add a version to it ('evergram upgrade', or "
                "'evergram vectors align' for files), or choose another folder."
            )
        record = LineageRecord(format_version=FORMAT_VERSION, name=name, versions=[])
        if folder is None:
            remote = Remote(str(path))
            remote.pull()
            return cls(remote.folder, record, remote)
        locks.refuse_occupied(folder, name)
        return cls(folder, record)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (self.absolute_address,)

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        numbers = ", ".join(map(str, self.readable)) or "none"
        production = f", production {self.production}" if self.readable else ""
        return f"Lineage({self.name!r} at {self.address}, versions {numbers}{production})"

    # The versions.

    @property
    def address(self) -> str:
        """The folder, or the address of a remote lineage."""
        return str(self.path) if self.remote is None else self.remote.address

    @property
    def absolute_address(self) -> str:
        """The address, with an absolute path for a folder."""
        return str(self.path.absolute()) if self.remote is None else self.remote.address

    @property
    def name(self) -> str:
        """The lineage's name; version 3 of "shop" is called "shop@v3"."""
        return self.record.name

    @property
    def work_dir(self) -> Path:
        """The folder for checkpoints of a training run; publication removes it."""
        return self.path / ".work"

    @property
    def versions(self) -> list[Manifest]:
        """The manifests of all versions that are not withdrawn, oldest first; see `retired`."""
        return list(self.manifests.values())

    @property
    def readable(self) -> list[int]:
        """The versions that are neither withdrawn nor retired, ascending."""
        return self.record.readable

    @property
    def retired(self) -> list[int]:
        """Versions that can no longer be read, although the chain still goes through them."""
        return list(self.record.retired)

    @property
    def withdrawn(self) -> dict[int, Withdrawal]:
        """The withdrawn versions, and why; each is an identity step in the chain."""
        return dict(self.record.withdrawn)

    @property
    def newest(self) -> int:
        """The latest version. Raises: UnknownVersionError: nothing is published yet."""
        return self.record.newest

    @property
    def next_version(self) -> int:
        """The number of the next version."""
        return self.record.next_version

    @property
    def production(self) -> int:
        """The version labelled `stable`, else the newest. Raises: UnknownVersionError."""
        return self.record.production

    @property
    def labels(self) -> dict[str, int]:
        """Each label's version."""
        return dict(self.record.labels)

    @property
    def versions_with_embeddings(self) -> list[int]:
        """The versions whose embeddings are stored, ascending: the newest, and those that had a
        label when the newest was published or since then."""
        newest = self.record.versions[-1:]
        return [n for n in self.readable if n in newest or self.embeddings_folder(n).is_dir()]

    def resolve(self, what: int | str | None) -> int:
        """Return the number of a version.

        Args:
            what: a number, its text ("0", "v0"), a label, "newest", or None for production.
        Raises: UnknownVersionError: there is none, or it was withdrawn. LineageError: retired.
        """
        return self.record.resolve(what)

    def manifest(self, version: int) -> Manifest:
        """Return the manifest of a version. Raises: UnknownVersionError: there is none."""
        if version not in self.manifests:
            raise self.record.unknown(version)
        return self.manifests[version]

    def version_of(self, fingerprint: str) -> int | None:
        """Return the latest version with this fingerprint, even if withdrawn, or None."""
        fingerprints = {n: m.fingerprint for n, m in self.manifests.items()}
        fingerprints |= {n: w.fingerprint for n, w in self.record.withdrawn.items()}
        return max((n for n, f in fingerprints.items() if f == fingerprint), default=None)

    def check_fingerprint(self, fingerprint: str | None, version: int, what: str) -> None:
        """Refuse vectors (`what`) whose fingerprint does not match `version`.

        The fingerprint may be the version's, or that of the file that the version was made from.
        Vectors without a fingerprint, from other tools, are accepted.
        Raises: LineageError: the fingerprint is another version's.
        """
        manifest = self.manifest(version)
        if fingerprint in (None, manifest.fingerprint, manifest.source_fingerprint):
            return
        sources = {m.source_fingerprint: n for n, m in self.manifests.items()}
        number = self.version_of(fingerprint)
        number = sources.get(fingerprint) if number is None else number
        match = "no version" if number is None else f"version {number}"
        raise LineageError(
            f"{what} is not of version {version} of {self.address}: its fingerprint {fingerprint} "
            f"is that of {match}; name the right version."
        )

    # The files of a version.

    def folder(self, version: int) -> Path:
        """Return the folder of a version's files."""
        return self.path / "versions" / str(version)

    def embeddings_folder(self, version: int) -> Path:
        """Return the folder of a version's stored embeddings; most versions have none."""
        return self.path / "embeddings" / str(version)

    def reader(self, version: int) -> VersionReader:
        """Return a reader of a version's files. Raises: UnknownVersionError: there is none."""
        return VersionReader(self.folder(version), self.manifest(version), self.check_files)

    def recipe(self, version: int) -> dict[str, Any]:
        """Return the complete recipe that a version was trained with. Raises: LineageError: the
        version came from a file and has no model."""
        manifest = self.manifest(version)
        if manifest.encoder is None:
            what = "came from a file of embeddings: it has no model and no recipe"
            raise LineageError(f"Version {version} of {self.address} {what}.")
        return manifest.recipe

    def metrics(self, version: int) -> dict[str, Any]:
        """Return the measurements made when a version was published."""
        return self.reader(version).metrics()

    def canaries(self, version: int) -> dict[str, Block]:
        """Return, by side, the ids (as strings) and vectors [n, D] of a version's canaries."""
        return self.reader(version).canaries()

    def moments(self, version: int) -> dict[str, Moments]:
        """Return, by side, the number of vectors, their mean [D], and E[z zᵀ], [D, D]; float64."""
        return self.reader(version).moments()

    def stored(self, side: str, version: int | None = None) -> Path:
        """Return the file of a side's vectors at a version (default: production), after verifying
        its hash.
        Raises: LineageError: there is no such side, or the version's vectors are not stored.
            IntegrityError: the file differs from the published one.
        """
        manifest = self.manifest(self.resolve(version))
        side_of(manifest.embeddings, self.address, side)
        folder = self.embeddings_folder(manifest.version)
        name = f"{side}.parquet"
        if not folder.is_dir():
            locks.unchanged(self.path, self.record, self.address, labels=True)
            if manifest.version != self.newest:
                available = ", ".join(map(str, self.versions_with_embeddings))
                raise LineageError(
                    f"The embeddings of version {manifest.version} of {self.address} are not "
                    f"stored; read those of {available} as version {manifest.version}."
                )
        self.check_files(folder, {name: manifest.embeddings[side]})
        return folder / name

    def embeddings(self, side: str, version: int | None = None) -> tuple[pa.Array, Tensor]:
        """Return the ids [N] and vectors [N, D_k] of a side at a version (default: production).
        Raises: see `stored`."""
        number = self.resolve(version)
        path = self.stored(side, number)
        ids, vectors = read_embeddings(path)
        if vectors.shape != (len(ids), dim := self.manifest(number).dim) or ids.null_count:
            has = f"{len(ids)} ids ({ids.null_count} missing) and vectors of shape"
            shape = list(vectors.shape)
            raise IntegrityError(f"{path} has {has} {shape}, but its manifest has dim {dim}.")
        return ids, vectors

    @property
    def pair_history(self) -> PairHistory:
        """The pairs that versions were trained on, without withdrawn versions and those that came
        from a file."""
        record = self.record
        pairs = {
            number: self.reader(number).trained_pairs()
            for number, manifest in self.manifests.items()
            if manifest.encoder is not None or PAIRS in manifest.files
        }
        recorded = [trained for trained in pairs.values() if trained is not None]
        if len(recorded) == len(pairs) and (record.salt is not None or not record.versions):
            return PairHistory(record.salt, TrainedPairs().union(recorded))
        unrecorded = [n for n, trained in pairs.items() if trained is None] or record.versions
        numbers = ", ".join(f"version {n}" for n in unrecorded)
        untested = (
            f"No test metrics: the training pairs of {numbers} of {self.address} were not "
            "recorded; train a new lineage to get test metrics."
        )
        return PairHistory(record.salt, untested=untested)

    # From one version to another.

    @property
    def chain(self) -> Chain:
        """The backward transforms by version; the identity for withdrawn versions."""
        if self._chain is None:
            first = dim = self.manifest(0).dim
            transforms: list[Transform] = []
            for n in range(1, self.next_version):
                if n in self.manifests:
                    transforms.append(self.reader(n).transform(dim))
                    dim = self.manifest(n).dim
                else:
                    transforms.append(LinearTransform.from_matrix(torch.eye(dim)))
            self._chain = Chain(transforms, first)
        return self._chain

    @property
    def active_chain(self) -> Chain:
        """The backward transforms without withdrawn versions, which a new version need not be
        aligned to. Its steps are therefore not numbered like the versions."""
        active = [t for n, t in enumerate(self.chain.transforms, start=1) if n in self.manifests]
        return Chain(active, self.manifest(0).dim)

    @property
    def step_errors(self) -> dict[int, StepError]:
        """Σ_i of every version that was published with one; zero for withdrawn versions."""
        errors = {}
        for n in range(1, self.next_version):
            dim = self.chain.dim(n - 1)
            if n not in self.manifests:
                errors[n] = StepError(torch.zeros(dim, dim, dtype=torch.float64), 0, math.nan)
            elif (error := self.reader(n).error(dim)) is not None:
                errors[n] = error
        return errors

    def forward(self, source: int, target: int) -> Affine | None:
        """Return the affine map from an earlier version to a later one.

        Returns: W [D_target, D_source] and the offset [D_target], float64; None if a version in
            between was published without a forward map.
        Raises: UnknownVersionError. LineageError: `target` is earlier than `source`.
        """
        dim = self.manifest(source).dim
        self.manifest(target)
        if target < source:
            raise LineageError(f"Version {target} is before version {source}; use the chain.")
        weight, offset = torch.eye(dim).double(), torch.zeros(dim).double()
        for n in range(source + 1, target + 1):
            if n in self.manifests:
                step = self.reader(n).forward(self.chain.dim(n - 1))
                if step is None:
                    return None
                weight, offset = step[0] @ weight, step[0] @ offset + step[1]
        return weight, offset

    def view(self, version: int | str | None = None, source: int | str | None = None) -> View:
        """Return the stored embeddings of one version, read as another.

        Args:
            version: the version to read them as; by default `source`, or else production.
            source: the version whose embeddings are stored; by default production, as in the
                service, or the newest if `version` is after production.
        Raises: UnknownVersionError. LineageError: the version is retired, or later than source.
            IntegrityError: a file differs from the published one.
        """
        target = self.resolve(source if version is None else version)
        if source is None:
            stored = self.production if target <= self.production else self.newest
        else:
            stored = self.resolve(source)
        chain, read_as = self.chain, self.manifest(target)
        chain.is_affine(stored, target)  # raises if the target is later than the source
        computed_from = self.manifest(stored).fingerprint
        return View(target, stored, read_as.dim, read_as.fingerprint, computed_from, self, chain)

    # Verification of files.

    def check_files(self, folder: Path, hashes: Mapping[str, str]) -> None:
        """Verify the hashes (by name) of files in one of the lineage's folders; files of a remote
        lineage are downloaded first. Raises: IntegrityError: a file is missing or damaged, or a
        symbolic link leads out of the lineage."""
        locks.check_inside(self.path, *(folder / name for name in hashes))
        (check_files if self.remote is None else self.remote.check_files)(folder, hashes)

    def check(self) -> int:
        """Verify the hash of every published file. Returns: the number of files. Raises:
        IntegrityError: one is missing or damaged."""
        checked = 1 + len(self.manifests)  # lineage.json and manifests were verified when opening
        for n, manifest in self.manifests.items():
            self.check_files(self.folder(n), manifest.files)
            checked += len(manifest.files)
        for n in self.versions_with_embeddings:
            for side in self.manifest(n).embeddings:
                self.stored(side, n)
                checked += 1
        return checked

    # Changes of labels and versions.

    def label(self, name: str, version: int | str) -> None:
        """Put a label on a version, or move it there; `stable` is the label of production.

        Raises: UnknownVersionError: no such version. LineageError: the name cannot be a label; the
            label is `stable`, but the version's embeddings are not stored; or, for all changes,
            another process has changed the lineage since it was opened, or is changing it.
        """
        stored = self.versions_with_embeddings
        self._change(lambda record: record.with_label(name, version, stored))

    def unlabel(self, name: str) -> None:
        """Remove a label. Raises: LineageError: there is none, or a consumer is pinned to it."""

        def without(record: LineageRecord) -> LineageRecord:
            after = record.without_label(name)
            if pinned := sorted(self._pins(record).keys() - self._pins(after).keys()):
                todo = f"pin {', '.join(pinned)} to another version first"
                raise LineageError(f"The label {name!r} of {self.name} cannot be removed; {todo}.")
            return after

        self._change(without)

    def promote(self, version: int | str = NEWEST) -> int:
        """Put a version, which may be an earlier one, into production by moving the label `stable`.
        Returns: its number. Raises: see `label`."""
        number = self.resolve(version)
        self.label(STABLE, number)
        return number

    def withdraw(self, version: int | str, reason: str) -> None:
        """Remove the newest version; its number is never used again. Raises: LineageError: it is
        not the newest, a label or consumer is pinned to it, or the embeddings of the previous
        version are no longer stored."""
        number = self.resolve(version)
        if number != self.newest:
            raise LineageError(
                f"Only the newest version, {self.newest}, can be withdrawn, not {number}, which "
                "later versions depend on; to stop reads of it, run 'evergram lineage retire'."
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
                    self.remote.remove(folder.relative_to(self.path).as_posix())

        stored = self.versions_with_embeddings
        self._change(
            lambda record: record.without_newest(withdrawal, self._pins(record), stored), remove
        )
        del self.manifests[number]
        self._chain = None

    def retire(self, version: int | str) -> None:
        """Stop reads of a version; the chain still goes through it. Raises: LineageError: it is the
        newest, or a label or consumer is pinned to it."""
        self._change(lambda record: record.with_retired(version, self._pins(record)))

    def _change(
        self,
        change: Callable[[LineageRecord], LineageRecord],
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a changed record, and tidy up before releasing the lock."""
        with self._writing():
            after = change(locks.unchanged(self.path, self.record, self.address, labels=True))
            locks.write_record(self.path, after, self.remote)
            tidy()
        self.record = after

    def _writing(self) -> AbstractContextManager[None]:
        elsewhere = nullcontext() if self.remote is None else self.remote.transaction()
        return locks.writing(self.path, self.address, elsewhere)

    def _pins(self, record: LineageRecord) -> dict[str, int]:
        """Return the version that each consumer reads by default, according to this record."""
        return pinned_to(self.address, record.resolve)

    # Publication.

    def publish(
        self,
        artefact: Artefact,
        *,
        promote: bool = True,
        gate: Callable[[Artefact], Artefact] = lambda artefact: artefact,
    ) -> int:
        """Add a version. Returns: its number.

        If consumers have probes, use `evergram.publish`, which runs them.

        Args:
            promote: whether to put the version into production. If not, `stable` stays at or is set
                to the current production version, whose embeddings are then kept.
            gate: called with the artefact after the first checks; returns the artefact, possibly
                with other metrics, or raises to stop the publication.
        Raises: ShapeError: the transform does not lead to the newest version, or the vectors have
            another dim. DataError: a vector is not finite, an id is missing or repeated, or
            something else cannot be written. LineageError: it was made for another version; a
            consumer's probe was not run on it; another process is publishing or has published in
            the meantime; or the folder cannot be written. On an error, the lineage is unchanged.
        """
        check_artefact(artefact)
        number, past = self.next_version, {}
        if number:
            newest = self.manifest(self.newest)
            check_follows(artefact, self.address, newest, self.version_of)
            past = self.canaries(newest.version)
        elif artefact.transform is not None:
            raise ShapeError("Version 0 has no previous version, so it takes no transform.")
        # The gate may only change the metrics.
        artefact = replace(artefact, metrics=gate(artefact).metrics)
        new_pairs = self.pair_history.new(artefact.trained)
        with self._writing():
            record = locks.unchanged(self.path, self.record, self.address, labels=False)
            if number:
                refuse_unprobed(self.address, artefact.metrics, number, record.resolve)
            locks.clear_left(self.path, record)
            target = self.path, self.name, number
            manifest = write_folders(target, artefact, past, self._newest_files(), new_pairs)
            salt = None if artefact.trained is None else artefact.trained[0]
            record = record.with_version(promote=promote, salt=salt)
            locks.write_record(self.path, record, self.remote)
            self.record = record
            self.manifests[number], self._chain = manifest, None
            # Before the lock is released, because then another process may publish a version.
            needed = {number, *record.labels.values()}
            for stale in (self.path / "embeddings").iterdir():
                if stale.name not in map(str, needed):
                    remove_folder(stale)
            if self.remote is not None:
                self.remote.keep_only("embeddings", map(str, needed))
                self.remote.keep_only("versions", map(str, record.versions))
        locks.clear_work(self.work_dir)
        return number

    def _newest_files(self) -> dict[str, Path]:
        """Return the stored files of the newest version by side; empty if one is damaged, so that a
        new version can still be published, without a forward map."""
        try:
            newest = self.versions[-1:]
            return {side: self.stored(side, m.version) for m in newest for side in m.embeddings}
        except (DataError, IntegrityError):
            return {}

    def check_ids(self, ids: Mapping[str, pa.Array]) -> None:
        """Refuse ids (by side) that are strings if the newest version's are integers, or that are
        its ids in another Unicode normal form. Raises: DataError."""
        check_ids(ids, self._newest_files(), self.address)

    # A training run.

    @contextmanager
    def training(self) -> Iterator[Path]:
        """Yield `work_dir` for one run, and prevent other processes on this machine from training
        the lineage's next version. Checkpoints of an interrupted run stay there. Raises:
        LineageError: another process is training it."""
        with locks.training_claim(self.work_dir, str(self)):
            try:
                yield self.work_dir
            finally:
                # The caches' contents are also in the checkpoint.
                for cache in self.work_dir.glob("cache-*.bin"):
                    cache.unlink(missing_ok=True)

    def refuse_unwritable(self) -> None:
        """Check that the folder is writable. Raises: LineageError: it is not."""
        try:
            try_writing(self.work_dir)
        except OSError as error:
            reason = f"Nothing can be written to {self}: {error.strerror or error}"
            raise LineageError(f"{reason}; nothing was trained.") from error
