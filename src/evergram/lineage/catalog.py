"""What is published in a lineage: its versions by number and label, and the files of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform, Transform
from evergram.data.corpus import Vocabulary
from evergram.data.pair_hash import TrainedPairs
from evergram.did_you_mean import did_you_mean
from evergram.errors import IntegrityError, LineageError
from evergram.gramian.new_queries.query_form import QueryForm
from evergram.lineage.artefact import Block
from evergram.lineage.locks import unchanged
from evergram.lineage.manifest import EncoderRecord, Manifest, check_files, read_manifest
from evergram.lineage.paths import check_inside, check_name, check_parts, refuse_occupied
from evergram.lineage.publish_statistics import Moments
from evergram.lineage.record import (
    FORMAT_VERSION,
    LineageRecord,
    Withdrawal,
    parse_record,
    read_record,
)
from evergram.lineage.remote import RECORD, Remote, local_folder
from evergram.lineage.version_files import PAIRS, VersionReader
from evergram.vector_files.open_embeddings import EmbeddingFile, open_embeddings
from evergram.vector_files.writers import read_embeddings


def side_of(sides: Collection[str], where: str, side: str | None = None) -> str:
    """Return a side of those that there are: by default "candidate", or else the first.

    Args:
        where: what has the sides, for the error.
    Raises: LineageError: there is no such side.
    """
    if side is None:
        return "candidate" if "candidate" in sides else next(iter(sides))
    if side not in sides:
        raise LineageError(
            f"There is no side {side!r} in {where}; it has {' and '.join(sides)}"
            f"{did_you_mean(side, sides)}."
        )
    return side


@dataclass(frozen=True)
class PairHistory:
    """The pairs that a version of the lineage may not be tested on.

    Args:
        salt: of the pairs' hashes, recorded with version 0; None before that, and in a lineage of
            files.
        trained: the pairs that any version was trained on, hashed with this salt.
        untested: a sentence on why no pair is known to be held out from all versions; None if that
            is known.
    """

    salt: str | None = None
    trained: TrainedPairs = field(default_factory=TrainedPairs)
    untested: str | None = None

    def new(self, trained: tuple[str, TrainedPairs] | None) -> TrainedPairs | None:
        """Return the pairs that no version was trained on before; None if that is not known.

        Args:
            trained: a version's training pairs, and the salt of their hashes.
        """
        if trained is None or self.untested is not None or self.salt not in (None, trained[0]):
            return None
        return trained[1].without(self.trained)


class Catalog:
    """The versions of a lineage as they were when it was opened; `Lineage` adds views and changes.

    Args:
        path: the folder; of a lineage that lives elsewhere, its mirror.
        record: `lineage.json`.
        remote: where the lineage lives, if that is elsewhere.
    Raises: IntegrityError: a manifest is damaged or is another version's.
    """

    def __init__(self, path: Path, record: LineageRecord, remote: Remote | None = None) -> None:
        self.path = path
        self.remote = remote
        self.record: LineageRecord = record
        # Paths of the files that were compared with their hashes since it was opened.
        self._checked: set[str] = set()
        # The numbers of the versions, and the chain that was read of them.
        self._read: tuple[tuple[int, ...], Chain] | None = None
        check_inside(path, *(self.folder(n) / "manifest.json" for n in record.versions))
        # By number, of all versions but the withdrawn.
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
        """Open the lineage in a folder, or at an fsspec address such as `s3://bucket/shop`.

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
        """Say whether there is a lineage, damaged or not. Raises: LineageError: out of reach."""
        folder = local_folder(path)
        if folder is None:
            return Remote(str(path)).pull() is not None
        return (folder / RECORD).exists()

    @classmethod
    def create(cls, path: str | Path, name: str = "embeddings") -> Self:
        """Return a new lineage without versions; nothing is written before one is published.

        Args:
            name: letters, digits, '.', '_' and '-', beginning with a letter or a digit.
        Raises: LineageError: a lineage or other files are there already, or the name cannot be
            used.
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

    # Which versions there are.

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
        """The name in its versions' names: version 3 of "shop" is "shop@v3"."""
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
        return self.record.readable

    @property
    def retired(self) -> list[int]:
        """Versions that are no longer read, though the chain still leads through them."""
        return list(self.record.retired)

    @property
    def withdrawn(self) -> dict[int, Withdrawal]:
        """The versions that were taken back, and why; each is an identity step in the chain."""
        return dict(self.record.withdrawn)

    @property
    def newest(self) -> int:
        """The latest version. Raises: UnknownVersionError: nothing is published yet."""
        return self.record.newest

    @property
    def next_version(self) -> int:
        """The number that the next version gets."""
        return self.record.next_version

    @property
    def production(self) -> int:
        """The version labelled `stable`, else the newest. Raises: UnknownVersionError."""
        return self.record.production

    @property
    def labels(self) -> dict[str, int]:
        """The version that each label is on."""
        return dict(self.record.labels)

    @property
    def versions_with_embeddings(self) -> list[int]:
        """The versions whose own embeddings are stored, ascending: the newest, and those that had a
        label when the newest was published, or since."""
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
        """Return the latest version, withdrawn or not, with this fingerprint; None if none has."""
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
        """Return the whole recipe of a version as it was run.

        Raises: LineageError: the version came from a file, and has no model.
        """
        manifest = self.manifest(version)
        if manifest.encoder is None:
            raise LineageError(
                f"Version {version} of {self.address} came from a file of embeddings and has no "
                "model. Only a version that was trained can be trained further, or judged on its "
                "data; 'evergram lineage check' needs neither."
            )
        return manifest.recipe

    def metrics(self, version: int) -> dict[str, Any]:
        """Return what was measured when a version was published."""
        return self.reader(version).metrics()

    def canaries(self, version: int) -> dict[str, Block]:
        """Return, for each side, ids (as strings) and vectors [n, D] as they were published."""
        return self.reader(version).canaries()

    def moments(self, version: int) -> dict[str, Moments]:
        """Return, by side, the number of vectors, their mean [D] and E[z zᵀ] [D, D], float64."""
        return self.reader(version).moments()

    def query_form(self, version: int) -> QueryForm | None:
        """Return how a version folds in new queries; None if that was not published."""
        return self.reader(version).query_form()

    def encoder_parts(
        self, version: int
    ) -> tuple[EncoderRecord, dict[str, Tensor], dict[str, Vocabulary]]:
        """Return how to build a version's encoder, its tensors, and its vocabularies.

        Raises: LineageError: the version came from a file and has none.
        """
        self.recipe(version)
        return self.reader(version).encoder()

    def stored(self, side: str, version: int | None = None) -> Path:
        """Return the file of a version's vectors of a side, by default production's, compared with
        its hash.

        Raises: LineageError: there is no such side, or the version's vectors are not stored.
            IntegrityError: the file is not what was published.
        """
        manifest = self.manifest(self.resolve(version))
        side_of(manifest.embeddings, str(self.address), side)
        folder = self.embeddings_folder(manifest.version)
        name = f"{side}.parquet"
        if not folder.is_dir():
            unchanged(self.path, self.record, self.address, labels=True)
            if manifest.version != self.newest:
                has = ", ".join(map(str, self.versions_with_embeddings))
                raise LineageError(
                    f"The embeddings of version {manifest.version} of {self.address} are not "
                    f"stored, those of {has} are; read them as that version, through the chain."
                )
        self.check_files(folder, {name: manifest.embeddings[side]})
        return folder / name

    def stored_blocks(self, side: str, version: int | None = None) -> EmbeddingFile:
        """Return the file of `stored` to be read block by block. Raises: as `stored`."""
        number = self.resolve(version)
        path, dim = self.stored(side, number), self.manifest(number).dim
        file = open_embeddings(path)
        if file.dim != dim:
            raise IntegrityError(f"{path} has dim {file.dim}, its manifest {dim}.")
        return file

    def embeddings(self, side: str, version: int | None = None) -> tuple[pa.Array, Tensor]:
        """Return the ids [N] and vectors [N, D_k] of a side of a version, by default production.

        Raises: as `stored`.
        """
        number = self.resolve(version)
        path, dim = self.stored(side, number), self.manifest(number).dim
        ids, vectors = read_embeddings(path)
        if vectors.shape[1] != dim:
            raise IntegrityError(f"{path} has dim {vectors.shape[1]}, its manifest {dim}.")
        if len(ids) != len(vectors) or ids.null_count:
            raise IntegrityError(f"{path} has a row without an id or without a vector.")
        return ids, vectors

    @property
    def pair_history(self) -> PairHistory:
        """The pairs that versions were trained on; none is tested on them.

        Withdrawn versions do not count, as no later version is aligned to them, nor do versions
        that came from a file, as they have no model.
        """
        record = self.record
        pairs = {
            number: self.reader(number).trained_pairs()
            for number, manifest in self.manifests.items()
            if manifest.encoder is not None or PAIRS in manifest.files
        }
        unrecorded = [number for number, trained in pairs.items() if trained is None]
        if unrecorded or (record.salt is None and record.versions):
            untested = _unrecorded(unrecorded or record.versions, self.address)
            return PairHistory(record.salt, untested=untested)
        recorded = [trained for trained in pairs.values() if trained is not None]
        return PairHistory(record.salt, TrainedPairs().union(recorded))

    # From one version to another.

    @property
    def chain(self) -> Chain:
        """The backward transforms by version; that of a withdrawn version is the identity."""
        numbers = self.next_version, *self.manifests
        if self._read is None or self._read[0] != numbers:
            dim = self.manifest(0).dim
            transforms: list[Transform] = []
            for n in range(1, self.next_version):
                if n in self.manifests:
                    transforms.append(self.reader(n).transform(dim))
                    dim = self.manifest(n).dim
                else:
                    transforms.append(LinearTransform.from_matrix(torch.eye(dim)))
            self._read = numbers, Chain(transforms, self.manifest(0).dim)
        return self._read[1]

    @property
    def active_chain(self) -> Chain:
        """The backward transforms without those of withdrawn versions, which a new version need not
        be aligned to; its steps are not numbered as the versions are."""
        kept = [t for n, t in enumerate(self.chain.transforms, start=1) if n in self.manifests]
        return Chain(kept, self.manifest(0).dim)

    @property
    def step_errors(self) -> dict[int, StepError]:
        """Σ_i of every version that was published with one; zero for a withdrawn version."""
        errors = {}
        for n in range(1, self.next_version):
            if n in self.manifests:
                error = self.reader(n).error(self.chain.dim(n - 1))
            else:
                dim = self.chain.dim(n)
                error = StepError(torch.zeros(dim, dim, dtype=torch.float64), 0, math.nan)
            if error is not None:
                errors[n] = error
        return errors

    def forward(self, source: int, target: int) -> tuple[Tensor, Tensor] | None:
        """Return the affine map from an earlier version to a later one.

        Returns: W [D_target, D_source] and the offset [D_target], float64; None if a version on the
            way was published without a forward map.
        Raises: UnknownVersionError. LineageError: `target` is the earlier one.
        """
        dim = self.manifest(source).dim
        self.manifest(target)
        if target < source:
            raise LineageError(
                f"Version {target} is before version {source}; the chain leads back to it."
            )
        weight = torch.eye(dim, dtype=torch.float64)
        offset = torch.zeros(dim, dtype=torch.float64)
        for n in range(source + 1, target + 1):
            if n in self.manifests:
                step = self.reader(n).forward(self.chain.dim(n - 1))
                if step is None:
                    return None
                weight, offset = step[0] @ weight, step[0] @ offset + step[1]
        return weight, offset

    # Which files are whole.

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

    def files(self, version: int) -> dict[str, bool]:
        """Return, for each published file of a version by its path in the lineage, whether it was
        compared with its hash since the lineage was opened, as every file is when it is read.

        Raises: UnknownVersionError.
        """
        manifest = self.manifest(version)
        names = [f"versions/{version}/{name}" for name in manifest.files]
        if version in self.versions_with_embeddings:
            names += [f"embeddings/{version}/{side}.parquet" for side in manifest.embeddings]
        return {name: name in self._checked for name in sorted(names)}

    def check(self) -> None:
        """Compare every published file with its hash. Raises: IntegrityError: one differs."""
        for n in self.manifests:
            self.reader(n).check()
        for n in self.versions_with_embeddings:
            for side in self.manifest(n).embeddings:
                self.stored(side, n)

    @property
    def opened_files(self) -> list[str]:
        """The JSON files whose checksums were compared when the lineage was opened, by their paths
        in it."""
        return ["lineage.json", *(f"versions/{n}/manifest.json" for n in self.manifests)]

    @property
    def checked_files(self) -> list[str]:
        """The paths in the lineage of all files that `lineage check` compares with hashes."""
        return [*self.opened_files, *(f for n in self.manifests for f in self.files(n))]


def _unrecorded(versions: Sequence[int], where: str) -> str:
    """Return why nothing can be tested in a lineage whose `versions` did not record their pairs."""
    names = ", ".join(map(str, versions))
    return (
        f"No test figure: the training pairs of version{'s' * (len(versions) > 1)} {names} of "
        f"{where} were not recorded, so no pair is known to be held out from every version; train "
        "a new lineage to have test figures."
    )
