"""`prepare`: interactions of any size, from files to a prepared folder, in bounded memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from evergram.atomic_files import remove_tree
from evergram.data.data_sets import existing
from evergram.data.prepared.prepared_record import PreparedRecord
from evergram.data.prepared.sources.memory_sources import (
    corpus_of_kind,
    features_of,
    only_path,
    source_of_corpus,
)
from evergram.data.prepared.writing.earlier_parts import kept_settings
from evergram.data.prepared.writing.preparation import Preparation
from evergram.data.prepared.writing.prepared_folder import check_place, new_content, writing
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.prepared.writing.summary import PrepareSummary
from evergram.data.reading.interaction_source import (
    InteractionSource,
    source_of,
    source_of_adjacency_list,
    sources_of_files,
)
from evergram.data.reading.source_files import Paths, source_files
from evergram.data.reading.table_stream import MemoryTable
from evergram.errors import DataError
from evergram.log_lines import write_line

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus
    from evergram.data.prepared.writing.preparation import Features

    Source: TypeAlias = Paths | Corpus | pa.Table

# In the new folder until it is whole: what a loader brings into files first.
STAGED = ".staged"


def prepare(
    sources: Source,
    out: str | Path,
    settings: PrepareSettings | None = None,
    *,
    append: bool = False,
    overwrite: bool = False,
    progress: bool | Callable[[str], None] = False,
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
        progress: True for lines on stderr, or a function that takes them.
    Returns: what was read, left out and written.
    Raises: DataError: a source or a row cannot be used, the folder holds something else or is being
        written by another process, appended data is too early, or DuckDB is not installed. The
        folder is then as it was.
    """
    started = time.monotonic()
    report = progress if callable(progress) else _to_stderr if progress else _quiet
    # An append goes where a link leads; a first write refuses one.
    out = Path(out).resolve() if append else Path(out).absolute()
    settings = settings or PrepareSettings()
    with writing(out):
        check_place(out, append=append, overwrite=overwrite)
        record = PreparedRecord.load(out) if append else None
        if record is not None:
            settings = kept_settings(record, settings, out)
        with new_content(out) as folder:
            staged = folder / STAGED
            staged.mkdir()
            opened, features, settings = _opened(sources, settings, staged, report)
            if record is not None and settings.shared_ids != record.shared_ids:
                raise DataError(
                    f"Queries and candidates of {out} have ids of their own, and those of "
                    f"{sources!r} share theirs; prepare all of it again with --overwrite."
                )
            preparation = Preparation(out, folder, settings, record, report)
            counted = preparation.run(opened, features)
            remove_tree(staged)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return PrepareSummary(
        **counted,
        size=size,
        seconds=time.monotonic() - started,
        peak_memory=_peak_memory(),
    )


def _opened(
    sources: Source, settings: PrepareSettings, folder: Path, report: Callable[[str], None]
) -> tuple[list[InteractionSource], Features, PrepareSettings]:
    """Return the interactions of the sources, the features of each side, and the settings.

    Args:
        folder: empty; files may be staged there.
    """
    named = {"query": settings.query_features, "candidate": settings.candidate_features}
    features: Features = {side: paths for side, paths in named.items() if paths is not None}
    if isinstance(sources, str | Path | list | tuple):
        paths = sources if isinstance(sources, list | tuple) else [sources]
        if settings.kind == "table":
            opened = sources_of_files(source_files(paths), settings.columns)
            return opened, features, settings
        # Loaders are imported where they are used, as they bring torch.
        if settings.kind == "mediawiki":
            from evergram.data.prepared.writing.staged_dump import stage_mediawiki

            dump = existing(only_path(settings.kind, paths))
            source, described = stage_mediawiki(dump, folder, settings, report)
            features = {"query": described, "candidate": described, **features}
            return [source], features, replace(settings, shared_ids=True)
        if settings.kind == "adjacency_list":
            lists = existing(only_path(settings.kind, paths))
            return [source_of_adjacency_list(lists)], features, settings
        if settings.kind == "amazon":
            from evergram.data.amazon import IN_COLUMNS
            from evergram.data.prepared.writing.staged_reviews import stage_amazon

            reviews = existing(only_path(settings.kind, paths))
            if not (reviews / IN_COLUMNS).is_file():
                source, products = stage_amazon(reviews, folder, report)
                if products is not None:
                    features = {"candidate": products, **features}
                return [source], features, settings
        sources = corpus_of_kind(settings.kind, paths, settings.prefix)
    if isinstance(sources, pa.Table):
        return [source_of(MemoryTable(sources, "The table"), settings.columns)], features, settings
    if not hasattr(sources, "interactions"):
        raise DataError(
            f"sources is {type(sources).__name__}; give paths, an Arrow table or a Corpus."
        )
    features = {**features_of(sources), **features}
    shared = settings.shared_ids or sources.shared_ids
    return [source_of_corpus(sources)], features, replace(settings, shared_ids=shared)


def _quiet(line: str) -> None:
    """Report nothing."""


def _to_stderr(line: str) -> None:
    write_line("message", line)


def _peak_memory() -> int:
    """Return the most bytes that this process has had in memory, mapped files included."""
    # The kernel's figure for `getrusage` has that of the process that started this one, too.
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
