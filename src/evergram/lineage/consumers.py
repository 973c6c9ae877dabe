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

Resolve = Callable[[str], int]  # returns a version's number, given as a string, or that of a label


class Baseline(StrictRecord):
    """The value of a probe when it was added, with the version and number of objects."""

    version: int = Field(ge=0)
    value: float
    objects: int = Field(ge=0)


class Probe(StrictRecord):
    """A consumer's model and an evaluation file, both stored in the lineage's folder. Before they
    are copied there, `model` and `data` are the paths of the original files, and the hashes, if
    any, those of the contents that were tested."""

    model: str
    model_sha256: str = ""
    data: str
    data_sha256: str = ""
    side: str
    metric: Literal["auc", "accuracy", "rmse"]
    # The minimum acceptable value; for rmse, the maximum.
    min: float | None = Field(default=None, ge=0, le=1)
    max: float | None = Field(default=None, ge=0)
    baseline: Baseline | None = None

    @model_validator(mode="after")
    def _limit_fits(self) -> Self:
        right, wrong = ("max", "min") if self.metric == "rmse" else ("min", "max")
        if getattr(self, wrong) is not None:
            raise ValueError(f"the limit of {self.metric} is {right}, not {wrong}")
        return self


class Consumer(StrictRecord):
    """A reader of the lineage."""

    name: Name
    pinned: str  # "v0" or a label: the version that it reads by default
    allowed: tuple[str, ...]  # versions and labels that it may read, including the pinned one
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
PATIENCE = 30.0  # seconds to wait for the lock, which a publication holds while it writes


class ConsumerRegistry:
    """The consumers of a lineage. Each change reads, edits and writes the file under the lineage's
    lock. To see changes of other processes, open it again."""

    def __init__(self, folder: Path, record: ConsumersRecord, remote: Remote | None) -> None:
        self.folder = folder
        self._record = record
        self._remote = remote

    @classmethod
    def open(cls, path: str | Path) -> ConsumerRegistry:
        """Open the consumers of the lineage in a folder or at an address. Raises: LineageError: it
        cannot be reached. FormatError: a later format. IntegrityError: the file is damaged."""
        folder = local_folder(path)
        if folder is not None:
            return cls(folder, _read(folder), None)
        remote = Remote(str(path))
        remote.pull()
        record = _parsed(remote.consumers, f"{remote.address}/{CONSUMERS}")
        return cls(remote.folder, record, remote)

    def list(self) -> tuple[Consumer, ...]:
        """Return all consumers, sorted by name."""
        return self._record.consumers

    def get(self, name: str) -> Consumer:
        """Return a consumer. Raises: LineageError: no consumer has this name."""
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
        """Add a consumer. The two files of its probe are copied into the lineage's folder.

        Args:
            resolve: `Lineage.resolve` of a lineage that has just been opened. It is called under
                the lock, so that nobody is pinned to a version that was retired in the meantime.
            allowed: versions and labels that it may read in addition to `pinned`.
            probe: with the paths of the original files.
        Raises: UnknownVersionError: no such version or label. LineageError: the name is taken or
            invalid, or the folder cannot be written. Nothing is changed on an error.
        """
        check_name(name, "the name of a consumer")
        with self._editing(name):
            # Each consumer has a folder, and some file systems ignore case.
            for other in (c.name for c in self._record.consumers):
                if other.lower() == name.lower():
                    raise LineageError(f"Consumer {other!r} already exists; choose another name.")
            readable = dict.fromkeys(_pin(version, resolve) for version in (pinned, *allowed))
            added = Consumer(
                name=name,
                pinned=next(iter(readable)),
                allowed=tuple(readable),
                since=_today(),
                contact=contact,
                probe=None if probe is None else self._copy_probe(name, probe),
            )
            self._replace(None, added)
        return added

    def remove(self, name: str) -> None:
        """Remove a consumer. Raises: LineageError: it does not exist or cannot be written."""
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
        """Pin a consumer to another version or label. It may no longer read the previous one, but
        keeps all other permissions.

        A probe's model works with the vectors of one version, so a consumer with a probe needs a
        new one, or none.

        Raises: see `add`.
        """
        with self._editing(name):
            before = self.get(name)
            pin = _pin(pinned, resolve)
            if before.probe is not None and pin != before.pinned and not (probe or drop_probe):
                raise LineageError(
                    f"The probe of {name!r} reads {before.pinned}; give one for {pin} with "
                    "--probe and --data, or remove it with --drop-probe."
                )
            others = [version for version in before.allowed if version != before.pinned]
            old_probe = None if drop_probe else before.probe
            changes = {
                "pinned": pin,
                "allowed": tuple(dict.fromkeys([pin, *others])),
                "since": before.since if pin == before.pinned else _today(),
                "probe": old_probe if probe is None else self._copy_probe(name, probe),
            }
            after = before.model_copy(update=changes)
            self._replace(before, after)
        return after

    def issue_token(self, name: str) -> str:
        """Return a new token, which replaces the previous one. Only its hash is stored, so you
        cannot see it again. Raises: LineageError: see `remove`."""
        token = secrets.token_urlsafe(32)
        with self._editing(name):
            before = self.get(name)
            self._replace(before, before.model_copy(update={"token_sha256": _digest(token)}))
        return token

    def authenticate(self, token: str) -> Consumer | None:
        """Return the consumer with this token, or None. Takes the same time for any token, to
        prevent timing attacks."""
        digest = _digest(token)
        consumers = self._record.consumers
        owners = [c for c in consumers if hmac.compare_digest(digest, c.token_sha256 or "")]
        return owners[-1] if owners else None

    def probe_files(self, probe: Probe) -> tuple[Path, Path]:
        """Return the paths of the model and the data, after verifying their hashes. Raises:
        IntegrityError: one is missing or damaged, or its path is outside of `probes/`."""
        check = check_files if self._remote is None else self._remote.check_files
        paths = []
        for name, digest in ((probe.model, probe.model_sha256), (probe.data, probe.data_sha256)):
            path = self.folder / name
            if Path(name).parts[:1] != (FOLDER,) or ".." in Path(name).parts:
                outside = f"has a probe with the file {name!r}, outside of {FOLDER}/"
                raise IntegrityError(f"{self.folder / CONSUMERS} {outside}; restore it.")
            check_inside(self.folder, path)
            check(path.parent, {path.name: digest})
            paths.append(path)
        return paths[0], paths[1]

    def _copy_probe(self, name: str, probe: Probe) -> Probe:
        """Copy the files of a consumer's probe into the lineage; return the probe with the new
        paths. On an error, the folder is unchanged."""
        files = {"model": Path(probe.model), "data": Path(probe.data)}
        # A new folder each time, as the previous probe may have files of the same name.
        target = f"{FOLDER}/{name}/{secrets.token_hex(8)}"
        for folder in (self.folder / FOLDER, self.folder / FOLDER / name):
            make_folder(folder, self._mode)
        changes: dict[str, str] = {}
        with new_folder(self.folder / target, self._mode) as unfinished:
            for field, source in files.items():
                name = f"model{source.suffix.lower()}" if field == "model" else "data.parquet"
                shutil.copyfile(source, unfinished / name)
                digest = sha256(unfinished / name)
                if getattr(probe, f"{field}_sha256") not in ("", digest):
                    raise LineageError(f"{source} was changed after its probe was run; try again.")
                changes |= {field: f"{target}/{name}", f"{field}_sha256": digest}
        if self._remote is not None:
            self._remote.upload(target)
        return probe.model_copy(update=changes)

    def _remove_former_probes(self, name: str) -> None:
        parent = Path(FOLDER) / name
        folders = {Path(c.probe.model).parent for c in self._record.consumers if c.probe}
        used = {folder.name for folder in folders if folder.parent == parent}
        for folder in (self.folder / parent).glob("*"):
            if folder.name not in used:
                remove_tree(folder)
        if self._remote is not None:
            self._remote.keep_only(parent.as_posix(), used)

    def _replace(self, before: Consumer | None, *after: Consumer) -> None:
        """Write the record with `before` replaced by `after`, either of which may be absent."""
        others = [c for c in self._record.consumers if c is not before]
        ordered = tuple(sorted([*others, *after], key=lambda c: c.name))
        record = ConsumersRecord(format_version=FORMAT_VERSION, consumers=ordered)
        write_text(self.folder / CONSUMERS, record.to_json(), self._mode)
        self._record = record

    @property
    def _mode(self) -> int:
        """Permissions of `consumers.json` (which has hashes of tokens) and of probes: those of the
        lineage, but never readable for everybody."""
        return file_mode(self.folder) & 0o660

    @contextmanager
    def _editing(self, name: str) -> Iterator[None]:
        """Hold the lock, and read the current record from disk; restore it on an error."""
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
    """Return the version that each consumer is pinned to, except for labels that were removed."""
    pins = {}
    for consumer in ConsumerRegistry.open(path).list():
        with suppress(UnknownVersionError):
            pins[consumer.name] = resolve(consumer.pinned)
    return pins


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _pin(version: str, resolve: Resolve) -> str:
    """Return the recorded form of an existing version: "v0" for a number, or the label."""
    number = resolve(version)
    return f"v{number}" if re.fullmatch(r"v?\d+", version) else version


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
