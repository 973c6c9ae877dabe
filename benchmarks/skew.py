"""Loss of an index with 50 % of rows one version old and 20 % two, compared with a full refresh.

Beauty (two towers) grows over time, MovieLens and Gowalla grow in a random order: few users of
MovieLens come back, and Gowalla has no times. `evergram.skew` reads stale rows through the chain
and raw. A consumer, fitted on version 0, predicts which candidates are rated or met above the
median. SciFact's texts are encoded by one encoder after another and aligned as files; they are
ranked for each other, and for claims by the abstracts that these cite.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import reproduction.loaders  # noqa: F401 - data.kind = "amazon"
import torch
from safetensors.torch import save_file

import evergram
from benchmarks import gowalla, migrations
from benchmarks.defaults import STUDENT, one_thread
from evergram.data.corpus import Vocabulary
from evergram.evaluation.judged import Judgements, read_judgements
from evergram.evaluation.ranking import Relevance
from evergram.lineage.consumers import ConsumerRegistry, Probe
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import align
from evergram.releasing.demo import rated_above_median
from evergram.releasing.past_file import import_embeddings
from evergram.releasing.probes import measured_probe
from evergram.releasing.skew import SkewReading, SkewReport, _index, _reading
from evergram.training.build import load_corpus, split_for
from evergram.training.recipe import Recipe
from evergram.vector_files.open_embeddings import open_embeddings, write_vectors

SEEDS = 3
STALE, READ = {1: 0.5, 2: 0.2}, ("chain", "worst first", "raw", "calibrated")
TEXTS, DIM = 2000, 32
NAMED = f"SciFact {TEXTS}, cited first"
KEYS = ("loss", "above", "calibration")
SLICES = [0.7, 0.8, 0.9]
TRAINING = {"epochs": 8, "patience": 0}
# Makes the recipe of a seed; its files go to a folder.
MakeRecipe = Callable[[int, Path], dict[str, Any]]
# One report per seed, and the metric if all candidates are ranked by popularity.
Measured = list[tuple[SkewReport, float | None]]


def recipe_of(data: dict[str, Any], slices: Sequence[float], **model: Any) -> dict[str, Any]:
    return {
        "data": data,
        "split": {"kind": "time", "versions": list(slices)},
        "model": {"dim": DIM} | model,
        "training": TRAINING,
        "upgrade": {"alone": False},
        "metrics": ["recall@20", "ndcg@20"],
    }


def _movielens(seed: int, folder: Path) -> dict[str, Any]:
    data = {"kind": "movielens", "path": str(gowalla.DATA / "movielens-25m-head")}
    pairs = load_corpus(Recipe.of({"data": data})).interactions
    return recipe_of(_in_random_order(pairs, seed, folder), SLICES)


def _gowalla(seed: int, folder: Path) -> dict[str, Any]:
    pairs = pq.read_table(gowalla.convert(folder) / "train.parquet")
    return recipe_of(_in_random_order(pairs, seed, folder), [0.6, *SLICES])


def _in_random_order(pairs: pa.Table, seed: int, folder: Path) -> dict[str, Any]:
    """Write pairs with random times; return the table of a recipe that reads them."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    columns = [name for name in ("query", "candidate", "value") if name in pairs.column_names]
    timed = pairs.select(columns).append_column("time", pa.array(order))
    pq.write_table(timed, folder / "pairs.parquet")
    return {"kind": "table", "path": str(folder / "pairs.parquet")}


def _beauty(seed: int, folder: Path) -> dict[str, Any]:
    data = {"kind": "amazon", "path": str(gowalla.DATA / "amazon-beauty")}
    return recipe_of(data, SLICES, kind="two_tower", hidden=[DIM])


MADE = {"MovieLens": _movielens, "Gowalla, four slices": _gowalla, "Beauty, two towers": _beauty}


def measure() -> dict[str, Measured]:
    with one_thread():
        reports = {name: _reports(of, SEEDS) for name, of in MADE.items()}
        of_texts = zip(("neighbours", "cited abstracts"), _texts(), strict=True)
        names = " → ".join(migrations.installed())
        return reports | {f"SciFact, {names}, {what}": found for what, found in of_texts}


def tiny() -> dict[str, Measured]:
    def made_up(seed: int, folder: Path) -> dict[str, Any]:
        data = {"kind": "synthetic", "queries": 120, "candidates": 80, "interactions": 3000}
        return {**recipe_of(data, SLICES, dim=8), "training": {"epochs": 2, "patience": 0}}

    return {"made up": _reports(made_up, 2)}


def _reports(recipe: MakeRecipe, seeds: int) -> Measured:
    reports = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as name:
            made = Recipe.of({**recipe(seed, Path(name)), "seed": seed})
            report = evergram.skew(lineage := grown(made, Path(name)), [STALE], seed=seed)
            popularity = lineage.metrics(report.version)["metrics"]["popularity"][report.metric]
            reports.append((report, popularity))
    return reports


def grown(recipe: Recipe, folder: Path) -> Lineage:
    """Return a lineage of all slices of a recipe, with a consumer of version 0."""
    lineage, corpus = Lineage.create(folder / "lineage", "skew"), load_corpus(recipe)
    lineage.publish(evergram.train(recipe, corpus, progress=False))
    known = split_for(recipe, corpus, 0).training
    if known.has_values:
        ids, label = rated_above_median(known)
    else:
        ids, counts = known.candidates.vocabulary.keys, known.counts("candidate")
        label = counts > counts.median()
    _add_consumer(lineage, "candidate", (ids, label), folder)
    for _ in recipe.model_dump()["split"]["versions"][1:]:
        artefact = evergram.upgrade(recipe, lineage, corpus, progress=False, readings=False)
        evergram.publish(lineage, artefact)
    return lineage


def _add_consumer(
    lineage: Lineage, side: str, labels: tuple[pa.Array, torch.Tensor], folder: Path
) -> None:
    """Fit a linear model to half of the labelled objects, and measure it on the others."""
    from sklearn.linear_model import LogisticRegression

    keys, stored = lineage.view(0).embeddings(side)
    rows = Vocabulary(keys).rows(labels[0])
    ids, label = labels[0].filter(pa.array((rows >= 0).numpy())), labels[1][rows >= 0].numpy()
    vectors = stored[rows[rows >= 0]].double().numpy()
    learn = np.random.default_rng(0).random(len(label)) < 0.5
    spread = vectors.std(axis=0) + 1e-9
    fitted = LogisticRegression(max_iter=1000).fit(vectors[learn] / spread, label[learn])
    save_file({"weight": torch.from_numpy(fitted.coef_ / spread).float()}, folder / "m.safetensors")
    every = pa.table({"id": ids, "label": label.tolist()})
    pq.write_table(every.filter(pa.array(~learn)), folder / "d.parquet")
    model, data = str(folder / "m.safetensors"), str(folder / "d.parquet")
    probe = Probe(model=model, data=data, side=side, metric="auc")
    probe = measured_probe(lineage, "v0", probe)
    ConsumerRegistry.open(lineage.path).add("consumer", "v0", lineage.resolve, probe=probe)


def _texts() -> tuple[Measured, Measured]:
    """Return two reports on texts, whose versions are the encoders in the order of their size: by
    neighbours, and by claims with the abstracts that they cite."""
    texts, queries = (
        {one["_id"]: f"{one.get('title', '')} {one['text']}" for one in map(json.loads, lines)}
        for lines in map(_lines, ("corpus", "queries"))
    )
    judgements = read_judgements(gowalla.DATA / "scifact")
    cited = {text for grades in judgements.values() for text in grades}
    order = sorted(texts, key=lambda name: name not in cited)
    chosen = {name: texts[name] for name in order[:TEXTS]}
    claims, encoders = {name: queries[name] for name in judgements}, migrations.installed()
    with tempfile.TemporaryDirectory() as name:
        folder, ids = Path(name), pa.array(list(chosen))
        lineage = Lineage.create(folder / "lineage", "texts")
        for version, encoder in enumerate(encoders):
            vectors = migrations.kept_vectors(NAMED, encoder, "texts", chosen)
            write_vectors(path := folder / f"{version}.parquet", [(ids, vectors)])
            if version:
                align(version - 1, open_embeddings(path), lineage)
            else:
                import_embeddings(open_embeddings(path), lineage)
            lineage.label(f"kept-{version}", version)
        lengths = pc.utf8_length(pa.array(list(chosen.values()))).to_numpy()
        label = torch.from_numpy(lengths > np.median(lengths))
        _add_consumer(lineage, "object", (ids, label), folder)
        mixture = STALE if len(encoders) > 2 else {1: 0.7}
        report = evergram.skew(lineage, [mixture])
        asked = migrations.kept_vectors(NAMED, encoders[-1], "queries", claims)
        return [(report, None)], [(_judged(lineage, report, asked, judgements), None)]


def _lines(name: str) -> list[bytes]:
    return gzip.decompress(
        (gowalla.DATA / "scifact" / f"{name}.jsonl.gz").read_bytes()
    ).splitlines()


def _judged(
    lineage: Lineage, report: SkewReport, claims: torch.Tensor, judgements: Judgements
) -> SkewReport:
    """Return a report in which judged claims [Q, D] rank all texts."""
    mixture, past = report.readings[0].stale, lineage.readable[-2::-1]
    index = _index(lineage, past, (None, None, 0, 0), [])
    ids, rows = index.sides["object"]
    pairs = [(q, text) for q, grades in enumerate(judgements.values()) for text in grades]
    targets = Vocabulary(ids).rows(pa.array([text for _, text in pairs]))
    none = torch.empty(0, dtype=torch.int64)
    relevance = Relevance.of(torch.tensor([q for q, _ in pairs]), targets, none, none)
    # The claims are a sample of all that could be asked.
    asked: dict[str, Any] = {"queries": claims, "relevance": relevance, "population": 10**9}
    index = replace(index, rows=rows, metric="ndcg@10", **asked)
    readings = tuple(_reading(index, mixture, way) for way in READ)
    report = replace(report, metric=index.metric, readings=readings, rows=len(ids))
    return replace(report, queries=len(relevance), fresh=float(index.fresh.mean()))


def table(reports: dict[str, Measured]) -> str:
    lines = [
        "| corpus | metric | by popularity | all rows new | rows are read | lost, % | "
        "in one lineage | pairs above a threshold | calibration error | consumer's AUC, % lost |",
        "|---" * 10 + "|",
    ]
    for name, measured in reports.items():
        found = [report for report, _ in measured]
        quality = [_interval([p for _, p in measured]), _interval([r.fresh for r in found])]
        for read in READ:
            rows = [_of(report, read) for report in found]
            half = [(r.high - r.low) / 2 for r in rows if r.high is not None and r.low is not None]
            cells = [_interval([getattr(row, key) for row in rows]) for key in KEYS]
            cells.insert(1, f"± {mean(half):.2f}" if half else "–")
            cells.append(_interval([_auc_lost(report, read) for report in found]))
            lines.append(f"| {' | '.join([name, found[0].metric, *quality, read, *cells])} |")
    return "\n".join(lines)


def _of(report: SkewReport, read: str) -> SkewReading:
    return next(reading for reading in report.readings if reading.read == read)


def _auc_lost(report: SkewReport, read: str) -> float | None:
    was, now = (r.probes.get("consumer") for r in (report, _of(report, read)))
    return None if was is None or now is None else 100 * (1 - now / was)


def _interval(values: Sequence[float | None]) -> str:
    """Return the mean over seeds with its 95 % interval; values are paired by seed."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "–"
    half = STUDENT[len(known)] * stdev(known) / len(known) ** 0.5 if len(known) > 1 else 0.0
    return f"{mean(known):.2f}" + (f" ± {half:.2f}" if half else "")
