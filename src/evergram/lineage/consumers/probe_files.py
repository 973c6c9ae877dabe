"""The files of consumers' probes, in a folder `probes/` of the lineage."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from evergram.atomic_files import (
    commit,
    exchange_folders,
    make_folder,
    new_folder,
    remove_tree,
    restore_displaced,
)
from evergram.errors import IntegrityError, LineageError
from evergram.lineage.consumers.record import Probe
from evergram.lineage.disk.manifest import check_files, sha256
from evergram.lineage.disk.path_check import check_inside
from evergram.lineage.remote.mirror import CONSUMERS, Remote

FOLDER = "probes"


def checked_probe_files(root: Path, probe: Probe, remote: Remote | None) -> tuple[Path, Path]:
    """Return the paths of a probe's model and data, compared with their hashes.

    Args:
        root: the lineage's folder.
        remote: where the lineage lives, if `root` is a mirror.
    Raises: IntegrityError: a file is missing or damaged, or its path leads out of `probes/`.
    """
    paths = []
    for name, published in ((probe.model, probe.model_sha256), (probe.data, probe.data_sha256)):
        path = root / name
        if Path(name).parts[:1] != (FOLDER,) or ".." in Path(name).parts:
            raise IntegrityError(
                f"{root / CONSUMERS} names the file {name!r} for a probe; they are all in its "
                f"folder {FOLDER}/; restore it from a copy of the lineage."
            )
        check_inside(root, path)
        check = check_files if remote is None else remote.check_files
        check(path.parent, {path.name: published})
        paths.append(path)
    return paths[0], paths[1]


def keep_probe(root: Path, consumer: str, probe: Probe, mode: int, remote: Remote | None) -> Probe:
    """Copy the files of a consumer's probe into the lineage. Returns: the probe with these paths.

    Args:
        root: the lineage's folder.
        mode: permissions of the copies.
        remote: where the lineage lives, if `root` is a mirror.
    Raises: LineageError: a file was changed since its probe was run. On any error the folder's
        files are as they were.
    """
    model, data = Path(probe.model), Path(probe.data)
    # Each probe has its own folder, so that one can follow another.
    here = f"{FOLDER}/{consumer}/{sha256(model)[:8]}{sha256(data)[:8]}"
    for folder in (root / FOLDER, root / FOLDER / consumer):
        make_folder(folder, mode)
    names = {"model": f"model{model.suffix.lower()}", "data": "data.parquet"}
    # A probe may be added again from the copies of it that are there, so they go last.
    place, beside = root / here, root / f"{here}.new"
    restore_displaced(place)
    remove_tree(beside)
    with new_folder(beside, mode) as part:
        shutil.copyfile(model, part / names["model"])
        shutil.copyfile(data, part / names["data"])
        hashes = {f"{what}_sha256": sha256(part / name) for what, name in names.items()}
        for source, what in ((model, "model_sha256"), (data, "data_sha256")):
            if getattr(probe, what) not in ("", hashes[what]):
                raise LineageError(
                    f"{source} was changed after its probe was run; run the same command again."
                )
    if place.exists():
        exchange_folders(beside, place)
        remove_tree(beside)
    else:
        commit(beside, place)
    if remote is not None:
        remote.upload(here)
    kept = {what: f"{here}/{name}" for what, name in names.items()}
    return probe.model_copy(update={**kept, **hashes})


def remove_former_probes(
    root: Path, consumer: str, probes: Iterable[Probe], remote: Remote | None
) -> None:
    """Remove the files of a consumer's former probes.

    Args:
        root: the lineage's folder.
        probes: all that are in use, of any consumer.
        remote: where the lineage lives, if `root` is a mirror.
    """
    mine = Path(FOLDER) / consumer
    folders = {Path(probe.model).parent for probe in probes}
    kept = {folder.name for folder in folders if folder.parent == mine}
    for left in (root / mine).glob("*"):
        if left.name not in kept:
            remove_tree(left)
    if remote is not None:
        remote.storage.keep_only(mine.as_posix(), kept)
