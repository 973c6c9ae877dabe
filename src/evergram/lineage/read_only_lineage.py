"""A lineage as its readers see it: its versions by number and label, and the files of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast, overload

import pyarrow as pa
from torch import Tensor

import evergram
from evergram.compatibility.certificate import StepError
from evergram.compatibility.chain import Chain
from evergram.data.corpus import Vocabulary
from evergram.gramian.new_queries.query_form import QueryForm
from evergram.lineage.artefact import Block
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.disk.lineage_record import Withdrawal
from evergram.lineage.disk.manifest import EncoderRecord, Manifest
from evergram.lineage.pair_history import PairHistory, pair_history_of
from evergram.lineage.publishing.publish_statistics import Moments
from evergram.lineage.stored_embeddings import stored_file, stored_vectors
from evergram.lineage.version_chain import VersionChain
from evergram.lineage.view import View, view_of

if TYPE_CHECKING:
    from evergram.encoders.encoder_modules import EncoderModules
    from evergram.encoders.module_encoder import ModuleEncoder
    from evergram.exporting.pretrained_encoder import PretrainedEncoder


class ReadOnlyLineage:
    """The versions of a lineage, to be read; `Lineage` is one that can also be changed.

    Args:
        catalog: its versions, opened; see `open`.
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

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Say whether there is a lineage, damaged or not. Raises: LineageError: out of reach."""
        return Catalog.exists(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (self.place,)

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        readable = self.readable
        numbers = ", ".join(map(str, readable)) or "none"
        if len(readable) > 5:
            numbers = f"{readable[0]} to {readable[-1]} ({len(readable)} of them)"
        live = f", production {self.production}" if readable else ""
        kind = type(self).__name__
        return f"{kind}({self.name!r} at {self.address}, versions {numbers}{live})"

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
    def place(self) -> str:
        """The address, independent of the current folder."""
        return self._catalog.place

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

    # The files of a version.

    def recipe(self, version: int) -> dict[str, Any]:
        """Return the whole recipe of a version as it was run.

        Raises: LineageError: the version came from a file, and has no model.
        """
        return self._catalog.recipe(version)

    def metrics(self, version: int) -> dict[str, Any]:
        """Return what was measured when a version was published."""
        return self._catalog.reader(version).metrics()

    def canaries(self, version: int) -> dict[str, Block]:
        """Return, for each side, ids (as strings) and vectors [n, D] as they were published."""
        return self._catalog.reader(version).canaries()

    def moments(self, version: int) -> dict[str, Moments]:
        """Return, by side, the number of vectors, their mean [D] and E[z zᵀ] [D, D], float64."""
        return self._catalog.reader(version).moments()

    def query_form(self, version: int) -> QueryForm | None:
        """Return how a version folds in new queries; None if that was not published."""
        return self._catalog.reader(version).query_form()

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
        # The rooms above that run encoders are reached through the package's public names.
        if module is not None:
            own = evergram.load_encoder(self, self.resolve(version), module)
            return cast("ModuleEncoder", own)
        encoder: PretrainedEncoder = evergram.PretrainedEncoder.of_version(self, version)
        return encoder

    @property
    def pair_history(self) -> PairHistory:
        """The pairs that versions but the withdrawn were trained on; none is tested on them."""
        return pair_history_of(self._catalog)

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

    def view(self, version: int | str | None = None, source: int | str | None = None) -> View:
        """Return the stored embeddings of one version, read as another.

        Args:
            version: the version that they are read as; by default `source`, or else production.
            source: the version whose embeddings are stored; by default production, as in a
                service, or the newest to read a version after production.
        Raises: UnknownVersionError. LineageError: the version is retired, or later than source.
            IntegrityError: a file is not what was published.
        """
        return view_of(self._catalog, self.chain, version, source)

    def stored(self, side: str, version: int | None = None) -> Path:
        """Return the file of a version's vectors of a side, by default production's, compared with
        its hash.

        Raises: LineageError: there is no such side, or the version's vectors are not stored.
            IntegrityError: the file is not what was published.
        """
        return stored_file(self._catalog, side, version)

    def embeddings(self, side: str, version: int | None = None) -> tuple[pa.Array, Tensor]:
        """Return the ids [N] and vectors [N, D_k] of a side of a version, by default production.

        Raises: as `stored`.
        """
        return stored_vectors(self._catalog, side, version)

    # Which files are whole.

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
        in it."""
        return self._catalog.opened_files

    @property
    def checked_files(self) -> list[str]:
        """The paths in the lineage of all files that `lineage check` compares with hashes."""
        return [*self.opened_files, *(f for n in self._catalog.manifests for f in self.files(n))]
