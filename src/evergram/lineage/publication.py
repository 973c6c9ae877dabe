"""One version added to a lineage: checked, written under another name, and listed by one rename."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from evergram.atomic_files import OWNER_ALONE, make_folder, new_folder, remove_folder, remove_tree
from evergram.errors import DataError, EvergramError, IntegrityError, LineageError
from evergram.ids import refuse_other_form
from evergram.lineage.artefact import Artefact
from evergram.lineage.catalog import Catalog, PairHistory
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.locks import clear_left, clear_work, unchanged, write_record, writing
from evergram.lineage.manifest import Manifest, read_manifest, sha256
from evergram.lineage.paths import check_tree, file_mode
from evergram.lineage.publication_checks import (
    blocks_with_id_type,
    check_artefact,
    check_canaries,
    check_transform_on_canaries,
    refuse_unprobed,
    with_id_type,
)
from evergram.lineage.publish_statistics import RowSample, forward_map
from evergram.lineage.record import LineageRecord
from evergram.lineage.remote import RECORD
from evergram.lineage.version_files import PublicationFacts, VersionReader, write_version
from evergram.vector_files.writers import write_embeddings

LOCK, FOLDERS = ".lock", ("versions", "embeddings")
LOST = "lost"
log: logging.Logger = logging.getLogger(__name__)


def not_there_yet(path: Path) -> list[Path]:
    """Return those of a lineage's lock and folders that a publication would make, inner first."""
    parts = (path / LOCK, path / "versions", path / "embeddings", path, *path.parents)
    return [part for part in parts if not part.exists()]


def remove_made(made: Sequence[Path]) -> None:
    """Remove the lock and the empty folders that a failed publication made, see `not_there_yet`."""
    for part in made:
        # Another process may have been quicker, and the lock is then its lineage's.
        if part.name == LOCK and part.with_name(RECORD).exists():
            break
        with suppress(OSError):
            part.unlink() if part.name == LOCK else part.rmdir()


@contextmanager
def removed_on_failure(made: Sequence[Path]) -> Iterator[None]:
    """Remove what was made if the block raises; the lock is held until it ends."""
    try:
        yield
    except BaseException:
        remove_made(made)
        raise


def keep_lost(work: Path, number: int, artefact: Artefact) -> Path:
    """Keep a version's model and settings. Its embeddings are not kept: the model computes them.

    Args:
        work: `.work` of the lineage.
        number: the version number that it was trained as.
    Returns: the folder with its files.
    """
    folder = work / LOST
    make_folder(work)
    remove_tree(folder)
    with new_folder(folder, OWNER_ALONE) as part:
        write_version(part, "lost", number, artefact, PublicationFacts())
    return folder


def forget_lost(work: Path) -> None:
    """Remove the model that `keep_lost` kept in `.work`, and that folder if it is then empty."""
    remove_tree(work / LOST)
    with suppress(OSError):
        work.rmdir()


def read_lost(root: Path, work: Path, lineage: str) -> VersionReader:
    """Return the model that `keep_lost` kept.

    Args:
        root: the lineage's folder.
        work: `.work` in it.
        lineage: what to call it in an error.
    Raises: LineageError: there is none. IntegrityError: it is damaged.
    """
    folder = work / LOST
    if not folder.is_dir():
        raise LineageError(
            f"No model is kept for {lineage}: one is kept if an upgrade has trained it and another "
            "version was published first. Train a new one: leave out --kept."
        )
    check_tree(root, folder)
    return VersionReader(folder, read_manifest(folder))


def publish_version(catalog: Catalog, artefact: Artefact, *, promote: bool = True) -> int:
    """Add a version that `check_artefact` has passed to a lineage; see `Lineage.publish`."""
    number, pairs, error = catalog.next_version, catalog.pair_history, None
    if number:
        newest = catalog.newest
        past = catalog.reader(newest).canaries()
        error = check_transform_on_canaries(artefact, past, newest)
    made = [] if number else not_there_yet(catalog.path)
    with writing(catalog.path, catalog.remote), removed_on_failure(made):
        record = _unchanged_record(catalog, artefact)
        if number:
            refuse_unprobed(catalog.address, artefact.metrics, number, record.resolve)
        clear_left(catalog.path, record)
        manifest = _write(catalog, artefact, pairs, error)
        salt = None if artefact.trained is None else artefact.trained[0]
        record = record.with_version(promote=promote, salt=salt)
        write_record(catalog.path, record, catalog.remote)
        catalog.record = record
        catalog.manifests[number] = manifest
        kept = {number, *record.labels.values()}
        for stale in (catalog.path / "embeddings").iterdir():
            if stale.name not in map(str, kept):
                remove_folder(stale)
        # Under the lock, as another may publish the next version as soon as it is free.
        if catalog.remote is not None:
            catalog.remote.storage.keep_only("embeddings", map(str, kept))
            catalog.remote.storage.keep_only("versions", map(str, record.versions))
    # A model that lost the race to a version waits for `--kept`, however many are published first.
    clear_work(catalog.work_dir, LOST)
    return number


def _unchanged_record(catalog: Catalog, artefact: Artefact) -> LineageRecord:
    """Return `lineage.json` as it is on disk now.

    Raises: LineageError: another process has published meanwhile; a trained model is then kept.
    """
    number = catalog.next_version
    try:
        return unchanged(catalog.path, catalog.record, catalog.address, labels=False)
    except LineageError as error:
        if artefact.encoder is None or not number:
            raise
        kept = keep_lost(catalog.work_dir, number, artefact)
        raise LineageError(
            f"{error} This version was trained after version {catalog.newest} and is not "
            f"published; its model is kept in {kept}. 'evergram upgrade' with --kept publishes it "
            "as the next version, with a transform fitted to the newest one and nothing trained "
            "again; without --kept, a new model is trained."
        ) from error


def _write(
    catalog: Catalog, artefact: Artefact, pairs: PairHistory, canary_error: float | None
) -> Manifest:
    """Write both folders of a version, each under another name and then renamed."""
    number = catalog.next_version
    old = _files_before(catalog)
    dims = [artefact.dim, *([catalog.manifest(catalog.newest).dim] if old else [])]
    mode = file_mode(catalog.path)
    canaries = check_canaries(artefact)
    samples: dict[str, RowSample] = {}
    hashes: dict[str, str] = {}
    with new_folder(catalog.embeddings_folder(number), mode) as folder:
        for side in artefact.embeddings:
            samples[side] = RowSample(side, *dims)
            blocks = blocks_with_id_type(
                artefact.blocks(side),
                pq.read_schema(old[side]).field("id").type if side in old else None,
                side,
                catalog.address,
            )
            blocks = samples[side].through(blocks, artefact.unknown.get(side, 0))
            blocks = canaries[side].through(blocks) if side in canaries else blocks
            write_embeddings(folder / f"{side}.parquet", blocks)
            hashes[side] = sha256(folder / f"{side}.parquet")
    facts = PublicationFacts(
        hashes,
        {side: sample.moments() for side, sample in samples.items()},
        forward_map(samples, old),
        pairs.new(artefact.trained),
        canary_error,
    )
    with new_folder(catalog.folder(number), mode) as folder:
        return write_version(folder, catalog.name, number, artefact, facts)


def check_id_types(catalog: Catalog, ids: Mapping[str, pa.Array]) -> None:
    """Refuse ids, by side, that are text where those of the version before are integers, or are
    theirs in another normal form.

    Raises: DataError.
    """
    before = _files_before(catalog)
    for side in before.keys() & ids.keys():
        expected = pq.read_schema(before[side]).field("id").type
        with_id_type(ids[side], expected, side, catalog.address)
        before_ids = pq.read_table(before[side], columns=["id"])["id"].combine_chunks()
        refuse_other_form(ids[side], before_ids, f"the side {side}", str(catalog.address))


def _files_before(catalog: Catalog) -> Mapping[str, Path]:
    """Return the stored files of the version before, by side.

    If one is missing or damaged, none are returned: there is then no forward map, but the new
    version can still be published, which repairs a damaged lineage.
    """
    files = {}
    for side in catalog.versions[-1].embeddings if catalog.manifests else ():
        try:
            files[side] = catalog.stored(side, catalog.newest)
        except (DataError, IntegrityError):
            return {}
    return files


@contextmanager
def beginning(catalog: Catalog, first: Artefact) -> Iterator[None]:
    """Publish version 0 of a new lineage for a block that publishes version 1.

    If the block raises, and neither version 1 nor a consumer is there, version 0 is removed again,
    with the folders that were made for it.

    Raises: as `Lineage.publish`.
    """
    empty, made = catalog.record, not_there_yet(catalog.path)
    check_artefact(catalog, first)
    publish_version(catalog, first)
    try:
        yield
    except BaseException:
        try:
            taken = _take_back(catalog)
        except EvergramError as error:
            taken = False
            log.warning("Version 0 stays in %s: %s", catalog.address, error)
        if taken:
            catalog.record = empty
            catalog.manifests.clear()
            remove_made(made)
        raise


def _take_back(catalog: Catalog) -> bool:
    """Remove version 0 and the record, unless there is a version 1 or a consumer by now.

    Returns: whether they were removed. Raises: LineageError: another process has changed the
        lineage meanwhile, or it cannot be written.
    """
    record, remote = catalog.record, catalog.remote
    if record.versions != [0] or ConsumerRegistry.open(catalog.address).list():
        return False
    with writing(catalog.path, remote):
        unchanged(catalog.path, record, catalog.address, labels=True)
        with nullcontext() if remote is None else remote.storage.driver_errors("written"):
            # Without the record nothing else is part of a lineage.
            if remote is not None:
                remote.storage.remove_file(RECORD)
            (catalog.path / RECORD).unlink()
        for name in FOLDERS:
            remove_tree(catalog.path / name)
            if remote is not None:
                remote.storage.keep_only(name, ())
    return True
