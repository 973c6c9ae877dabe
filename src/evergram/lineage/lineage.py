"""The chain of versions: publish a new one, read any through the newest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import Transform, build_transform
from evergram.data.corpus import Vocabulary
from evergram.errors import IntegrityError, LineageError, ShapeError, UnknownVersionError
from evergram.lineage.artefact import Artefact, Block, write_version
from evergram.lineage.files import beside, load_tensors, write_text
from evergram.lineage.manifest import (
    FORMAT_VERSION,
    EncoderRecord,
    LineageRecord,
    Manifest,
    check_files,
    read_manifest,
    read_record,
    sha256,
)
from evergram.lineage.view import View
from evergram.stores.parquet import (
    read_embeddings,
    to_block,
    write_embeddings,
)


class Lineage:
    """A folder of versions. Only the newest version's embeddings are stored.

    A version becomes visible by one rename of `lineage.json`; whatever a killed process left
    before that is not part of the lineage, and the next publication clears it away.
    """

    def __init__(self, path: Path, record: LineageRecord) -> None:
        self.path = path
        self._record = record
        self._manifests = {n: read_manifest(self._folder(n)) for n in record.versions}
        self._chain: Chain | None = None
        for n, manifest in self._manifests.items():
            if manifest.version != n or (manifest.transform is None) != (n == 0):
                raise IntegrityError(
                    f"{self._folder(n)} holds the manifest of another version; "
                    "restore it from a copy of the lineage."
                )

    @classmethod
    def open(cls, path: str | Path) -> Lineage:
        """Raises: LineageError: there is none, or it is damaged or of a later format."""
        path = Path(path)
        return cls(path, read_record(path / "lineage.json"))

    @classmethod
    def create(cls, path: str | Path, name: str = "embeddings") -> Lineage:
        """A lineage without versions; nothing is written before the first is published.

        Raises: LineageError: one is there already.
        """
        path = Path(path)
        if (path / "lineage.json").exists():
            raise LineageError(
                f"{path} already holds a lineage; 'evergram upgrade' adds a version to it, or "
                "choose another folder."
            )
        if path.exists() and not path.is_dir():
            raise LineageError(f"{path} is a file; a lineage is a folder.")
        return cls(path, LineageRecord(format_version=FORMAT_VERSION, name=name, versions=[]))

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def versions(self) -> list[Manifest]:
        """The manifests of all versions, oldest first."""
        return list(self._manifests.values())

    @property
    def work(self) -> Path:
        """Where runs keep what they need to go on; no part of the lineage, gone once published."""
        return self.path / ".work"

    @property
    def newest(self) -> int:
        """Raises: UnknownVersionError: nothing is published yet."""
        if not self._record.versions:
            raise UnknownVersionError(f"{self.path} has no version yet; publish one first.")
        return self._record.versions[-1]

    @property
    def production(self) -> int:
        return self.newest

    def resolve(self, what: int | str | None) -> int:
        number = self.newest if what is None else int(str(what).removeprefix("v"))
        return self.manifest(number).version

    def forward(self, source: int, target: int) -> tuple[Tensor, Tensor] | None:
        return None

    def manifest(self, version: int) -> Manifest:
        """Raises: UnknownVersionError."""
        if version not in self._manifests:
            has = ", ".join(map(str, self._manifests)) or "none"
            raise UnknownVersionError(
                f"{self.path} has no version {version}; its versions are: {has}."
            )
        return self._manifests[version]

    def recipe(self, version: int) -> dict[str, Any]:
        """The whole recipe as it was run.

        Raises: LineageError: the version came from a file, no model was trained for it.
        """
        manifest = self.manifest(version)
        if manifest.encoder is None:
            raise LineageError(
                f"Version {version} of {self.path} came from a file of embeddings and has no "
                "model; only a version that was trained can be gone on from by training, or "
                "judged on its data ('evergram check' needs neither)."
            )
        return manifest.recipe

    def metrics(self, version: int) -> dict[str, Any]:
        """What was measured when the version was published."""
        folder = self._checked(version, "metrics.json")
        found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
        return found

    def check(self) -> None:
        """Compare every published file with its hash. Raises: IntegrityError: one differs."""
        for n, manifest in self._manifests.items():
            check_files(self._folder(n), manifest.files)
        for side in self.manifest(self.newest).embeddings:
            self.stored(side)

    @property
    def chain(self) -> Chain:
        """The backward transforms, read and checked once."""
        if self._chain is None:
            transforms = [self._transform(n) for n in self._record.versions[1:]]
            self._chain = Chain(transforms, self.manifest(0).dim)
        return self._chain

    def _transform(self, version: int) -> Transform:
        record = self.manifest(version).transform
        assert record is not None
        old, new = self.manifest(version - 1).dim, self.manifest(version).dim
        path = self._checked(version, "transform.safetensors") / "transform.safetensors"
        try:
            transform = build_transform(record.kind, old, new, record.options)
            transform.load_state_dict(load_tensors(path))
        except (ShapeError, RuntimeError) as error:
            raise IntegrityError(
                f"{path} does not lead from version {version} (dim {new}) to version {version - 1} "
                f"(dim {old}): {error}"
            ) from error
        return transform.requires_grad_(False).eval()

    @property
    def errors(self) -> dict[int, StepError]:
        """Σ_i of every version that was published with one."""
        found = {}
        for n in self._record.versions[1:]:
            if "error.safetensors" in self.manifest(n).files:
                tensors = load_tensors(self._checked(n, "error.safetensors") / "error.safetensors")
                found[n] = StepError(
                    tensors["sigma"], int(tensors["objects"]), float(tensors["power"])
                )
        return found

    def canaries(self, version: int) -> dict[str, Block]:
        """For each side, ids (as strings) and vectors [n, D] as they were at publication."""
        path = self._checked(version, "canary.parquet") / "canary.parquet"
        table = pq.read_table(path)
        sides = table["side"].combine_chunks()
        return {
            side: to_block(table.filter(pc.equal(sides, side)), path)
            for side in pc.unique(sides).to_pylist()
        }

    def view(self, version: int | None = None) -> View:
        """The newest embeddings as `version` (the newest itself by default) reads them.

        Raises: UnknownVersionError. IntegrityError: a file is not what was published.
        """
        source = self.newest
        target = source if version is None else version
        dim = self.manifest(target).dim
        return View(target, source, dim, self.chain, self.embeddings)

    def stored(self, side: str, version: int | None = None) -> Path:
        """The file of the newest version's vectors of a side, compared with its hash.

        Raises: LineageError: there is no such side. IntegrityError: it is not what was published.
        """
        manifest = self.manifest(self.newest)
        if side not in manifest.embeddings:
            sides = " and ".join(manifest.embeddings)
            raise LineageError(f"There is no side {side!r} in {self.path}; it has {sides}.")
        folder = self.path / "embeddings" / str(manifest.version)
        name = f"{side}.parquet"
        if not folder.is_dir():
            self._check_current()
        check_files(folder, {name: manifest.embeddings[side]})
        return folder / name

    def embeddings(self, side: str) -> tuple[pa.Array, Tensor]:
        """Ids [N] and vectors [N, D_k] of the newest version."""
        path, dim = self.stored(side), self.manifest(self.newest).dim
        ids, vectors = read_embeddings(path)
        if vectors.shape[1] != dim:
            raise IntegrityError(f"{path} has dim {vectors.shape[1]}, its manifest {dim}.")
        return ids, vectors

    def encoder_parts(
        self, version: int
    ) -> tuple[EncoderRecord, dict[str, Tensor], dict[str, Vocabulary]]:
        """How to build a version's encoder, its tensors, and its vocabularies.

        Raises: LineageError: the version came from a file and has none.
        """
        self.recipe(version)
        record = self.manifest(version).encoder
        assert record is not None
        folder = self._checked(version, "encoder.safetensors", "vocabularies.parquet")
        table = pq.read_table(folder / "vocabularies.parquet")
        names, keys = table["vocabulary"].combine_chunks(), table["key"].combine_chunks()
        vocabularies = {}
        for name, kind in record.vocabularies.items():
            mine = keys.filter(pc.equal(names, name))
            vocabularies[name] = Vocabulary(mine.cast(pa.type_for_alias(kind)))
        return record, load_tensors(folder / "encoder.safetensors"), vocabularies

    def publish(self, artefact: Artefact) -> int:
        """Add a version. Returns: its number.

        Raises: ShapeError: the transform does not lead from it to the newest. LineageError:
            another process is publishing or has published meanwhile, or the folder cannot be
            written; the lineage is then as it was.
        """
        number = len(self._record.versions)
        self._check_fits(number, artefact)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._clear(number)
                manifest = self._write(number, artefact)
                record = LineageRecord(
                    format_version=FORMAT_VERSION,
                    name=self.name,
                    versions=[*self._record.versions, number],
                )
                write_text(self.path / "lineage.json", record.model_dump_json(indent=2))
        except (OSError, SafetensorError) as error:
            raise LineageError(
                f"{self.path} cannot be written: {getattr(error, 'strerror', None) or error}; "
                "the lineage is as it was."
            ) from error
        self._record, self._chain = record, None
        self._manifests[number] = manifest
        for stale in (self.path / "embeddings").iterdir():
            if stale.name != str(number):
                shutil.rmtree(stale, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)
        return number

    def _write(self, number: int, artefact: Artefact) -> Manifest:
        """Both folders of a version, each written beside its place and renamed into it."""
        with beside(self.path / "embeddings" / str(number)) as folder:
            embeddings = {}
            for side, found in artefact.embeddings.items():
                blocks = found() if callable(found) else [found]
                write_embeddings(folder / f"{side}.parquet", blocks)
                embeddings[side] = sha256(folder / f"{side}.parquet")
        with beside(self._folder(number)) as folder:
            return write_version(folder, f"{self.name}@v{number}", number, artefact, embeddings)

    def _check_fits(self, number: int, artefact: Artefact) -> None:
        if number == 0 and artefact.transform is not None:
            raise ShapeError("Version 0 has no version before it and takes no transform.")
        if number:
            expected = (self.manifest(number - 1).dim, artefact.dim)
            found = artefact.transform
            given = None if found is None else (found.old_dim, found.new_dim)
            if given != expected:
                raise ShapeError(
                    f"Version {number} needs a transform of shape {expected}; {given} was given."
                )

    def _clear(self, number: int) -> None:
        """Remove what a killed publication left; nothing of it was ever listed."""
        self._check_current()
        shutil.rmtree(self._folder(number), ignore_errors=True)
        shutil.rmtree(self.path / "embeddings" / str(number), ignore_errors=True)
        for parent in (self.path / "versions", self.path / "embeddings"):
            parent.mkdir(exist_ok=True)
            for left in parent.glob(".*"):
                shutil.rmtree(left, ignore_errors=True)

    def _check_current(self) -> None:
        """Raises: LineageError: another process has published since this object was opened."""
        path = self.path / "lineage.json"
        on_disk = read_record(path).versions if path.exists() else []
        if on_disk != self._record.versions:
            newest = on_disk[-1] if on_disk else "none"
            raise LineageError(
                f"{self.path} has changed since it was opened (its newest version is {newest}); "
                "open it again."
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout:
            raise LineageError(
                f"Another process is publishing to {self.path}; wait for it and try again."
            ) from None

    def _folder(self, version: int) -> Path:
        return self.path / "versions" / str(version)

    def _checked(self, version: int, *names: str) -> Path:
        files = self.manifest(version).files
        missing = [name for name in names if name not in files]
        if missing:
            raise IntegrityError(f"The manifest of version {version} does not list {missing[0]}.")
        folder = self._folder(version)
        check_files(folder, {name: files[name] for name in names})
        return folder
