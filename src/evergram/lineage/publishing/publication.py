"""One version added to a lineage: checked, written beside its place, and listed by one rename."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from evergram.atomic_files import new_folder, remove_folder
from evergram.errors import DataError, IntegrityError, LineageError
from evergram.ids import refuse_other_form
from evergram.lineage.artefact import Artefact
from evergram.lineage.catalog import record_changes
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.consumers.probe_check import refuse_unprobed
from evergram.lineage.disk.lineage_record import LineageRecord
from evergram.lineage.disk.manifest import Manifest, sha256
from evergram.lineage.disk.permissions import file_mode
from evergram.lineage.locks.training_claim import clear_work
from evergram.lineage.locks.write_lock import clear_left, unchanged, write_record, writing
from evergram.lineage.pair_history import PairHistory, pair_history_of
from evergram.lineage.publishing.artefact_check import check_artefact, check_canaries
from evergram.lineage.publishing.first_traces import not_there_yet, removed_on_failure
from evergram.lineage.publishing.id_types import blocks_with_id_type, with_id_type
from evergram.lineage.publishing.lost_race import FOLDER as LOST
from evergram.lineage.publishing.lost_race import keep_lost
from evergram.lineage.publishing.publish_statistics import RowSample, forward_map
from evergram.lineage.publishing.transform_check import check_transform_on_canaries
from evergram.lineage.publishing.version_writer import PublicationFacts, write_version
from evergram.lineage.stored_embeddings import stored_file
from evergram.vector_files.writers import write_embeddings


def publish_version(catalog: Catalog, artefact: Artefact, *, promote: bool = True) -> int:
    """Add a version to a lineage; see `Lineage.publish`. Returns: its number."""
    number = catalog.next_version
    pairs = pair_history_of(catalog)
    check_artefact(catalog, artefact)
    error = None
    if number:
        newest = catalog.newest
        past = catalog.reader(newest).canaries()
        error = check_transform_on_canaries(artefact, past, newest)
    made = [] if number else not_there_yet(catalog.path)
    with writing(catalog.path, catalog.remote), removed_on_failure(made):
        record = _unchanged_record(catalog, artefact)
        if number:
            resolve = partial(record_changes.resolve, record)
            refuse_unprobed(catalog.address, artefact.metrics, number, resolve)
        clear_left(catalog.path, record)
        manifest = _write(catalog, artefact, pairs, error)
        salt = None if artefact.trained is None else artefact.trained[0]
        record = record_changes.with_version(record, promote=promote, salt=salt)
        write_record(catalog.path, record, catalog.remote)
        catalog.add(record, manifest)
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
    """Write both folders of a version, each beside its place and renamed into it."""
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
            files[side] = stored_file(catalog, side, catalog.newest)
        except (DataError, IntegrityError):
            return {}
    return files
