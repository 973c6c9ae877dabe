"""Measure every way to migrate to a new embedding model, and recommend one by judged queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from evergram.compatibility.aligner.aligner import Aligner
from evergram.compatibility.chance import LEAST_DEVIATIONS, compared_with_chance
from evergram.compatibility.closed_forms import MOST_ZEROS, SHORTEST, SecondMoments
from evergram.compatibility.sidecar import Sidecar
from evergram.errors import DataError
from evergram.evaluation.judged import (
    RECALL_DEPTH,
    JudgedQueries,
    Judgements,
    bootstrap,
    judged_metrics,
    mean_bound,
    paired_bootstrap,
)
from evergram.evaluation.score_blocks import best_candidates
from evergram.evaluation.version_distance import as_dim
from evergram.migration.cascade import DEPTH
from evergram.migration.mixed_models import second_model
from evergram.migration.price import Rates, cost_of, measure_rates
from evergram.releasing.past_file import text_encoder_of
from evergram.retrieval.version_sidecar import DEPTH as SIDECAR_DEPTH
from evergram.texts.record import cut
from evergram.vector_files.open_embeddings import EmbeddingFile, Pairing

Files = tuple[EmbeddingFile, EmbeddingFile]


@dataclass(frozen=True)
class MigrationVectors:
    """The same texts and queries, encoded by two models.

    Args:
        texts, queries: ids of the rows; `of` sorts them in descending order, so that ties rank as
            in trec_eval.
        old, new: vectors of the texts, float32 [N, D_old] and [N, D_new], not normalized.
        old_queries, new_queries: [Q, D_old] and [Q, D_new].
        shorter: dims to cut the new vectors to; if empty, D_new / 2 and D_new / 4.
    """

    texts: list[str]
    queries: list[str]
    old: Tensor
    new: Tensor
    old_queries: Tensor
    new_queries: Tensor
    shorter: Sequence[int] = ()

    @property
    def files(self) -> dict[str, Tensor]:
        """The vectors of the four files, by name."""
        names = ("old texts", "new texts", "old queries", "new queries")
        files = (self.old, self.new, self.old_queries, self.new_queries)
        return dict(zip(names, files, strict=True))

    @property
    def zeros(self) -> dict[str, int]:
        """The number of zero vectors in each file."""
        lengths = {name: rows.norm(dim=1, dtype=torch.float64) for name, rows in self.files.items()}
        return {name: int((length < SHORTEST).sum()) for name, length in lengths.items()}

    def of_queries(self, rows: Tensor) -> MigrationVectors:
        return replace(
            self,
            queries=[self.queries[row] for row in rows.tolist()],
            old_queries=self.old_queries[rows],
            new_queries=self.new_queries[rows],
        )

    @classmethod
    def of(cls, texts: Files, queries: Files) -> MigrationVectors:
        """Read the old and the new file of texts and of queries into memory.

        Raises: DataError: old and new ids differ (searching fewer texts is easier), or queries and
            texts of one model differ in dim or encoder.
        """
        text_ids, old, new = _paired(*texts)
        query_ids, old_queries, new_queries = _paired(*queries)
        shorter: Sequence[int] = ()
        for file, of_file in zip(queries, texts, strict=True):
            if file.dim != of_file.dim:
                raise DataError(
                    f"{file.path} has {file.dim} dims, and the texts of its model have "
                    f"{of_file.dim}; give queries and texts of one model."
                )
            record, other = text_encoder_of(of_file), text_encoder_of(file)
            why = record.mismatch(other) if record is not None and other is not None else None
            if why is not None:
                raise DataError(
                    f"{file.path} was not encoded by the encoder of {of_file.path}: {why}; give "
                    "queries and texts of one model."
                )
            shorter = () if record is None else record.matryoshka  # of the new model in the end
        return cls(text_ids, query_ids, old, new, old_queries, new_queries, shorter)


def unit(vectors: Tensor) -> Tensor:
    """Return vectors [N, D] scaled to length 1; zero vectors stay zero."""
    return torch.nn.functional.normalize(vectors, dim=1)


def _paired(old: EmbeddingFile, new: EmbeddingFile) -> tuple[list[str], Tensor, Tensor]:
    if old.has_ids != new.has_ids:
        with_ids, without = (old, new) if old.has_ids else (new, old)
        raise DataError(
            f"{with_ids.path} has ids and {without.path} has none; write the ids of the second "
            f"into {without.path.with_suffix('.ids.txt').name} beside it, one a line."
        )
    pairing = Pairing(old, new)
    if pairing.only_old or pairing.only_new:
        raise DataError(
            f"{pairing.only_old} ids are in {old.path} alone and {pairing.only_new} in {new.path} "
            "alone; give files with the same ids, such as those of a sample of all texts."
        )
    blocks = zip(*pairing.blocks(), strict=True)
    sides = [torch.cat([block.float() for block in side]) for side in blocks]
    ids = [str(id_) for id_ in pairing.ids.to_pylist()]
    last_first = sorted(range(len(ids)), key=ids.__getitem__, reverse=True)
    return [ids[row] for row in last_first], sides[0][last_first], sides[1][last_first]


Similarity = Literal["cosine", "dot"]
FLOAT = 4  # bytes per float32 coordinate
LEAST_PAIRS = 100  # minimum number of texts for fitting a backward transform
LARGEST_HALF = 65504  # of float16


@dataclass(frozen=True)
class WaySettings:
    """How to measure the ways: bytes of a sidecar per text (by default a tenth of an old vector's),
    the similarity, the seed of bootstrap intervals, and a threshold on old scores, for which
    `pinned` counts the pairs that pass it."""

    sidecar_bytes: int | None = None
    similarity: Similarity = "cosine"
    seed: int = 0
    threshold: float | None = None

    def searched(self, vectors: Tensor) -> Tensor:
        """Return vectors [n, D] whose inner products are the scores."""
        return unit(vectors) if self.similarity == "cosine" else vectors


@dataclass(frozen=True)
class Way:
    """The measurements of one way.

    Args:
        ranked: rows of texts, best first, int64 [Q, k].
        encoded: texts that the new model must encode for the fit and for these queries.
        bytes_a_text: mean bytes per text of the searched vectors.
        milliseconds: per query, for exact search on this machine without encoding.
        facts: further figures for the report.
        touched: of a cascade, the numbers of texts among the first 0, 1, … hits of all queries.
    """

    ranked: Tensor
    encoded: int
    bytes_a_text: float
    milliseconds: float
    facts: dict[str, float] = field(default_factory=dict)
    touched: Sequence[int] = ()


def measure_ways(vectors: MigrationVectors, settings: WaySettings) -> dict[str, Way]:
    """Measure every way, and return them by name: see docs/migrate-verdict.md, "The ways".

    The maps are those that `align` would publish, except for the choice of the held-out tenth:
    bridge uses `--transform orthogonal`; sidecar and pinned use the default, least squares, which
    has the smaller error on texts, but not always on queries.

    Raises: DataError: there are too few texts, or see `Aligner`.
    """
    count = len(vectors.texts)
    if count < LEAST_PAIRS:
        raise DataError(
            f"There are {count} texts, and a map needs {LEAST_PAIRS} or more; give more."
        )
    kinds = ("orthogonal", "linear")
    back, published = (Aligner(kind).fit(vectors.new, vectors.old) for kind in kinds)
    for fitted in (back, published):
        fitted.report()  # solves for the map before queries are timed
    searched, old_bytes = settings.searched, FLOAT * vectors.old.shape[1]
    new_bytes, top = FLOAT * vectors.new.shape[1], min(RECALL_DEPTH, count)
    old, new, old_queries, new_queries = map(searched, vectors.files.values())
    texts, queries = (
        searched(published.transform(rows)) for rows in (vectors.new, vectors.new_queries)
    )

    def bridged() -> Tensor:
        return best_candidates(searched(back.transform(vectors.new_queries)), old, DEPTH)

    naive = searched(as_dim(vectors.new_queries, old.shape[1]))
    ways = {
        "stay": _timed(partial(best_candidates, old_queries, old, DEPTH), 0, old_bytes),
        "naive": _timed(partial(best_candidates, naive, old, top), 0, old_bytes),
        "bridge": _timed(bridged, count, old_bytes),
    }
    for first, name in (("stay", "cascade"), ("bridge", "bridge_cascade")):
        proposed, before = ways[first].ranked, ways[first].milliseconds
        ways[first] = replace(ways[first], ranked=proposed[:, :top])
        touched = _touched(proposed, count)
        # Fitting the bridge took new vectors of all texts.
        encoded = touched[-1] if name == "cascade" else count
        size, facts = old_bytes + encoded / count * new_bytes, {"encoded_share": encoded / count}
        way = _timed(partial(_reranked, proposed, new_queries, new), encoded, size)
        both = before + way.milliseconds
        ways[name] = replace(way, milliseconds=both, facts=facts, touched=touched)
    proposed = best_candidates(old_queries, texts, SIDECAR_DEPTH)
    if find_spec("faiss"):
        ways["sidecar"] = _with_sidecar(published, vectors, settings, proposed)
    ways["pinned"] = _timed(partial(best_candidates, queries, texts, top), count, new_bytes)
    if settings.threshold is not None:
        for name, asked, among in (("then", old_queries, old), ("now", queries, texts)):
            blocks = torch.split(asked, max(1, (1 << 24) // len(among)))
            passing = sum(int((b @ among.T >= settings.threshold).sum()) for b in blocks)
            ways["pinned"].facts[f"pairs_{name}"] = passing
    ways["reindex"] = _timed(partial(best_candidates, new_queries, new, top), count, new_bytes)
    for name, size, asked, among in _smaller(vectors, settings):
        ways[name] = _timed(partial(best_candidates, asked, among, top), count, size)
    return ways


def _smaller(
    vectors: MigrationVectors, settings: WaySettings
) -> Iterator[tuple[str, float, Tensor, Tensor]]:
    """Yield names, bytes per text, queries and texts of indexes smaller than reindexing's: first
    coordinates, float16, and one byte per coordinate with a scale for each text."""
    files, dim = (vectors.new_queries, vectors.new), vectors.new.shape[1]
    for dims in sorted(set(vectors.shorter or (dim // 2, dim // 4)) - {0, dim}, reverse=True):
        asked, texts = (torch.from_numpy(cut(rows.numpy(), dims)) for rows in files)
        yield f"first_{dims}", FLOAT * dims, asked, texts
    asked, texts = map(settings.searched, files)
    yield "float16", 2 * dim, asked, texts.clamp(-LARGEST_HALF, LARGEST_HALF).half().float()
    scale = texts.abs().amax(1, keepdim=True).clamp_min(SHORTEST) / 127
    yield "int8", dim + FLOAT, asked, (texts / scale).round() * scale


def _touched(proposed: Tensor, count: int) -> list[int]:
    """Return how many of `count` texts are among the first 0, 1, … k rows of [Q, k]."""
    deep = proposed.shape[1]
    ranks = torch.arange(deep).expand_as(proposed).flatten()
    first = torch.full((count,), deep).scatter_reduce(0, proposed.flatten(), ranks, "amin")
    return [0, *torch.bincount(first, minlength=deep + 1)[:deep].cumsum(0).tolist()]


def texts_to_encode(name: str, way: Way, count: int, texts: int, queries: float = 1) -> int:
    """Estimate how many of the `texts` of a collection a way must encode, from a sample of `count`:
    a text that is among the `DEPTH` hits of a query in the collection is among the first
    `DEPTH` · count / texts in the sample. `queries` is the number of expected queries divided by
    those of the sample; they are taken not to share hits, so it may be too many."""
    if not way.touched:
        return way.encoded if name == "bridge" else way.encoded * texts // count
    depth = DEPTH * count / texts
    found = float(np.interp(depth, np.arange(len(way.touched)), way.touched))
    among = min(texts, found * texts / count * queries)
    # The bridge was fitted to the sample, which has some of these texts.
    return round(among if name == "cascade" else count + among * (1 - count / texts))


def _timed(search: Callable[[], Tensor], encoded: int, size: float) -> Way:
    start = time.perf_counter()
    ranked = search()
    milliseconds = 1000 * (time.perf_counter() - start) / max(1, len(ranked))
    return Way(ranked, encoded, size, milliseconds)


def _reranked(proposed: Tensor, queries: Tensor, texts: Tensor) -> Tensor:
    """Return the `RECALL_DEPTH` rows of those proposed [Q, k] that have the largest scores."""
    pairs = zip(proposed, queries, strict=True)
    scores = torch.stack([texts[rows] @ query for rows, query in pairs])
    order = scores.argsort(dim=1, descending=True, stable=True)
    return proposed.gather(1, order[:, :RECALL_DEPTH])


def _with_sidecar(
    published: Aligner, vectors: MigrationVectors, settings: WaySettings, proposed: Tensor
) -> Way:
    """Measure old queries on new vectors with a sidecar. The codebooks for a fifth of the texts are
    fitted to the others, because codebooks know the vectors of a few texts by heart, but not those
    of a whole index."""
    affine = published.as_transform().affine()
    assert affine is not None
    old_bytes, budget = FLOAT * vectors.old.shape[1], settings.sidecar_bytes
    size = old_bytes // 10 if budget is None else budget
    read = torch.empty_like(vectors.old)
    fifths = torch.arange(len(read)) % FOLDS
    for fold in range(FOLDS):
        own, new = fifths == fold, vectors.new[fifths == fold]
        sidecar = Sidecar.fit(*affine, vectors.new[~own], vectors.old[~own], size)
        read[own] = sidecar.read(new, sidecar.encode(new, vectors.old[own])).to(read.dtype)
    error = (read - vectors.old).double().norm() / vectors.old.double().norm()
    read, queries = settings.searched(read), settings.searched(vectors.old_queries)
    new_bytes = FLOAT * vectors.new.shape[1]
    search = partial(_reranked, proposed, queries, read)
    way = _timed(search, len(read), new_bytes + sidecar.size)
    facts = {
        "sidecar_bytes": float(sidecar.size),
        "share_of_old_bytes": sidecar.size / old_bytes,
        "error": float(error),
    }
    return replace(way, facts=facts)


FOLDS = 5  # parts of the texts in turn, see `_with_sidecar`
LEAST_QUERIES = 20  # minimum number of judged queries for a verdict
SAME_QUERY = 1 - 1e-5  # queries with at least this cosine by both models count as one
BLOCK = 1024  # queries per block of comparisons
TEXTS = 2000  # number of texts for the maps that check the files


def distinct_queries(vectors: MigrationVectors) -> Tensor:
    """Number the queries from 0, int64 [Q]; queries with equal vectors by both models share one."""
    sides = unit(vectors.old_queries), unit(vectors.new_queries)
    first = []
    for start in range(0, len(sides[0]), BLOCK):
        same = torch.stack([s[start : start + BLOCK] @ s.T >= SAME_QUERY for s in sides]).all(0)
        rows = torch.arange(len(same))
        same[rows, rows + start] = True  # also for zero vectors
        first.append(same.int().argmax(1))
    of_query: Tensor = torch.unique(torch.cat(first), return_inverse=True)[1]
    return of_query


def reasons_not_to_judge(vectors: MigrationVectors, queries: int) -> list[str]:
    """Return a sentence per reason why these vectors of a number of distinct `queries` cannot show
    which model is better; an empty list if they can."""
    reasons = [
        f"{zeros} of the {len(vectors.files[name])} vectors of {name} are zeros, as failed calls "
        "of an encoder leave them, so its model is not measured; encode them again."
        for name, zeros in vectors.zeros.items()
        if zeros > MOST_ZEROS * len(vectors.files[name])
    ]
    if reasons:
        return reasons
    old, new, old_queries, new_queries = map(unit, vectors.files.values())
    drawn = torch.randperm(len(old), generator=torch.Generator().manual_seed(0))[:TEXTS]
    map_ = Aligner("affine").fit(new[drawn], old[drawn])
    if map_.report().better_than_chance is False:
        return [
            "A map from new to old vectors of texts is no better than with the texts mixed up, so "
            "the same id is not the same text in both files; look at how their ids were written."
        ]
    weight, offset = map_.as_transform().affine() or (None, None)
    assert weight is not None
    pairs = SecondMoments(old.shape[1], new.shape[1])
    pairs.add(old_queries, new_queries)
    chance = compared_with_chance(pairs, weight, offset, queries)
    if queries >= LEAST_QUERIES and chance.deviations < LEAST_DEVIATIONS:
        reasons.append(
            "The map that reads new vectors of texts as old ones reads those of queries no better "
            "than with the queries mixed up: the two files of queries were swapped, are of other "
            "models than the texts, or the same id is not the same query in both."
        )
    for name, source, target in (("old", new, old), ("new", old, new)):
        if (rows := second_model(source[drawn], target[drawn])) is not None:
            reasons.append(
                f"The {name} vectors of about {rows.double().mean():.0%} of the texts follow "
                "another map than the rest, so the file holds vectors of two models; encode all "
                "texts by one."
            )
    return reasons


CHANGES = ("bridge", "cascade", "bridge_cascade", "reindex")  # ways to change, cheapest first
BY_OLD_MODEL = ("stay", "cascade")  # ways that encode queries with the old model


@dataclass(frozen=True)
class Verdict:
    """The recommended way, None if the inputs do not allow a verdict; all ways that meet the rule,
    cheapest first; and the reasons as sentences."""

    way: str | None
    accepted: list[str]
    reasons: list[str]


@dataclass(frozen=True)
class Situation:
    """The share of nDCG@10 that a cheaper way may lose; whether the old model ends, and whether old
    vectors stay in use; and the gain in nDCG@10 for which a change pays: if given, means decide
    instead of confidence bounds."""

    tolerance: float = 0.01
    old_model_ends: bool = False
    old_readers: bool = False
    worth: float | None = None


def decide(ndcg: Mapping[str, Tensor], situation: Situation, seed: int = 0) -> Verdict:
    """Return the verdict: the cheapest accepted way, else *stay* (docs/migrate-verdict.md).

    Differences in nDCG@10 are judged by their `mean_bound`, or by their mean if `situation.worth`
    is given. The bound never falls when a query's value rises, so a way that is at least as good on
    every query as an accepted one is accepted.

    Args:
        ndcg: nDCG@10 of each query, [Q], by the names of `measure_ways`.
    """
    accepted, reasons = [], []

    def differs(way: str, other: str, needed: float, *, more: bool, means: bool) -> bool:
        """Return whether the difference of two ways is large enough, and add it to `reasons`."""
        interval = paired_bootstrap(ndcg[way], ndcg[other], seed)
        least = interval.mean if means else mean_bound(ndcg[way] - ndcg[other], seed)
        enough = least > needed if more else least >= needed
        bound = "mean" if means else "lower bound"
        reasons.append(
            f"nDCG@10 of {way} minus that of {other}: {interval}, {bound} {least:.4f}; "
            f"{'more than' if more else 'at least'} {needed:.4f} is needed: "
            f"{'yes' if enough else 'no'}."
        )
        return enough

    means = situation.worth is not None
    for way in CHANGES:
        if situation.old_model_ends and way in BY_OLD_MODEL:
            continue
        most_lost = situation.tolerance * float(ndcg["reindex"].mean())
        keeps = way == "reindex" or differs(way, "reindex", -most_lost, more=False, means=means)
        if keeps and (
            situation.old_model_ends
            or differs(way, "stay", situation.worth or 0.0, more=True, means=means)
        ):
            accepted.append(way)
    chosen = accepted[0] if accepted else "stay"
    if chosen == "reindex" and situation.old_readers:
        most_lost = situation.tolerance * float(ndcg["stay"].mean())
        if "sidecar" not in ndcg:
            reasons.append(
                "A sidecar was not measured; pip install 'evergram[faiss]' and plan again, or "
                "keep the old index for old readers."
            )
        elif differs("sidecar", "stay", -most_lost, more=False, means=False):
            accepted.append("sidecar")
            chosen = "sidecar"
        else:
            reasons.append(
                "Keep the old index for old readers, give the sidecar more bytes, or judge more "
                "queries."
            )
    return Verdict(chosen, accepted, reasons)


DEFAULT, ORDINARY = WaySettings(), Situation()
AGREEMENT_DEPTH = 10


def plan_migration(
    vectors: MigrationVectors,
    judgements: Judgements | None = None,
    settings: WaySettings = DEFAULT,
    situation: Situation = ORDINARY,
    rates: Rates | None = None,
) -> dict[str, Any]:
    """Measure every way to a new model, and recommend one if the judgements allow it.

    Without judgements, only costs and agreement are measured. With judgements, queries count only
    if all their relevant texts are included. Repeated queries count once.

    Returns: JSON: `texts`, `queries` (distinct measured ones), `judged`, `repeated` (queries with
        the vectors of another), `incomplete` (judged queries without all relevant texts), `absent`
        (missing query–text pairs), `zeros` (zero vectors per file), `unjudged` (see
        `reasons_not_to_judge`), `ways` by name (see `Way`; `agreement@10`, the share of the first
        ten hits that reindexing has; with judgements `ndcg@10`, `recall@100`, `beside_stay` and
        `beside_reindex`, paired differences of nDCG@10; each an interval `mean`, `low`, `high`;
        with rates `cost`, see `cost_of`), `rates` (see `measure_rates`), `verdict`, `accepted` (all
        ways that meet its rule) and `reasons`.
    Raises: DataError: no query is judged, or see `measure_ways` and `measure_rates`.
    """
    count = len(vectors.texts)
    known = None if rates is None else measure_rates(rates, count)
    judged, whole, incomplete, absent = None, 0, 0, 0
    if judgements is not None:
        judged = JudgedQueries.of(judgements, vectors.queries, vectors.texts)
        complete, absent = judged.complete, judged.absent
        whole, incomplete = len(complete), len(judged) - len(complete)
        # If all judged queries are incomplete, show their figures without a verdict.
        judged = complete if whole else judged
        vectors = vectors.of_queries(judged.rows)
    of_query = distinct_queries(vectors)
    queries = len(torch.unique(of_query))
    ways = measure_ways(vectors, settings)
    values = {name: _values(way, ways["reindex"], judged, of_query) for name, way in ways.items()}
    unjudged = reasons_not_to_judge(vectors, queries)
    if judged is None:
        unjudged.insert(0, "There are no judgements, so that no way is known to be better.")
    elif min(whole, queries) < LEAST_QUERIES:
        unjudged.insert(
            0,
            f"Only {min(whole, queries)} different queries are judged by texts that are all here, "
            f"and {LEAST_QUERIES} are needed: {len(of_query) - queries} repeat another, and of "
            f"{incomplete} some relevant texts are not among the texts.",
        )
    report = {name: _shown(way, name, values, settings.seed) for name, way in ways.items()}
    if known is not None:
        expected = known.setdefault("queries", queries) / queries
        for name, way in ways.items():
            number = texts_to_encode(name, way, count, known["texts"], expected)
            report[name]["cost"] = cost_of(number, known)
    verdict = Verdict(None, [], unjudged)
    if not unjudged:
        ndcg = {name: measures["ndcg@10"] for name, measures in values.items()}
        verdict = decide(ndcg, situation, settings.seed)
    return {
        "texts": count,
        "queries": queries,
        "judged": judged is not None,
        "repeated": len(of_query) - queries,
        "incomplete": incomplete,
        "absent": absent,
        "dims": {"old": vectors.old.shape[1], "new": vectors.new.shape[1]},
        "zeros": vectors.zeros,
        "settings": {**asdict(settings), **asdict(situation)},
        "unjudged": unjudged,
        "ways": report,
        "rates": known,
        "verdict": verdict.way,
        "accepted": verdict.accepted,
        "reasons": verdict.reasons,
    }


def _shown(
    way: Way, name: str, values: Mapping[str, Mapping[str, Tensor]], seed: int
) -> dict[str, Any]:
    """Return a way's costs, its values with intervals, and their differences to other ways."""
    shown = {key: getattr(way, key) for key in ("encoded", "bytes_a_text", "milliseconds")}
    shown |= {key: asdict(bootstrap(value, seed)) for key, value in values[name].items()}
    for other in ("stay", "reindex") if "ndcg@10" in values[name] else ():
        pair = values[name]["ndcg@10"], values[other]["ndcg@10"]
        shown[f"beside_{other}"] = asdict(paired_bootstrap(*pair, seed))
    return shown | way.facts


def _values(
    way: Way, reindex: Way, judged: JudgedQueries | None, of_query: Tensor
) -> dict[str, Tensor]:
    """Return the agreement and the judged metrics of each distinct query, means over repeats."""
    tops = (each.ranked[:, :AGREEMENT_DEPTH] for each in (way, reindex))
    shared = [torch.isin(a, b).double().mean() for a, b in zip(*tops, strict=True)]
    values = {f"agreement@{AGREEMENT_DEPTH}": torch.stack(shared)}
    values |= {} if judged is None else judged_metrics(way.ranked, judged)
    counts = torch.bincount(of_query).double()
    sums = {k: torch.zeros_like(counts).index_add_(0, of_query, v) for k, v in values.items()}
    return {name: total / counts for name, total in sums.items()}
