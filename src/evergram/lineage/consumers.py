"""`consumers.json`: the consumers of a lineage, the versions that they read, and their probes."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from evergram.atomic_files import make_folder, new_folder, remove_tree, write_text
from evergram.did_you_mean import did_you_mean
from evergram.errors import IntegrityError, LineageError, UnknownVersionError
from evergram.lineage.locks import check_inside, check_tree, file_mode, writing
from evergram.lineage.record import (
    FORMAT_VERSION,
    ChecksummedRecord,
    Name,
    StrictRecord,
    check_files,
    check_name,
    sha256,
)
from evergram.lineage.remote import CONSUMERS, Remote, local_folder

# Returns the number of a version, by its number in text or a label.
Resolve = Callable[[str], int]


class Baseline(StrictRecord):
    """The value of a probe when it was added, its version, and the number of its objects."""

    version: int = Field(ge=0)
    value: float
    objects: int = Field(ge=0)


class Probe(StrictRecord):
    """A consumer's own model and an evaluation file, both kept in the lineage's folder. Before the
    files are copied there, `model` and `data` are their paths outside of it, and the hashes, if
    there are any, are of the contents that were tried."""

    model: str
    model_sha256: str = ""
    data: str
    data_sha256: str = ""
    side: str
    metric: Literal["auc", "accuracy", "rmse"]
    # The least value that is good enough; for rmse, of which less is better, the largest.
    min: float | None = Field(default=None, ge=0, le=1)
    max: float | None = Field(default=None, ge=0)
    baseline: Baseline | None = None

    @model_validator(mode="after")
    def _limit_fits(self) -> Self:
        right, wrong = ("max", "min") if self.metric == "rmse" else ("min", "max")
        if getattr(self, wrong) is not None:
            raise ValueError(f"{self.metric} takes {right} as its limit, not {wrong}")
        return self


class Consumer(StrictRecord):
    """A reader of the lineage.

    Args:
        pinned: "v0" or a label: the version that it reads by default.
        allowed: versions and labels that it may read; the pinned one is among them.
    """

    name: Name
    pinned: str
    allowed: tuple[str, ...]
    since: str
    contact: str | None = None
    token_sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    probe: Probe | None = None


class ConsumersRecord(ChecksummedRecord):
    """The contents of `consumers.json`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    format_version: int
    consumers: tuple[Consumer, ...]


FOLDER = "probes"
# Seconds that a change of consumers waits for the lock, which a publication holds while it writes.
PATIENCE = 30.0


class ConsumerRegistry:
    """The consumers of a lineage. Every change is read, made and written under the lineage's lock;
    the changes of other processes are seen when it is opened again."""

    def __init__(self, folder: Path, record: ConsumersRecord, remote: Remote | None) -> None:
        self.folder = folder
        self._record = record
        self._remote = remote

    @classmethod
    def open(cls, path: str | Path) -> ConsumerRegistry:
        """Return the consumers of the lineage in a folder or at an address; there may be none.
        Raises: LineageError: out of reach. FormatError: of a later format. IntegrityError:
        damaged."""
        folder = local_folder(path)
        if folder is not None:
            return cls(folder, _read(folder), None)
        remote = Remote(str(path))
        remote.pull()
        record = _parsed(remote.consumers, f"{remote.address}/{CONSUMERS}")
        return cls(remote.folder, record, remote)

    def list(self) -> tuple[Consumer, ...]:
        """Return all consumers, by name."""
        return self._record.consumers

    def get(self, name: str) -> Consumer:
        """Return a consumer. Raises: LineageError: there is none of that name."""
        consumers = {consumer.name: consumer for consumer in self._record.consumers}
        if name not in consumers:
            known = f"{', '.join(consumers) or 'none'}{did_you_mean(name, consumers)}"
            raise LineageError(f"There is no consumer {name!r}; the consumers are: {known}.")
        return consumers[name]

    def add(
        self,
        name: str,
        pinned: str,
        resolve: Resolve,
        *,
        allowed: Iterable[str] = (),
        contact: str | None = None,
        probe: Probe | None = None,
    ) -> Consumer:
        """Add a consumer; with a probe, its two files are copied into the lineage's folder.

        Args:
            pinned: the version or label that it reads.
            resolve: `Lineage.resolve` of a lineage that has just been opened: it is called under
                the lock, so that nobody is pinned to a version that was retired meanwhile.
            allowed: versions and labels that it may read in addition to `pinned`.
            probe: with the paths of the files as they are now.
        Raises: UnknownVersionError: no such version or label. LineageError: the name is taken or
            cannot be one, or the folder cannot be written; nothing is then changed.
        """
        check_name(name, "the name of a consumer")
        with self._editing(name):
            # Some disks do not tell capital letters apart, and each consumer has a folder.
            for other in (c.name for c in self._record.consumers):
                if other.lower() == name.lower():
                    raise LineageError(f"There is a consumer {other!r} already; choose another.")
            reads = dict.fromkeys(_pin(what, resolve) for what in (pinned, *allowed))
            added = Consumer(
                name=name,
                pinned=next(iter(reads)),
                allowed=tuple(reads),
                since=_today(),
                contact=contact,
                probe=None if probe is None else self._keep(name, probe),
            )
            self._replace(None, added)
        return added

    def remove(self, name: str) -> None:
        """Remove a consumer. Raises: LineageError: there is none, or it cannot be written."""
        with self._editing(name):
            self._replace(self.get(name))

    def repin(
        self,
        name: str,
        pinned: str,
        resolve: Resolve,
        *,
        probe: Probe | None = None,
        drop_probe: bool = False,
    ) -> Consumer:
        """Pin a consumer to another version or label. It may no longer read the one that it was
        pinned to, and keeps all other permissions.

        A probe's model reads one version's space, so a consumer with a probe needs one for the new
        version, or loses it.

        Args:
            probe: for the new version; `drop_probe` removes the one that it has.
        Raises: as `add`.
        """
        with self._editing(name):
            before = self.get(name)
            place = _pin(pinned, resolve)
            if before.probe is not None and place != before.pinned and not (probe or drop_probe):
                raise LineageError(
                    f"The probe of {name!r} reads {before.pinned}; give the one for {place} with "
                    "--probe and --data, or leave it off with --drop-probe."
                )
            others = [what for what in before.allowed if what != before.pinned]
            kept = None if drop_probe else before.probe
            changes = {
                "pinned": place,
                "allowed": tuple(dict.fromkeys([place, *others])),
                "since": before.since if place == before.pinned else _today(),
                "probe": kept if probe is None else self._keep(name, probe),
            }
            after = before.model_copy(update=changes)
            self._replace(before, after)
        return after

    def issue_token(self, name: str) -> str:
        """Return a new token, which replaces the one before. Only its hash is kept, so it cannot be
        returned again. Raises: LineageError: as `remove`."""
        token = secrets.token_urlsafe(32)
        with self._editing(name):
            before = self.get(name)
            self._replace(before, before.model_copy(update={"token_sha256": _digest(token)}))
        return token

    def authenticate(self, token: str) -> Consumer | None:
        """Return the consumer with this token; None if none has it. It takes the same time for any
        token, so that timing does not help to guess one."""
        digest = _digest(token)
        consumers = self._record.consumers
        owners = [c for c in consumers if hmac.compare_digest(digest, c.token_sha256 or "")]
        return owners[-1] if owners else None

    def probe_files(self, probe: Probe) -> tuple[Path, Path]:
        """Return the paths of the model and the data, compared with their hashes. Raises:
        IntegrityError: one is missing or damaged, or its path leads out of `probes/`."""
        check = check_files if self._remote is None else self._remote.check_files
        paths = []
        for name, published in ((probe.model, probe.model_sha256), (probe.data, probe.data_sha256)):
            path = self.folder / name
            if Path(name).parts[:1] != (FOLDER,) or ".." in Path(name).parts:
                named = f"{self.folder / CONSUMERS} names the file {name!r} for a probe"
                raise IntegrityError(f"{named}, outside of {FOLDER}/; restore it from a copy.")
            check_inside(self.folder, path)
            check(path.parent, {path.name: published})
            paths.append(path)
        return paths[0], paths[1]

    def _keep(self, name: str, probe: Probe) -> Probe:
        """Copy the files of a consumer's probe into the lineage; return the probe with these paths.
        On any error the folder's files are as they were."""
        files = {"model": Path(probe.model), "data": Path(probe.data)}
        # A folder of its own: the files may be those of the probe that it replaces.
        here = f"{FOLDER}/{name}/{secrets.token_hex(8)}"
        for folder in (self.folder / FOLDER, self.folder / FOLDER / name):
            make_folder(folder, self._mode)
        kept: dict[str, str] = {}
        with new_folder(self.folder / here, self._mode) as part:
            for what, source in files.items():
                name = f"model{source.suffix.lower()}" if what == "model" else "data.parquet"
                shutil.copyfile(source, part / name)
                digest = sha256(part / name)
                if getattr(probe, f"{what}_sha256") not in ("", digest):
                    raise LineageError(f"{source} was changed after its probe was run; try again.")
                kept |= {what: f"{here}/{name}", f"{what}_sha256": digest}
        if self._remote is not None:
            self._remote.upload(here)
        return probe.model_copy(update=kept)

    def _remove_former_probes(self, name: str) -> None:
        mine = Path(FOLDER) / name
        used = {Path(c.probe.model).parent for c in self._record.consumers if c.probe is not None}
        kept = {folder.name for folder in used if folder.parent == mine}
        for left in (self.folder / mine).glob("*"):
            if left.name not in kept:
                remove_tree(left)
        if self._remote is not None:
            self._remote.keep_only(mine.as_posix(), kept)

    def _replace(self, before: Consumer | None, *after: Consumer) -> None:
        """Write the record with a consumer in the place of another, or of none."""
        others = [c for c in self._record.consumers if c is not before]
        ordered = tuple(sorted([*others, *after], key=lambda c: c.name))
        record = ConsumersRecord(format_version=FORMAT_VERSION, consumers=ordered)
        write_text(self.folder / CONSUMERS, record.to_json(), self._mode)
        self._record = record

    @property
    def _mode(self) -> int:
        """Permissions of `consumers.json` and of probes, which hold hashes of tokens and consumers'
        own models: those of the lineage, but never for everybody on the machine."""
        return file_mode(self.folder) & 0o660

    @contextmanager
    def _editing(self, name: str) -> Iterator[None]:
        """Hold the lock, with the record as it is on disk now; on any error it is as it was."""
        before, tidy, remote = self._record, partial(self._remove_former_probes, name), self._remote
        where = str(self.folder) if remote is None else remote.address
        elsewhere = nullcontext() if remote is None else remote.editing(tidy)
        try:
            with writing(self.folder, where, elsewhere, PATIENCE):
                check_tree(self.folder, self.folder / FOLDER)
                self._record = _read(self.folder)
                yield
                if remote is None:
                    tidy()
        except BaseException:
            self._record = before
            raise


def pinned_to(path: str | Path, resolve: Resolve) -> dict[str, int]:
    """Return the version that each consumer is pinned to, without those whose label is gone."""
    pins = {}
    for consumer in ConsumerRegistry.open(path).list():
        with suppress(UnknownVersionError):
            pins[consumer.name] = resolve(consumer.pinned)
    return pins


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _pin(what: str, resolve: Resolve) -> str:
    """Return a version as it is written down: "v0" for a number, or the label."""
    number = resolve(what)
    return f"v{number}" if re.fullmatch(r"v?\d+", what) else what


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _read(folder: Path) -> ConsumersRecord:
    path = folder / CONSUMERS
    check_inside(folder, path)
    try:
        return _parsed(path.read_bytes() if path.exists() else None, str(path))
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error}.") from error


def _parsed(text: str | bytes | None, path: str) -> ConsumersRecord:
    if text is None:
        return ConsumersRecord(format_version=FORMAT_VERSION, consumers=())
    return ConsumersRecord.of_json(text, path)
