"""The chain of versions: publish a new one, read any through the newest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform, Transform
from evergram.data.corpus import Vocabulary
from evergram.data.pair_hash import TrainedPairs
from evergram.errors import (
    DataError,
    IntegrityError,
    LineageError,
    ShapeError,
)
from evergram.lineage import record_changes
from evergram.lineage.artefact import Artefact, Block, are_metrics, write_version
from evergram.lineage.catalog import Register
from evergram.lineage.consumers.probe_check import refuse_unprobed
from evergram.lineage.disk.atomic import beside, file_mode, remove
from evergram.lineage.disk.lineage_record import LineageRecord
from evergram.lineage.disk.manifest import EncoderRecord, Manifest, sha256
from evergram.lineage.disk.names import check_name
from evergram.lineage.locks.training_claim import clear_work, training_claim
from evergram.lineage.locks.write_lock import clear_left, unchanged, write_record, writing
from evergram.lineage.lost_race import keep_lost, read_lost
from evergram.lineage.pair_history import PairHistory, unrecorded
from evergram.lineage.publish_statistics import Moments, Sample, forward_map
from evergram.lineage.version_reader import Contents
from evergram.lineage.view import View
from evergram.vector_files.parquet import read_embeddings, write_embeddings


class Lineage(Register):
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
    """

    # Numbers of the versions, and the chain that was read of them.
    _chain: tuple[tuple[int, ...], Chain] | None = None

    # What is kept of a version.

    @property
    def work(self) -> Path:
        """Where runs keep what they need to go on; no part of the lineage, gone once published."""
        return self.path / ".work"

    @contextmanager
    def training(self) -> Iterator[Path]:
        """Yield `work` for one run, and keep other processes from training the lineage's next
        version meanwhile. What an interrupted run needs stays there; nothing empty does.

        Raises: LineageError: another one trains it; who, and since when, is said. Of a lineage that
            is elsewhere this is known of the processes of this machine, and said on stderr of
            others.
        """
        elsewhere = nullcontext() if self._remote is None else self._remote.training()
        with training_claim(self.work, str(self)), elsewhere:
            try:
                yield self.work
            finally:
                # What a cache holds is kept with the rest of a run's state.
                for cache in self.work.glob("cache-*.bin"):
                    cache.unlink(missing_ok=True)

    def lost(self) -> Contents:
        """The model of an upgrade that another one came before. Raises: LineageError: no such."""
        return read_lost(self.path, self.work, str(self))

    def recipe(self, version: int) -> dict[str, Any]:
        """The whole recipe as it was run.

        Raises: LineageError: the version came from a file, no model was trained for it.
        """
        manifest = self.manifest(version)
        if manifest.encoder is None:
            raise LineageError(
                f"Version {version} of {self} came from a file of embeddings and has no "
                "model; only a version that was trained can be gone on from by training, or "
                "judged on its data ('evergram check' needs neither)."
            )
        return manifest.recipe

    def metrics(self, version: int) -> dict[str, Any]:
        """What was measured when the version was published."""
        return self._contents(version).metrics()

    def canaries(self, version: int) -> dict[str, Block]:
        """For each side, ids (as strings) and vectors [n, D] as they were at publication."""
        return self._contents(version).canaries()

    def moments(self, version: int) -> dict[str, Moments]:
        """By side: of how many published vectors, their mean [D] and E[z zᵀ] [D, D], float64.
        Empty for a version of before format 3."""
        return self._contents(version).moments()

    @property
    def pair_history(self) -> PairHistory:
        """What its versions were trained on, so that a later one is not tested on it. A withdrawn
        version does not count: nothing leads through it."""
        trained, without = [], []
        for n, manifest in self._manifests.items():
            pairs = self._contents(n).trained_pairs()
            if pairs is not None:
                trained.append(pairs)
            elif manifest.encoder is not None:
                without.append(n)
        salt = self._record.salt
        if without or (salt is None and self._manifests):
            missing = without or list(self._manifests)
            return PairHistory(salt, untested=unrecorded(missing, str(self)))
        return PairHistory(salt, TrainedPairs().union(trained))

    def encoder_parts(
        self, version: int
    ) -> tuple[EncoderRecord, dict[str, Tensor], dict[str, Vocabulary]]:
        """How to build a version's encoder, its tensors, and its vocabularies.

        Raises: LineageError: the version came from a file and has none.
        """
        self.recipe(version)
        return self._contents(version).encoder()

    def check(self) -> None:
        """Compare every published file with its hash. Raises: IntegrityError: one differs."""
        for n in self._manifests:
            self._contents(n).check()
        for n in self.held:
            for side in self.manifest(n).embeddings:
                self.stored(side, n)

    @property
    def checked_files(self) -> list[str]:
        """The names, in the lineage's folder, of what `check` has compared when it returns."""
        found = self.opened_files
        for n, manifest in self._manifests.items():
            found += [f"versions/{n}/{name}" for name in sorted(manifest.files)]
        for n in self.held:
            found += [f"embeddings/{n}/{side}.parquet" for side in self.manifest(n).embeddings]
        return found

    @property
    def opened_files(self) -> list[str]:
        """The names of what was read when it was opened and agreed with the checksum in it; what
        was written before format 3 has none."""
        records = {"lineage.json": self._record} | {
            f"versions/{n}/manifest.json": m for n, m in self._manifests.items()
        }
        return [name for name, record in records.items() if "check" in record.model_fields_set]

    # From one version to another.

    @property
    def chain(self) -> Chain:
        """The backward transforms by number, read and checked once; a withdrawn version's is the
        identity."""
        numbers = self.following, *self._manifests
        if self._chain is None or self._chain[0] != numbers:
            dim = self.manifest(0).dim
            transforms: list[Transform] = []
            for n in range(1, self.following):
                if n in self._manifests:
                    transforms.append(self._contents(n).transform(dim))
                    dim = self.manifest(n).dim
                else:
                    transforms.append(LinearTransform.from_matrix(torch.eye(dim)))
            self._chain = numbers, Chain(transforms, self.manifest(0).dim)
        return self._chain[1]

    @property
    def history(self) -> Chain:
        """The same without withdrawn versions, which a new one need not be aligned to."""
        kept = [t for n, t in enumerate(self.chain.transforms, start=1) if n in self._manifests]
        return Chain(kept, self.manifest(0).dim)

    @property
    def errors(self) -> dict[int, StepError]:
        """Σ_i of every version that was published with one; 0 of a withdrawn one."""
        found = {}
        for n in range(1, self.following):
            if n in self._manifests:
                error = self._contents(n).error(self.chain.dim(n - 1))
            else:
                dim = self.chain.dim(n)
                error = StepError(torch.zeros(dim, dim, dtype=torch.float64), 0, math.nan)
            if error is not None:
                found[n] = error
        return found

    def forward(self, source: int, target: int) -> tuple[Tensor, Tensor] | None:
        """From an earlier version to a later one: W [D_target, D_source] and the offset [D_target],
        float64; None where a version on the way has no such map.

        Raises: UnknownVersionError. LineageError: target is the earlier one.
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
            if n in self._manifests:
                step = self._contents(n).forward(self.chain.dim(n - 1))
                if step is None:
                    return None
                weight, offset = step[0] @ weight, step[0] @ offset + step[1]
        return weight, offset

    def view(self, version: int | str | None = None, source: int | None = None) -> View:
        """Stored embeddings as `version` (the newest by default) reads them.

        Args:
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

    # Embeddings.

    def stored(self, side: str, version: int | None = None) -> Path:
        """The file of a held version's vectors of a side, compared with its hash.

        Args:
            version: the newest by default.
        Raises: LineageError: there is no such side, or the version's vectors are not stored.
            IntegrityError: it is not what was published.
        """
        manifest = self.manifest(self.newest if version is None else self.resolve(version))
        if side not in manifest.embeddings:
            sides = " and ".join(manifest.embeddings)
            raise LineageError(f"There is no side {side!r} in {self}; it has {sides}.")
        folder = self.path / "embeddings" / str(manifest.version)
        name = f"{side}.parquet"
        if not folder.is_dir():
            unchanged(self.path, self._record, str(self), labels=True)
            if manifest.version != self.newest:
                has = ", ".join(map(str, self.held))
                raise LineageError(
                    f"The embeddings of version {manifest.version} of {self} are not stored, "
                    f"those of {has} are; read them as that version, through the chain."
                )
        self._check_files(folder, {name: manifest.embeddings[side]})
        return folder / name

    def embeddings(self, side: str, version: int | None = None) -> tuple[pa.Array, Tensor]:
        """Ids [N] and vectors [N, D_k] of a held version; the newest by default."""
        number = self.newest if version is None else self.resolve(version)
        path, dim = self.stored(side, number), self.manifest(number).dim
        ids, vectors = read_embeddings(path)
        if vectors.shape[1] != dim:
            raise IntegrityError(f"{path} has dim {vectors.shape[1]}, its manifest {dim}.")
        if len(ids) != len(vectors) or ids.null_count:
            raise IntegrityError(f"{path} has a row without an id or without a vector.")
        return ids, vectors

    # A new version.

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
        number = self.following
        self._check_fits(number, artefact)
        with writing(self.path, self._remote):
            present = self._present(number, artefact)
            if number:
                known = partial(record_changes.resolve, present)
                refuse_unprobed(self.address, artefact.metrics, number, known)
            clear_left(self.path, present)
            manifest = self._write(number, artefact)
            salt = None if artefact.trained is None else artefact.trained[0]
            record = record_changes.with_version(present, promote=promote, salt=salt)
            write_record(self.path, record, self._remote)
            self._record = record
            self._manifests[number] = manifest
            kept = {number, *record.labels.values()}
            for stale in (self.path / "embeddings").iterdir():
                if stale.name not in map(str, kept):
                    remove(stale)
        if self._remote is not None:
            self._remote.keep_only("embeddings", map(str, kept))
            self._remote.keep_only("versions", map(str, record.versions))
        clear_work(self.work)
        return number

    def _present(self, number: int, artefact: Artefact) -> LineageRecord:
        """`lineage.json` as it is on disk.

        Raises: LineageError: another process has published meanwhile; a model is then kept.
        """
        try:
            return unchanged(self.path, self._record, str(self), labels=False)
        except LineageError as error:
            if artefact.encoder is None or not number:
                raise
            kept = keep_lost(self.work, number, artefact)
            raise LineageError(
                f"{error} This version was trained after version {self.newest} and is not "
                f"published; its model is kept in {kept}. 'evergram upgrade' with --kept publishes "
                "it as the next version, with a transform fitted to the newest one and nothing "
                "trained again; without --kept, a new model is trained."
            ) from error

    def _write(self, number: int, artefact: Artefact) -> Manifest:
        """Both folders of a version, each written beside its place and renamed into it."""
        old, samples = self._before(), {}
        dims = [artefact.dim, *([self.manifest(self.newest).dim] if old else [])]
        mode = file_mode(self.path)
        with beside(self.path / "embeddings" / str(number), mode) as folder:
            embeddings = {}
            for side, found in artefact.embeddings.items():
                samples[side] = Sample(side, *dims)
                blocks = samples[side].through(found() if callable(found) else [found])
                write_embeddings(folder / f"{side}.parquet", blocks)
                embeddings[side] = sha256(folder / f"{side}.parquet")
        moments = {side: sample.moments() for side, sample in samples.items()}
        with beside(self._folder(number), mode) as folder:
            name = f"{self.name}@v{number}"
            forward = forward_map(samples, old)
            return write_version(
                folder,
                name,
                number,
                artefact,
                embeddings,
                moments,
                forward,
                self.pair_history.new(artefact.trained),
            )

    def _before(self) -> dict[str, Path]:
        """Files of the version before; without those there is no map forward, but a new version
        can be published all the same, which mends what is damaged."""
        found = {}
        for side in self.versions[-1].embeddings if self._manifests else ():
            try:
                found[side] = self.stored(side)
            except (DataError, IntegrityError):
                return {}
        return found

    def _check_fits(self, number: int, artefact: Artefact) -> None:
        for side in artefact.embeddings:
            check_name(side, "a side")
        if not are_metrics(artefact.metrics):
            raise DataError(
                "The metrics of a version must have numbers by name in metrics.model, and in "
                "probes a list of what each consumer's says; nothing was published."
            )
        if number == 0 and artefact.transform is not None:
            raise ShapeError("Version 0 has no version before it and takes no transform.")
        if number:
            expected = (self.manifest(self.newest).dim, artefact.dim)
            found = artefact.transform
            given = None if found is None else (found.old_dim, found.new_dim)
            if given != expected:
                raise ShapeError(
                    f"Version {number} needs a transform of shape {expected}; {given} was given."
                )

    def _contents(self, version: int) -> Contents:
        return Contents(self._folder(version), self.manifest(version), self._check_files)
