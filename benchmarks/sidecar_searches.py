"""What old queries find in a store of new vectors: by the way back, and with a sidecar.

The vectors are those of `migrations`, the old ones as version 0 of a lineage of files and the new
ones as version 1, in a snapshot. The sidecar has a tenth of an old vector's bytes. Times are of the
same reader's process, one query after the other, in turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pyarrow as pa
import torch

from benchmarks import judged_corpora
from benchmarks.migrations import FLOAT_BYTES, KEEPS, installed, made_up, vectors_of
from evergram.evaluation.judged.beir_files import Judgements
from evergram.evaluation.judged.judged_metrics import JudgedQueries, judged_metrics
from evergram.evaluation.score_blocks import best_candidates
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.releasing.migration.migration_vectors import MigrationVectors
from evergram.retrieval.reader import Reader
from evergram.retrieval.sidecars.make_sidecar import make_sidecar
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors

TIMED = 50


@dataclass(frozen=True)
class Search:
    """One migration.

    Args:
        stay, way_back, sidecar: nDCG@10 of old queries, in the old index and read so.
        errors: of texts, relative: by the way back, and with the sidecar.
        slower: a search's time with the sidecar, over that without.
    """

    corpus: str
    pair: str
    stay: float
    way_back: float
    sidecar: float
    errors: tuple[float, float]
    slower: float


def measure() -> list[Search]:
    rows = []
    encoders = installed()
    for corpus, load in judged_corpora.available().items():
        texts, queries, judgements = load()
        vectors = {name: vectors_of(corpus, name, texts, queries) for name in encoders}
        for old, new in permutations(encoders, 2):
            parts = vectors[old][0], vectors[new][0], vectors[old][1], vectors[new][1]
            pair = MigrationVectors(list(texts), list(queries), *parts)
            rows.append(searches(corpus, f"{old} → {new}", pair, judgements))
    return rows


def tiny() -> list[Search]:
    pair, judgements = made_up()
    return [searches("made up", "a → b", pair, judgements)]


def searches(corpus: str, name: str, pair: MigrationVectors, judgements: Judgements) -> Search:
    """Measure one migration. Texts without a vector, of zeros, are left out."""
    judged = JudgedQueries.of(judgements, pair.queries, pair.texts)
    queries = pair.old_queries[judged.rows]
    there = (pair.old.abs().sum(1) > 0) & (pair.new.abs().sum(1) > 0)
    rows = there.nonzero()[:, 0]
    row_of = {text: row for row, text in enumerate(pair.texts)}

    def ndcg(ranked: torch.Tensor) -> float:
        return float(judged_metrics(ranked, judged)["ndcg@10"].mean())

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
        made.save(Path(folder) / "sidecar.safetensors")
        figures = []
        with_codes = Reader.open(lineage, sidecars=[Path(folder) / "sidecar.safetensors"])
        readers = [Reader.open(lineage), with_codes]
        with closing(readers[0]), closing(readers[1]):
            for reader in readers:
                hits = reader.search(queries.numpy(), 10, 0, metric="cosine")
                ranked = [[row_of[id_] for id_ in of_query.ids.to_pylist()] for of_query in hits]
                figures.append(ndcg(torch.tensor(ranked)))
            times = [
                _seconds(readers, query, first=place % 2)
                for place, query in enumerate(queries[:TIMED].numpy())
            ]
    slower = median(codes / without for without, codes in times)
    stay = ndcg(best_candidates(queries, pair.old, 10))
    errors = made.way_back_error, made.error
    return Search(corpus, name, stay, figures[0], figures[1], errors, slower)


def _seconds(readers: Sequence[Reader], query: np.ndarray, first: int) -> list[float]:
    """Return the seconds of each reader, of which one is the first to search."""
    taken = [0.0, 0.0]
    for number in (first, 1 - first):
        start = time.perf_counter()
        readers[number].search(query, 10, 0, metric="cosine")
        taken[number] = time.perf_counter() - start
    return taken


def table(rows: Sequence[Search]) -> str:
    """Return what each corpus's pairs keep of stay, and then each pair."""
    lines = [
        "| corpus | pairs | way back, over stay | with a sidecar, over stay "
        f"| pairs that keep {KEEPS:.2f} | time of a search, over without |",
        "|---" * 6 + "|",
    ]
    by_corpus = {name: [row for row in rows if row.corpus == name] for name in _names(rows)}
    for corpus, own in {**by_corpus, "all": list(rows)}.items():
        kept = sum(row.sidecar >= KEEPS * row.stay for row in own)
        lines.append(
            f"| {corpus} | {len(own)} | {fmean(r.way_back / r.stay for r in own):.3f} "
            f"| {fmean(r.sidecar / r.stay for r in own):.3f} | {kept} of {len(own)} "
            f"| {median(r.slower for r in own):.1f} |"
        )
    lines += [
        "",
        '<details markdown="1">',
        "<summary>Each pair: nDCG@10 of old queries, and the relative error of texts</summary>",
        "",
        "| corpus | old → new | stay | way back | with a sidecar | error: way back, sidecar |",
        "|---" * 6 + "|",
    ]
    lines += [
        f"| {r.corpus} | {r.pair} | {r.stay:.3f} | {r.way_back:.3f} | {r.sidecar:.3f} "
        f"| {r.errors[0]:.2f}, {r.errors[1]:.2f} |"
        for r in rows
    ]
    return "\n".join([*lines, "", "</details>"])


def _names(rows: Sequence[Search]) -> list[str]:
    return list(dict.fromkeys(row.corpus for row in rows))
