"""`prepare`: interactions of any size, from files to a prepared folder, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import pyarrow as pa
from filelock import Timeout

from evergram.atomic_files import (
    commit,
    exchange_folders,
    part_of,
    remove_tree,
    restore_displaced,
    sync,
)
from evergram.data.data_sets import existing, whole_path
from evergram.data.feature_types import is_measure
from evergram.data.loaders import LOADERS, load, path_kinds
from evergram.data.prepared.new_part import Features, NewPart, kept_settings, stored_features
from evergram.data.prepared.record import NAME, SIDES, PreparedRecord, SideName
from evergram.data.prepared.settings import PrepareSettings, PrepareSummary
from evergram.data.reading.interaction_source import (
    InteractionSource,
    names_of_ids,
    source_of,
    source_of_adjacency_list,
    sources_of_files,
)
from evergram.data.reading.keyed_table import read_keyed_files
from evergram.data.reading.rules import BadRows
from evergram.data.reading.source_files import Paths, source_files
from evergram.data.reading.table_stream import ROWS, MemoryTable
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.file_lock import file_lock
from evergram.system_errors import reason_and_remedy

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus
    from evergram.data.features import Side

    Source: TypeAlias = Paths | Corpus | pa.Table


def prepare(
    sources: Source,
    out: str | Path,
    settings: PrepareSettings | None = None,
    *,
    append: bool = False,
    overwrite: bool = False,
    progress: Callable[[str], object] = lambda line: None,
) -> PrepareSummary:
    """Write interactions to a prepared folder, which `data.kind = "prepared"` trains from.

    Ids get rows by first appearance, interactions are in order of time (ties and interactions
    without times in the order of the sources, files of a folder or glob by name), as in
    `Corpus.from_tables`; all of it on disk, by DuckDB. The folder holds the old content or the new
    one at any moment.

    Args:
        sources: one or several files (Parquet, Arrow, CSV or TSV, gzipped or not), folders of
            files, globs and addresses such as s3://…; or a `Corpus`, or an Arrow table whose
            columns are named by role.
        out: the folder.
        settings: which columns are read, what is left out, and what the engine may use.
        append: add a part to the folder. Its interactions begin no earlier than the last part
            ends; rows of earlier ids stay, and so do their features; what the first part left out
            (unique, k_core, minimum_value) is left out again, counted over all parts.
        overwrite: replace the folder if it is a prepared corpus.
        progress: takes lines, such as `print`.
    Returns: what was read, left out and written.
    Raises: DataError: a source or a row cannot be used, the folder holds something else or is being
        written by another process, appended data is too early, or DuckDB is not installed. The
        folder is then as it was.
    """
    started = time.monotonic()
    # An append goes where a link leads; a first write refuses one.
    out = Path(out).resolve() if append else Path(out).absolute()
    settings = settings or PrepareSettings()
    with _writing(out):
        _check_place(out, append=append, overwrite=overwrite)
        record = PreparedRecord.load(out) if append else None
        if record is not None:
            settings = kept_settings(record, settings, out)
        with _new_content(out) as folder:
            opened, features, settings = _opened(sources, settings)
            if record is not None and settings.shared_ids != record.shared_ids:
                raise DataError(
                    f"Queries and candidates of {out} have ids of their own, and those of "
                    f"{sources!r} share theirs; prepare all of it again with --overwrite."
                )
            facts = NewPart(out, folder, settings, record, progress).write(opened, features)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return PrepareSummary(**facts, size=size, seconds=time.monotonic() - started)


def _opened(
    sources: Source, settings: PrepareSettings
) -> tuple[list[InteractionSource], Features, PrepareSettings]:
    """Return the interactions of the sources, the features of each side, and the settings.

    Features are read whole: what cannot be used is refused before hours of interactions are read.
    """
    features: dict[SideName, pa.Table] = {}
    if isinstance(sources, str | Path | list | tuple):
        sources = _of_paths(sources, settings)
    if isinstance(sources, pa.Table):
        opened = [source_of(MemoryTable(sources, "The table"), settings.columns)]
    elif isinstance(sources, list):
        opened = cast(list[InteractionSource], sources)
    elif hasattr(sources, "interactions"):
        opened, features = [_source_of_corpus(sources)], _features_of(sources)
        settings = replace(settings, shared_ids=settings.shared_ids or sources.shared_ids)
    else:
        raise DataError(
            f"sources is {type(sources).__name__}; give paths, an Arrow table or a Corpus."
        )
    named = {"query": settings.query_features, "candidate": settings.candidate_features}
    for side in SIDES:
        paths = named[side]
        if paths is not None:
            ids = names_of_ids(settings.columns, side)
            features[side] = read_keyed_files(paths, bad_rows=BadRows(settings.bad_rows), ids=ids)
    if settings.shared_ids and named["query"] == named["candidate"] is not None:
        features["candidate"] = features["query"]
    stored = {id(t): stored_features(t, f"{side} features") for side, t in features.items()}
    return opened, {side: stored[id(table)] for side, table in features.items()}, settings


def _of_paths(sources: Paths, settings: PrepareSettings) -> list[InteractionSource] | Corpus:
    """Return the interactions of files, or the corpus of a loader that does not stream."""
    paths = sources if isinstance(sources, list | tuple) else [sources]
    kind = settings.kind
    if kind == "table":
        return sources_of_files(source_files(paths), settings.columns)
    kinds = [one for one in path_kinds() if one not in ("table", "prepared")]
    if kind not in kinds:
        raise DataError(
            f"kind (--kind) is {kind!r}; it is one of: table, {', '.join(kinds)}"
            f"{did_you_mean(kind, ['table', *kinds])}."
        )
    if len(paths) != 1:
        raise DataError(
            f"The kind {kind} reads one file or folder, and {len(paths)} sources are named; name "
            "one."
        )
    path = existing(whole_path(str(paths[0]), Path()))
    if kind == "adjacency_list":
        return [source_of_adjacency_list(path)]
    return load(LOADERS.of({"kind": kind, "path": str(path)}), 0)


def _source_of_corpus(corpus: Corpus) -> InteractionSource:
    """Return the interactions of a corpus, by their external ids."""
    table = corpus.interactions
    sides = {"query": corpus.queries, "candidate": corpus.candidates}

    def read() -> Iterator[pa.RecordBatch]:
        for batch in table.to_batches(max_chunksize=ROWS):
            columns = {name: batch[name] for name in batch.schema.names}
            for name, side in sides.items():
                columns[name] = side.vocabulary.keys.take(batch[name])
            yield pa.record_batch(columns)

    return InteractionSource(repr(corpus), {n: n for n in table.column_names}, read)


def _features_of(corpus: Corpus) -> dict[SideName, pa.Table]:
    """Return the features of the sides that have some; one table for both if they are the same.

    Raises: DataError: ids are shared, and the sides have different features of one name.
    """
    sides: dict[SideName, Side] = {"query": corpus.queries, "candidate": corpus.candidates}
    tables = {name: _table_of(side) for name, side in sides.items() if side.features}
    if not corpus.shared_ids or len(tables) < 2:
        return tables
    query, candidate = (tables[side] for side in SIDES)
    both = set(query.column_names[1:]) & set(candidate.column_names)
    same = set(query.column_names) == set(candidate.column_names)
    if same and query.equals(candidate.select(query.column_names)):
        tables["candidate"] = query
    elif both:
        raise DataError(
            f"Queries and candidates share their ids, and the feature {min(both)!r} differs "
            "between them, or one of them has others, too; give both sides the same features, or "
            "other names."
        )
    return tables


def _table_of(side: Side) -> pa.Table:
    """Return ids and features of a side: lists of keys, or numbers or times."""
    columns = {"id": side.vocabulary.keys}
    for name, feature in side.features.items():
        keys = feature.vocabulary.keys.take(pa.array(feature.indices.numpy()))
        if is_measure(keys.type):  # one of each object that has it
            empty = (feature.offsets[1:] == feature.offsets[:-1]).numpy()
            rows = np.where(empty, 0, feature.offsets[:-1].numpy())
            columns[name] = keys.take(pa.array(rows, mask=empty))
        else:
            columns[name] = pa.ListArray.from_arrays(
                pa.array(feature.offsets.numpy().astype("int32")), keys
            )
    return pa.table(columns)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Hold the lock of a prepared folder, and remove what a killed run left beside it."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        path = out.with_name(f".{out.name}.lock")
        path.open("ab").close()  # the lock waits where no file can be made
        lock = file_lock(path, timeout=0)
        lock.acquire()
    except Timeout:
        raise DataError(f"Another process is preparing {out}; wait for it and try again.") from None
    except OSError as error:
        raise _unwritable(out, error) from error
    try:
        restore_displaced(out)
        remove_tree(part_of(out))
        yield
    finally:
        # filelock refuses a file that was removed between its opening and its locking.
        path.unlink(missing_ok=True)
        lock.release()


def _check_place(out: Path, *, append: bool, overwrite: bool) -> None:
    """Refuse to write over something, or to append to nothing."""
    if append and overwrite:
        raise DataError("append and overwrite (--append, --overwrite) exclude each other.")
    if append:
        return
    if out.is_file() or out.is_symlink():
        raise DataError(f"{out} is a file or a link; name a new folder.")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / NAME).is_file():
        raise DataError(f"{out} holds other files and is no prepared corpus; name a new folder.")
    if not overwrite:
        raise DataError(
            f"{out} is a prepared corpus already; --append adds a new part to it, --overwrite "
            "replaces it."
        )


@contextmanager
def _new_content(out: Path) -> Iterator[Path]:
    """Yield a folder to fill, which takes the place of `out` when the block ends without an error.

    Raises: DataError: something cannot be written, as the disk is full.
    """
    part = part_of(out)
    try:
        part.mkdir(parents=True)
        yield part
        for path in (*part.rglob("*"), part):
            sync(path)
        if out.exists():
            exchange_folders(part, out)
        else:
            commit(part, out)
    except OSError as error:
        raise _unwritable(out, error) from error
    finally:
        remove_tree(part)


def _unwritable(out: Path, error: OSError) -> DataError:
    return DataError(f"{out} cannot be written: {reason_and_remedy(error, 'it is as it was')}.")
