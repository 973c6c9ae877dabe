"""What old queries find in a store of new vectors: by the way back, and with a sidecar.

The vectors are those of `migrations`, the old ones as version 0 of a lineage of files and the new
ones as version 1, in a snapshot. The sidecar has a tenth of an old vector's bytes. Times are of the
same reader's process, one query after the other, in turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pyarrow as pa
import torch

from benchmarks.migrations import FLOAT_BYTES, KEEPS, judged_migrations, made_up
from evergram.evaluation.judged import JudgedQueries, Judgements, judged_metrics, paired_bootstrap
from evergram.evaluation.score_blocks import best_candidates
from evergram.lineage.lineage import Lineage
from evergram.migration.ways import MigrationVectors
from evergram.releasing.align import AlignSettings, align
from evergram.retrieval.reader import Reader
from evergram.retrieval.sidecar_files import SidecarFiles
from evergram.retrieval.version_sidecar import make_sidecar
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors

TIMED = 50
DEPTHS = (1000, 4000)


@dataclass(frozen=True)
class Search:
    """One migration.

    Args:
        stay, way_back: nDCG@10 of old queries, in the old index and by the way back alone.
        sidecar: the same with a sidecar, by depth.
        kept: by depth, the 95 % interval over queries of `sidecar` less `KEEPS` of stay.
        slower: by depth, a search's time with the sidecar over that without.
    """

    stay: float
    way_back: float
    sidecar: dict[int, float]
    kept: dict[int, tuple[float, float]]
    slower: dict[int, float]


def measure() -> list[Search]:
    return [searches(pair, judgements) for _, _, pair, judgements in judged_migrations()]


def tiny() -> list[Search]:
    pair, judgements = made_up()
    return [searches(pair, judgements)]


def searches(pair: MigrationVectors, judgements: Judgements) -> Search:
    """Measure one migration. Texts without a vector, of zeros, are left out."""
    judged = JudgedQueries.of(judgements, pair.queries, pair.texts)
    queries = pair.old_queries[judged.rows]
    there = (pair.old.abs().sum(1) > 0) & (pair.new.abs().sum(1) > 0)
    rows = there.nonzero()[:, 0]
    row_of = {text: row for row, text in enumerate(pair.texts)}

    def ndcg(ranked: torch.Tensor) -> torch.Tensor:
        return judged_metrics(ranked, judged)["ndcg@10"]

    with tempfile.TemporaryDirectory() as folder:
        files = []
        for part, vectors in (("old", pair.old), ("new", pair.new)):
            path = Path(folder) / f"{part}.parquet"
            ids = pa.array([pair.texts[row] for row in rows.tolist()])
            write_vectors(path, [(ids, vectors[rows])])
            files.append(open_embeddings(path))
        lineage = Lineage.create(Path(folder) / "line", "line")
        settings = AlignSettings("linear", allow_small_overlap=True)
        align(files[0], files[1], lineage, settings, max_error=float("inf"))
        made = make_sidecar(lineage, files[0], size=int(FLOAT_BYTES * pair.old.shape[1] / 10))
        path = Path(folder) / "sidecar.safetensors"
        made.save(path)
        found: list[torch.Tensor] = []
        with ExitStack() as stack:
            options = [SidecarFiles(), *(SidecarFiles(path, depth) for depth in DEPTHS)]
            readers = [Reader.open(lineage, sidecars=option) for option in options]
            for reader in readers:
                stack.enter_context(closing(reader))
                hits = reader.search(queries.numpy(), 10, 0, metric="cosine")
                ranked = [[row_of[id_] for id_ in of_query.ids.to_pylist()] for of_query in hits]
                found.append(ndcg(torch.tensor(ranked)))
            times = [
                _seconds(readers, query, first=place % len(readers))
                for place, query in enumerate(queries[:TIMED].numpy())
            ]
    stay = ndcg(best_candidates(queries, pair.old, 10))
    by_depth = dict(zip(DEPTHS, found[1:], strict=True))
    kept = {depth: paired_bootstrap(values, KEEPS * stay) for depth, values in by_depth.items()}
    slower = {d: median(t[n] / t[0] for t in times) for n, d in enumerate(DEPTHS, 1)}
    return Search(
        *(float(stay.mean()), float(found[0].mean())),
        {depth: float(values.mean()) for depth, values in by_depth.items()},
        {depth: (interval.low, interval.high) for depth, interval in kept.items()},
        slower,
    )


def _seconds(readers: Sequence[Reader], query: np.ndarray, first: int) -> list[float]:
    """Return the seconds of each reader, of which one is the first to search."""
    taken = [0.0] * len(readers)
    for turn in range(len(readers)):
        number = (first + turn) % len(readers)
        start = time.perf_counter()
        readers[number].search(query, 10, 0, metric="cosine")
        taken[number] = time.perf_counter() - start
    return taken


def table(rows: Sequence[Search]) -> str:
    """Return what all pairs keep of stay by each depth."""
    lines = [
        "| hits read by a sidecar | pairs | way back, over stay | over stay "
        f"| pairs that keep {KEEPS:.2f} | shown to keep it | shown not to "
        "| time of a search, over without |",
        "|---" * 8 + "|",
    ]
    for depth in DEPTHS:
        lines.append(
            f"| {depth:,} | {len(rows)} | {fmean(r.way_back / r.stay for r in rows):.3f} "
            f"| {fmean(r.sidecar[depth] / r.stay for r in rows):.3f} "
            f"| {sum(r.sidecar[depth] >= KEEPS * r.stay for r in rows)} "
            f"| {sum(r.kept[depth][0] >= 0 for r in rows)} "
            f"| {sum(r.kept[depth][1] < 0 for r in rows)} "
            f"| {median(r.slower[depth] for r in rows):.1f} |"
        )
    return "\n".join(lines)
