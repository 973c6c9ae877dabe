"""The chain of versions: publish a new one, read any through the newest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast, overload

import pyarrow as pa
from torch import Tensor

import evergram
from evergram.compatibility.certificate import StepError
from evergram.compatibility.chain import Chain
from evergram.data.corpus import Vocabulary
from evergram.errors import LineageError
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.catalog import Catalog
from evergram.lineage.disk.lineage_record import Withdrawal
from evergram.lineage.disk.manifest import EncoderRecord, Manifest
from evergram.lineage.locks.training_claim import training_claim
from evergram.lineage.pair_history import PairHistory, join_histories
from evergram.lineage.publishing.lost_race import read_lost
from evergram.lineage.publishing.publication import check_id_types, publish_version
from evergram.lineage.publishing.publish_statistics import Moments
from evergram.lineage.record_changes import NEWEST, STABLE
from evergram.lineage.stored_embeddings import stored_file, stored_vectors
from evergram.lineage.version_chain import VersionChain
from evergram.lineage.version_reader import VersionReader
from evergram.lineage.view import View

if TYPE_CHECKING:
    from evergram.encoders.encoder_modules import EncoderModules
    from evergram.encoders.module_encoder import ModuleEncoder
    from evergram.retrieval.pretrained.pretrained_encoder import PretrainedEncoder


class Lineage:
    """A folder of versions. The embeddings of the newest are stored, and of what has a label.

    >>> from evergram import Lineage
    >>> lineage = Lineage.open("lineages/films")
    >>> [manifest.version for manifest in lineage.versions]
    [0, 1, 2]
    >>> ids, vectors = lineage.embeddings("candidate")  # of the newest version, as stored
    >>> vectors.shape[1] == lineage.manifest(2).dim
    True

    A version becomes visible by one rename of `lineage.json`, and so does every change of labels;
    whatever a killed process left before that is not part of the lineage, and the next publication
    clears it away.

    Args:
        catalog: its versions, opened; see `open` and `create`.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._chain = VersionChain(catalog)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the lineage in a folder, or at an fsspec address such as `s3://bucket/shop`.

        Raises: LineageError: there is none, it is damaged, of a later format or out of reach.
        """
        return cls(Catalog.open(path))

    @classmethod
    def create(cls, path: str | Path, name: str = "embeddings") -> Self:
        """Return a new lineage without versions; nothing is written before one is published.

        Args:
            name: letters, digits, '.', '_' and '-', beginning with a letter or a digit.
        Raises: LineageError: a lineage is there already, or the name cannot be used.
        """
        return cls(Catalog.create(path, name))

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Say whether there is a lineage, damaged or not. Raises: LineageError: out of reach."""
        return Catalog.exists(path)

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        known = self.readable
        numbers = ", ".join(map(str, known)) or "none"
        if len(known) > 5:
            numbers = f"{known[0]} to {known[-1]} ({len(known)} of them)"
        live = f", production {self.production}" if known else ""
        return f"Lineage({self.name!r} at {self.address}, versions {numbers}{live})"

    # Which versions there are.

    @property
    def path(self) -> Path:
        """The folder; of a lineage that lives elsewhere, its mirror on this machine."""
        return self._catalog.path

    @property
    def address(self) -> str:
        """The folder, or the address that `path` is a mirror of."""
        return self._catalog.address

    @property
    def name(self) -> str:
        """The name in its versions' names: version 3 of "shop" is "shop@v3"."""
        return self._catalog.name

    @property
    def versions(self) -> list[Manifest]:
        """The manifests of all versions but the withdrawn, oldest first; see `retired`."""
        return self._catalog.versions

    @property
    def readable(self) -> list[int]:
        """The versions that are neither withdrawn nor retired, ascending."""
        return self._catalog.readable

    @property
    def retired(self) -> list[int]:
        """Versions that are no longer read, though the chain still leads through them."""
        return self._catalog.retired

    @property
    def withdrawn(self) -> dict[int, Withdrawal]:
        """The versions that were taken back, and why; each is an identity step in the chain."""
        return self._catalog.withdrawn

    @property
    def newest(self) -> int:
        """The latest version. Raises: UnknownVersionError: nothing is published yet."""
        return self._catalog.newest

    @property
    def next_version(self) -> int:
        """The number that the next version gets."""
        return self._catalog.next_version

    @property
    def production(self) -> int:
        """The version labelled `stable`, else the newest. Raises: UnknownVersionError."""
        return self._catalog.production

    @property
    def labels(self) -> dict[str, int]:
        """The version that each label is on."""
        return self._catalog.labels

    @property
    def versions_with_embeddings(self) -> list[int]:
        """The versions whose own embeddings are stored, ascending: the newest, and those that had a
        label when the newest was published, or since."""
        return self._catalog.versions_with_embeddings

    def resolve(self, what: int | str | None) -> int:
        """Return the number of a version.

        Args:
            what: a number, its text ("0", "v0"), a label, "newest", or None for production.
        Raises: UnknownVersionError: there is none, or it was withdrawn. LineageError: retired.
        """
        return self._catalog.resolve(what)

    def manifest(self, version: int) -> Manifest:
        """Return the manifest of a version. Raises: UnknownVersionError: there is none."""
        return self._catalog.manifest(version)

    def version_of(self, fingerprint: str) -> int | None:
        """Return the latest version, withdrawn or not, with this fingerprint; None if none has."""
        return self._catalog.version_of(fingerprint)

    def check_fingerprint(self, fingerprint: str | None, version: int, what: str) -> None:
        """Refuse vectors of another version than they are said to be of; see `Catalog`.

        Raises: LineageError: the fingerprint is another version's.
        """
        self._catalog.check_fingerprint(fingerprint, version, what)

    # Changes of labels and versions.

    def label(self, name: str, version: int | str) -> None:
        """Put a label on a version, or move it there; `stable` is the label of production.

        Raises: UnknownVersionError: no such version. LineageError: the name cannot be a label; the
            label is `stable` and the version's embeddings are not stored; or, as for all changes,
            another process has changed the lineage since it was opened, or is changing it.
        """
        self._catalog.label(name, version)

    def unlabel(self, name: str) -> None:
        """Remove a label. Raises: LineageError: there is none, or a consumer is pinned to it."""
        self._catalog.unlabel(name)

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
        self._catalog.withdraw(version, reason)

    def retire(self, version: int | str) -> None:
        """End the reading of a version; the chain still leads through it.

        Raises: LineageError: it is the newest, or a label or a consumer is on it.
        """
        self._catalog.retire(version)

    def publish(self, artefact: Artefact, *, promote: bool = True) -> int:
        """Add a version. Returns: its number.

        Where consumers have probes, `evergram.publish` runs them first, and is the only way.

        Args:
            promote: whether production moves to it. If not, `stable` stays on, or is put on, the
                version in production now, whose embeddings are then kept.
        Raises: ShapeError: the transform does not lead from it to the newest. DataError: a vector
            is not finite. LineageError: a consumer's probe was not run on it; another process is
            publishing or has published meanwhile; or the folder cannot be written; the lineage is
            then as it was.
        """
        return publish_version(self._catalog, artefact, self.pair_history, promote=promote)

    # What is kept of a version.

    def recipe(self, version: int) -> dict[str, Any]:
        """Return the whole recipe of a version as it was run.

        Raises: LineageError: the version came from a file, and has no model.
        """
        manifest = self.manifest(version)
        if manifest.encoder is None:
            raise LineageError(
                f"Version {version} of {self} came from a file of embeddings and has no "
                "model. Only a version that was trained can be trained further, or judged on its "
                "data; 'evergram check' needs neither."
            )
        return manifest.recipe

    def metrics(self, version: int) -> dict[str, Any]:
        """Return what was measured when a version was published."""
        return self._catalog.reader(version).metrics()

    def canaries(self, version: int) -> dict[str, Block]:
        """Return, for each side, ids (as strings) and vectors [n, D] as they were published."""
        return self._catalog.reader(version).canaries()

    def moments(self, version: int) -> dict[str, Moments]:
        """Return, for each side, of how many published vectors, their mean [D] and E[z zᵀ] [D, D],
        float64. Empty for a version of before format 3."""
        return self._catalog.reader(version).moments()

    def encoder_parts(
        self, version: int
    ) -> tuple[EncoderRecord, dict[str, Tensor], dict[str, Vocabulary]]:
        """Return how to build a version's encoder, its tensors, and its vocabularies.

        Raises: LineageError: the version came from a file and has none.
        """
        self.recipe(version)
        return self._catalog.reader(version).encoder()

    @overload
    def encoder(self, version: int | str | None = None) -> PretrainedEncoder: ...

    @overload
    def encoder(
        self, version: int | str | None = None, *, module: EncoderModules
    ) -> ModuleEncoder: ...

    def encoder(
        self, version: int | str | None = None, *, module: EncoderModules | None = None
    ) -> PretrainedEncoder | ModuleEncoder:
        """Return a version's encoder, ready for `encode`; by default production's.

        Args:
            module: the modules that the version was trained with, if they were your own; copies of
                them are filled.
        Raises: UnknownVersionError. LineageError: the version came from a file and has none; or
            modules are needed and none were given, or the other way round. ShapeError, DataError:
            they are other modules than those that it was trained with.
        """
        # A lineage stores encoders and knows none; the rooms above that run them are reached
        # through the package's public names.
        if module is not None:
            number = self.production if version is None else self.resolve(version)
            own = evergram.load_encoder(self, number, module)
            return cast("ModuleEncoder", own)
        encoder: PretrainedEncoder = evergram.PretrainedEncoder.of_version(self, version)
        return encoder

    @property
    def pair_history(self) -> PairHistory:
        """The pairs that its versions were trained on, so that a later one is not tested on them. A
        withdrawn version does not count: nothing leads through it."""
        pairs = {}
        for n, manifest in self._catalog.manifests.items():
            recorded = self._catalog.reader(n).trained_pairs()
            if recorded is not None or manifest.encoder is not None:
                pairs[n] = recorded
        record = self._catalog.record
        return join_histories(record.salt, record.versions, pairs, str(self))

    # From one version to another.

    @property
    def chain(self) -> Chain:
        """The backward transforms by version; that of a withdrawn version is the identity."""
        return self._chain.whole

    @property
    def active_chain(self) -> Chain:
        """The backward transforms without those of withdrawn versions, which a new version need not
        be aligned to; its steps are not numbered as the versions are."""
        return self._chain.active

    @property
    def step_errors(self) -> dict[int, StepError]:
        """Σ_i of every version that was published with one; zero for a withdrawn version."""
        return self._chain.step_errors

    def forward(self, source: int, target: int) -> tuple[Tensor, Tensor] | None:
        """Return the affine map from an earlier version to a later one.

        Returns: W [D_target, D_source] and the offset [D_target], float64; None if a version on the
            way was published without a forward map.
        Raises: UnknownVersionError. LineageError: `target` is the earlier one.
        """
        return self._chain.forward(source, target)

    def view(self, version: int | str | None = None, source: int | None = None) -> View:
        """Return the stored embeddings of one version as another reads them.

        Args:
            version: who reads; `source` by default.
            source: whose stored embeddings; the newest's by default.
        Raises: UnknownVersionError. LineageError: the version is retired, or later than source.
            IntegrityError: a file is not what was published.
        """
        of = self.newest if source is None else self.resolve(source)
        target = of if version is None else self.resolve(version)
        self.chain.is_affine(of, target)  # refuses a way forward
        return View(
            target,
            of,
            self.manifest(target).dim,
            self.manifest(target).fingerprint,
            self.manifest(of).fingerprint,
            self.chain,
            lambda side: self.embeddings(side, of),
        )

    def stored(self, side: str, version: int | None = None) -> Path:
        """Return the file of a version's vectors of a side, by default the newest's, compared with
        its hash.

        Raises: LineageError: there is no such side, or the version's vectors are not stored.
            IntegrityError: the file is not what was published.
        """
        return stored_file(self._catalog, side, version)

    def embeddings(self, side: str, version: int | None = None) -> tuple[pa.Array, Tensor]:
        """Return the ids [N] and vectors [N, D_k] of a side of a version, by default the newest.

        Raises: as `stored`.
        """
        return stored_vectors(self._catalog, side, version)

    def check_ids(self, ids: Mapping[str, pa.Array]) -> None:
        """Refuse ids, by side, that are text where those of the newest version are integers.

        Raises: DataError: an id of a side is no integer.
        """
        check_id_types(self._catalog, ids)

    # Files.

    def files(self, version: int) -> dict[str, bool]:
        """Return, for each published file of a version by its path in the lineage, whether it was
        compared with its hash since the lineage was opened, as every file is when it is read.

        Raises: UnknownVersionError.
        """
        return self._catalog.files(version)

    def check(self) -> None:
        """Compare every published file with its hash. Raises: IntegrityError: one differs."""
        for n in self._catalog.manifests:
            self._catalog.reader(n).check()
        for n in self.versions_with_embeddings:
            for side in self.manifest(n).embeddings:
                self.stored(side, n)

    @property
    def opened_files(self) -> list[str]:
        """The JSON files whose checksums were compared when the lineage was opened, by their paths
        in it; those that were written before format 3 have none."""
        return self._catalog.opened_files

    @property
    def checked_files(self) -> list[str]:
        """The paths in the lineage of all files that `check` compares with a hash or checksum."""
        return [*self.opened_files, *(f for n in self._catalog.manifests for f in self.files(n))]

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
        elsewhere = nullcontext() if remote is None else remote.training()
        with training_claim(self.work_dir, str(self)), elsewhere:
            try:
                yield self.work_dir
            finally:
                # The contents of a cache are part of a checkpoint.
                for cache in self.work_dir.glob("cache-*.bin"):
                    cache.unlink(missing_ok=True)

    def lost(self) -> VersionReader:
        """Return the model of an upgrade that was not published, as another version came first.

        Raises: LineageError: none is kept.
        """
        return read_lost(self.path, self.work_dir, str(self))
