"""The consumers of a lineage: added, moved, removed, and known by their tokens."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from evergram.atomic_files import make_folder, new_folder, remove_tree, write_text
from evergram.errors import IntegrityError, LineageError, UnknownVersionError
from evergram.lineage.consumers.record import (
    FORMAT_VERSION,
    Consumer,
    ConsumersRecord,
    Probe,
    Resolve,
    parse_consumers,
    said,
)
from evergram.lineage.disk.manifest import check_files, sha256
from evergram.lineage.disk.names import check_name
from evergram.lineage.disk.path_check import check_inside, check_parts, check_tree
from evergram.lineage.disk.permissions import file_mode
from evergram.lineage.remote.addresses import local_folder
from evergram.lineage.remote.mirror import CONSUMERS, Remote

# A publication holds the lock while it writes; a change of consumers waits for it, so long.
PATIENCE = 30.0


class ConsumerRegistry:
    """The consumers of a lineage. Every change is read, made and written under its lock.

    A changed object of another process is seen by `open` alone.
    """

    def __init__(self, folder: Path, record: ConsumersRecord, remote: Remote | None) -> None:
        self.folder = folder
        self._record = record
        self._remote = remote

    @classmethod
    def open(cls, path: str | Path) -> ConsumerRegistry:
        """Those of the lineage in a folder or at an address; none where it has no such file.

        Raises: LineageError: out of reach. FormatError: of a later format. IntegrityError: damaged.
        """
        folder = local_folder(path)
        if folder is not None:
            return cls(folder, _read(folder), None)
        remote = Remote(str(path))
        remote.pull()
        where = f"{remote.address}/{CONSUMERS}"
        return cls(remote.folder, parse_consumers(remote.consumers, where), remote)

    def list(self) -> tuple[Consumer, ...]:
        """By name."""
        return self._record.consumers

    def get(self, name: str) -> Consumer:
        """Raises: LineageError: there is none of that name."""
        for consumer in self._record.consumers:
            if consumer.name == name:
                return consumer
        has = ", ".join(c.name for c in self._record.consumers) or "none"
        raise LineageError(
            f"There is no consumer {name!r}; the consumers are: {has}. 'evergram consumer-add' "
            "adds one."
        )

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
            resolve: `Lineage.resolve`, of a lineage opened afresh: it is asked under the lock, so
                that a version which is retired meanwhile is not pinned to.
            allowed: what it may read beside `pinned`.
            probe: with the paths of the files as they are now.
        Raises: UnknownVersionError: no such version or label. LineageError: the name is taken or
            cannot be one, or the folder cannot be written; nothing is then changed.
        """
        check_name(name, "a consumer")
        with self._editing(name):
            # Where a disk does not tell capital letters apart, neither does it tell their folders.
            for other in (c.name for c in self._record.consumers):
                if other.lower() == name.lower():
                    raise LineageError(
                        f"There is a consumer {other!r} already; 'evergram consumer-pin' moves it "
                        "to another version, 'evergram consumer-remove' removes it."
                    )
            place = said(pinned, resolve)
            reads = dict.fromkeys([place, *(said(what, resolve) for what in allowed)])
            added = Consumer(
                name=name,
                pinned=place,
                allowed=tuple(reads),
                since=_today(),
                contact=contact,
                probe=None if probe is None else self._keep(name, probe),
            )
            self._write([*self._record.consumers, added])
        return added

    def remove(self, name: str) -> None:
        """Raises: LineageError: there is none of that name, or the folder cannot be written."""
        with self._editing(name):
            gone = self.get(name)
            self._write([c for c in self._record.consumers if c is not gone])

    def repin(
        self,
        name: str,
        pinned: str,
        resolve: Resolve,
        *,
        probe: Probe | None = None,
        drop_probe: bool = False,
    ) -> Consumer:
        """Pin a consumer to another version or label; what it might read before, it still may,
        but for what it was pinned to.

        A probe's model reads one version's space: with a probe, the new version's is needed, or it
        is dropped.

        Raises: as `add`.
        """
        with self._editing(name):
            before = self.get(name)
            place = said(pinned, resolve)
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
            self._write([after if c is before else c for c in self._record.consumers])
        return after

    def issue_token(self, name: str) -> str:
        """A new token, in place of the one before. It is told here, and never again: only its hash
        is kept. Raises: LineageError: as `remove`."""
        token = secrets.token_urlsafe(32)
        with self._editing(name):
            before = self.get(name)
            after = before.model_copy(update={"token_sha256": _digest(token)})
            self._write([after if c is before else c for c in self._record.consumers])
        return token

    def authenticate(self, token: str) -> Consumer | None:
        """Whose token it is; the time that it takes says nothing of which it nearly is."""
        given = _digest(token)
        found = None
        for consumer in self._record.consumers:
            if hmac.compare_digest(given, consumer.token_sha256 or ""):
                found = consumer
        return found

    def probe_files(self, probe: Probe) -> tuple[Path, Path]:
        """The model and the data, compared with their hashes. Raises: IntegrityError."""
        paths = []
        for name, published in ((probe.model, probe.model_sha256), (probe.data, probe.data_sha256)):
            path = self.folder / name
            if Path(name).parts[:1] != ("probes",) or ".." in Path(name).parts:
                raise IntegrityError(
                    f"{self.folder / CONSUMERS} names the file {name!r} for a probe; they are all "
                    "in its folder probes/; restore it from a copy of the lineage."
                )
            check_inside(self.folder, path)
            check = check_files if self._remote is None else self._remote.check_files
            check(path.parent, {path.name: published})
            paths.append(path)
        return paths[0], paths[1]

    def _keep(self, name: str, probe: Probe) -> Probe:
        """Copy the files of a probe; what is not yet in `consumers.json` is nobody's."""
        model, data = Path(probe.model), Path(probe.data)
        # A folder of its own for each probe, so that one can follow another.
        here = f"probes/{name}/{sha256(model)[:8]}{sha256(data)[:8]}"
        mode = self._mode
        for folder in (self.folder / "probes", self.folder / "probes" / name):
            make_folder(folder, mode)
        remove_tree(self.folder / here)
        with new_folder(self.folder / here, mode) as part:
            shutil.copyfile(model, part / f"model{model.suffix.lower()}")
            shutil.copyfile(data, part / "data.parquet")
        if self._remote is not None:
            self._remote.upload(here)
        kept = {
            "model": f"{here}/model{model.suffix.lower()}",
            "data": f"{here}/data.parquet",
        }
        hashes = {f"{k}_sha256": sha256(self.folder / v) for k, v in kept.items()}
        for source, what in ((model, "model_sha256"), (data, "data_sha256")):
            if getattr(probe, what) not in ("", hashes[what]):
                raise LineageError(
                    f"{source} was changed after its probe was run; run the same command again."
                )
        return probe.model_copy(update={**kept, **hashes})

    def _tidy(self, name: str) -> None:
        """Remove the files of a consumer's probes that are no more."""
        folders = {Path(c.probe.model).parent for c in self._record.consumers if c.probe}
        mine = Path("probes") / name
        kept = {folder.name for folder in folders if folder.parent == mine}
        for left in (self.folder / mine).glob("*"):
            if left.name not in kept:
                remove_tree(left)
        if self._remote is not None:
            self._remote.keep_only(mine.as_posix(), kept)

    def _write(self, consumers: Sequence[Consumer]) -> None:
        ordered = tuple(sorted(consumers, key=lambda c: c.name))
        record = ConsumersRecord(format_version=FORMAT_VERSION, consumers=ordered)
        write_text(self.folder / CONSUMERS, record.model_dump_json(indent=2), self._mode)
        self._record = record

    @property
    def _mode(self) -> int:
        """Permissions of hashes of tokens, and of consumers' own models and labels: whoever the
        lineage is shared with, not the whole machine."""
        return file_mode(self.folder) & 0o660

    @contextmanager
    def _editing(self, name: str) -> Iterator[None]:
        """The record as it is now, to change and to write; on any error it is as it was."""
        where = str(self.folder) if self._remote is None else self._remote.address
        before = self._record
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                check_parts(self.folder)
                check_tree(self.folder, self.folder / "probes")
                lock = FileLock(self.folder / ".lock", PATIENCE, mode=file_mode(self.folder))
                stack.enter_context(lock)
            except Timeout:
                raise LineageError(
                    f"Another process is publishing to {where}; wait for it and try again."
                ) from None
            except OSError as error:
                raise _unwritten(where, error) from error
            try:
                with nullcontext() if self._remote is None else self._remote.editing():
                    self._record = _read(self.folder)
                    yield
            except BaseException as error:
                self._record = before
                if isinstance(error, OSError):
                    raise _unwritten(where, error) from error
                raise
            self._tidy(name)


def pinned_to(path: str | Path, resolve: Resolve) -> dict[str, int]:
    """Of every consumer, the version that it is pinned to; one whose label is no more has none.

    Args:
        path: of the lineage, or its address.
        resolve: `Lineage.resolve`.
    """
    found = {}
    for consumer in ConsumerRegistry.open(path).list():
        with suppress(UnknownVersionError):
            found[consumer.name] = resolve(consumer.pinned)
    return found


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _unwritten(where: str, error: OSError) -> LineageError:
    return LineageError(
        f"{where} cannot be written: {error.strerror or error}; its consumers are as they were."
    )


def _read(folder: Path) -> ConsumersRecord:
    path = folder / CONSUMERS
    check_inside(folder, path)
    try:
        return parse_consumers(path.read_text() if path.exists() else None, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}.") from error
