"""The page of `--report`: one HTML file on a version, which loads nothing from elsewhere.

Everything that needs the model is measured and drawn before the version is published; the page is
written after that, with the probes' readings and the warnings of publishing.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.atomic_files import replace_file
from evergram.data.corpus import Corpus, Side, Vocabulary
from evergram.data.split import Split
from evergram.encoders.features import SIDES
from evergram.errors import DataError, EvergramError
from evergram.evaluation.breakdown import (
    Stratum,
    metric_of_ranks,
    nearest_neighbours,
    owners,
    recall_by_pairs,
    recall_by_popularity,
)
from evergram.evaluation.gramian_error import score_histograms
from evergram.evaluation.html_page import (
    NONE,
    Axes,
    Line,
    chart,
    figures,
    histogram_figure,
    not_measured,
    page,
    paragraph,
    section,
    table,
    warning_list,
)
from evergram.evaluation.metric_sample import QueryDraw
from evergram.evaluation.ranking import (
    Relevance,
    parse_metric,
    target_ranks,
    test_relevance,
)
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.past_versions import (
    known_relevance,
    known_vectors,
    past_model,
    split_of_known,
    stored_in,
)
from evergram.training.corpora import final_split, split_for, with_selecting_metric
from evergram.training.diagnose import effective_rank, spectrum
from evergram.training.factors import build_measures
from evergram.training.recipe import Recipe

# Candidates of each kind whose neighbours are shown, and neighbours of each.
SHOWN, NEAREST = 10, 5
WORST = 20
# Features that name a candidate, the first of a corpus that has one.
NAMES = ("name", "title")
# Of a past version: the metric of the new version itself, and recall by popularity of candidates;
# or why they were not measured.
Kept = tuple[float, Sequence[Stratum]] | str
_NO_MODEL = "Its model was not given, and is not stored."
_ENDED = {
    "patience": "the metric no longer improved (training.patience)",
    "epochs": "all epochs ran (training.epochs)",
    "budget": "its time was over (training.budget)",
    "minutes": "its time was over (--minutes)",
}
_DATA = {
    "interactions": "rows of training",
    "queries": "queries",
    "candidates": "candidates",
    "repeats": "rows that repeat an earlier pair",
    "test_pairs": "test pairs",
    "test_queries": "test queries",
    "unknown_test_candidates": "test pairs of candidates outside the catalogue (certain misses)",
    "unknown_queries": "held-out pairs left out: training knows nothing of their query",
    "trained_before": "held-out pairs left out: an earlier version was trained on them",
    "in_training": "held-out pairs left out: the training data has them, too",
}
_MODELS = {
    "model": "this version",
    "alone": "the same model, trained without alignment",
    "popularity": "popularity",
}


def refuse_unwritable(path: Path | None) -> None:
    """Refuse a path at which no report could be written; None is never refused. Raises:
    DataError."""
    if path is None:
        return
    if path.suffix != ".html" or path.is_dir():
        raise DataError(f"--report {path} must be a file that ends in .html.")
    folder = path.absolute().parent
    try:
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(
            f"--report {path} cannot be written: {folder}: {error.strerror or error}; give a file "
            "in a folder that you may write to."
        ) from None


@dataclass(frozen=True)
class VersionReport:
    """The report of a version, measured before it is published: by past version what is kept, and
    the sections on the model itself, HTML."""

    lineage: str
    version: int
    metric: str
    kept: Mapping[str, Kept] = field(default_factory=dict)
    drawn: Sequence[str] = ()

    @classmethod
    def of(
        cls, recipe: Recipe, lineage: Lineage, corpus: Corpus, version: int, artefact: Artefact
    ) -> VersionReport:
        """Measure a version that is not published yet, on all of its data; nothing is trained."""
        history = lineage.pair_history if lineage.versions else None
        split = split_for(recipe, corpus, version, history)
        recipe, _ = with_selecting_metric(recipe, split)
        split = final_split(split, refits=recipe.refits)
        if "unknown_to_model" in artefact.metrics.get("data", {}):
            ids = {side: artefact.block(side)[0] for side in SIDES}
            split = split_of_known(split, stored_in(ids, split.training))
        facts = recipe.name, artefact.metrics["version"], recipe.training.metric
        try:
            model = MeasuredModel.of(recipe, split, artefact)
        except EvergramError as error:
            return cls(*facts, drawn=[not_measured("The model", str(error))])
        return cls(*facts, kept_of_past(lineage, artefact, model), model.sections())

    def write(self, path: Path, metrics: Mapping[str, Any], warnings: Sequence[str] = ()) -> None:
        """Write the page, with the metrics and the warnings of publishing.

        Raises: DataError: the version is published, and its report cannot be written.
        """
        body = [
            section("Warnings", _warnings(self.metric, metrics, warnings)),
            section("What it was trained on", _data(metrics)),
            section("How training went", training_figures(metrics, self.metric)),
            section("Metrics on the test pairs", *_metrics(metrics)),
            *kept_sections(self.metric, self.kept, metrics),
            *self.drawn,
        ]
        try:
            replace_file(path, page(f"Version {self.version} of {self.lineage}", body).encode())
        except OSError as error:
            raise DataError(
                f"Version {self.version} is published, and its report could not be written: "
                f"{path}: {error.strerror or error}. Its numbers are in the version's metrics."
            ) from error


@dataclass(frozen=True)
class MeasuredModel:
    """A version's embeddings [N, D] of each side and its test, in the rows of its split's training
    corpus; `ranks`, int64 [T], are of the targets of `relevance`."""

    recipe: Recipe
    split: Split
    vectors: Mapping[str, Tensor]
    relevance: Relevance
    ranks: Tensor

    @classmethod
    def of(cls, recipe: Recipe, split: Split, artefact: Artefact) -> MeasuredModel:
        """Rank the test pairs of the queries that the artefact's metrics are of.

        Raises: DataError: the artefact lacks the embedding of an entity that it was trained on.
        """
        vectors, training = {}, split.training
        for side, entities in zip(SIDES, (training.queries, training.candidates), strict=True):
            ids, stored = artefact.block(side)
            rows = Vocabulary(ids).rows(entities.vocabulary.keys)
            if bool((rows < 0).any()):
                raise DataError(
                    f"The artefact has no embedding of some of the {side} entities that it was "
                    "trained on, so it is of other data than the report would be of."
                )
            vectors[side] = stored[rows]
        sampled = artefact.metrics.get("sampled", {}).get("queries")
        relevance = QueryDraw(sampled, recipe.seed).of(test_relevance(split))
        ranks = target_ranks(vectors["query"], vectors["candidate"], relevance)
        return cls(recipe, split, vectors, relevance, ranks)

    def sections(self) -> list[str]:
        """Return the sections on this model alone, HTML."""
        k = parse_metric(self.recipe.training.metric)[1]
        shares = paragraph(
            "Of the test pairs of each part of the catalogue, the share that is within the first "
            f"{k} of its query's list."
        )
        parts: dict[str, Callable[[], str]] = {
            "Scores": self._scores,
            "Spectrum": self._spectra,
            f"Recall@{k} by popularity of candidates": lambda: shares + self._by_popularity(k),
            f"Recall@{k} by training pairs of a query": lambda: self._by_pairs(k),
            "Nearest neighbours": self._neighbours,
            "Worst queries": self._worst,
        }
        return [section(title, attempt(title, draw)) for title, draw in parts.items()]

    def _refuse_untested(self) -> None:
        if not len(self.relevance):
            raise DataError(self.split.untested or "There are no test pairs.")

    def _by_popularity(self, k: int) -> str:
        self._refuse_untested()
        counts = self.split.training.counts("candidate")
        strata = recall_by_popularity({"model": self.ranks}, self.relevance.targets, counts, k)
        return strata_table(strata, k, "pairs")

    def _by_pairs(self, k: int) -> str:
        self._refuse_untested()
        counts, metric = self.split.training.counts("query"), self.recipe.training.metric
        strata = recall_by_pairs(self.ranks, self.relevance, counts, metric)
        return strata_table(strata, k, "queries")

    def _scores(self) -> str:
        training = self.split.training
        pairs = training.column("query"), training.column("candidate")
        vectors = self.vectors["query"].float(), self.vectors["candidate"].float()
        return histogram_figure(score_histograms(*vectors, pairs, seed=self.recipe.seed))

    def _spectra(self) -> str:
        """Return the shares of the eigenvalues of both sides, and their effective ranks."""
        rows, lines, ranks = [], [], []
        training = self.split.training
        for side, entities in zip(SIDES, (training.queries, training.candidates), strict=True):
            chosen, counts = self.recipe.task.measures_of(side), training.counts(side)
            weights = build_measures(chosen, counts, entities.vocabulary)[:, 0]
            parts = spectrum(self.vectors[side], weights)
            shares, rank = parts.flip(0).tolist(), effective_rank(parts)
            size = len(self.vectors[side])
            rows.append([side, f"{size:,}", str(len(shares)), f"{rank:.2f}", f"{shares[0]:.1%}"])
            lines.append(Line(side, list(enumerate(shares, 1))))
            ranks.append(f"{rank:.2f} of {len(shares)} ({side})")
        header = ["side", "embeddings", "dims", "effective rank", "largest share"]
        axes = Axes(
            "Share of each eigenvalue",
            f"Shares of eigenvalues, largest first; effective rank {', '.join(ranks)}",
            "eigenvalue, the largest first",
            logarithmic=True,
        )
        note = paragraph(
            "Of the second moment of each side under its measure. The effective rank is the number "
            "of equal eigenvalues with the same entropy.",
            "dim",
        )
        return table("Spectrum", header, rows) + note + figures(chart(axes, lines))

    def _neighbours(self) -> str:
        counts = self.split.training.counts("candidate")
        size = len(counts)
        if size < 2:
            raise DataError("There is one candidate alone.")
        popular = torch.argsort(counts, stable=True, descending=True)[:SHOWN]
        draw = torch.Generator().manual_seed(self.recipe.seed)
        others = torch.randperm(size, generator=draw)
        others = others[~torch.isin(others, popular)][:SHOWN]
        tables = []
        for chosen, caption in (
            (popular, "The most popular candidates"),
            (others, "Drawn at random"),
        ):
            if not len(chosen):
                continue
            cosines, near = nearest_neighbours(self.vectors["candidate"].float(), chosen, NEAREST)
            candidates = self.split.training.candidates
            names = iter(names_of(candidates, torch.cat([chosen, near.flatten()])))
            own = [next(names) for _ in chosen]
            rows = [
                [name, f"{pairs:,}", "; ".join(f"{next(names)} ({c:.2f})" for c in row)]
                for name, pairs, row in zip(
                    own, counts[chosen].tolist(), cosines.tolist(), strict=True
                )
            ]
            header = ["candidate", "pairs", "nearest others, by cosine"]
            tables.append(table(caption, header, rows, words=[2]))
        return "\n".join(tables)

    def _worst(self) -> str:
        self._refuse_untested()
        counts, inside = self.split.training.counts("query"), self.ranks > 0
        # One that is in no ranking is shown behind all.
        last_place = len(self.vectors["candidate"]) + 1
        owner, ranks = owners(self.relevance)[inside], self.ranks[inside].clamp(max=last_place)
        if not len(ranks):
            raise DataError("No test pair is of a candidate that training knows.")
        size = len(self.relevance)
        best = torch.zeros(size, dtype=torch.int64).scatter_reduce_(
            0, owner, ranks, "amin", include_self=False
        )
        last = torch.zeros(size, dtype=torch.int64).scatter_reduce_(0, owner, ranks, "amax")
        tested = torch.bincount(owner, minlength=size)
        order = torch.argsort(best, stable=True, descending=True)
        order = order[tested[order] > 0][:WORST]
        rows = self.relevance.queries[order]
        ids = self.split.training.queries.vocabulary.keys.take(pa.array(rows.numpy()))
        columns = (counts[rows], tested[order], best[order], last[order])
        cells = [
            [str(id_), *(f"{n:,}" for n in numbers)]
            for id_, *numbers in zip(ids.to_pylist(), *(c.tolist() for c in columns), strict=True)
        ]
        header = ["query", "training pairs", "test pairs", "first rank", "last rank"]
        return paragraph(
            "Queries of whose test pairs even the first one in the list ranks far down; candidates "
            "outside the catalogue are left out."
        ) + table(f"The {len(cells)} worst queries", header, cells)


def attempt(what: str, draw: Callable[[], str]) -> str:
    """Return what is drawn, or the reason why it could not be measured."""
    try:
        return draw()
    except EvergramError as error:
        return not_measured(what, str(error))


def names_of(side: Side, rows: Tensor) -> list[str]:
    """Return the names of some entities: their first feature of `NAMES`, and where there is none,
    their ids."""
    ids = [str(key) for key in side.vocabulary.keys.take(pa.array(rows.numpy())).to_pylist()]
    feature = next((side.features[name] for name in NAMES if name in side.features), None)
    if feature is None:
        return ids
    names = []
    for id_, row in zip(ids, rows.tolist(), strict=True):
        start, end = feature.offsets[row : row + 2].tolist()
        keys = feature.vocabulary.keys.take(pa.array(feature.indices[start:end].numpy()))
        names.append(" ".join(map(str, keys.to_pylist())) or id_)
    return names


def kept_of_past(lineage: Lineage, artefact: Artefact, model: MeasuredModel) -> dict[str, Kept]:
    """Return what is kept of every past version, on the queries that its reading is of."""
    readings = artefact.metrics.get("compatibility", {})
    kept: dict[str, Kept] = {}
    for version in lineage.readable if artefact.transform is not None else ():
        reading = readings.get(str(version))
        try:
            if reading is None:
                raise DataError(_NO_MODEL)
            if not reading["queries"]:
                raise DataError("It knew none of the test queries.")
            kept[str(version)] = _kept(lineage, artefact, model, version, reading["queries"])
        except EvergramError as error:
            kept[str(version)] = str(error)
    return kept


def _kept(
    lineage: Lineage, artefact: Artefact, model: MeasuredModel, version: int, queries: int
) -> Kept:
    """Raises: EvergramError: it cannot be measured."""
    past_encoder = past_model(lineage, version)
    if past_encoder is None:
        raise DataError(_NO_MODEL)
    assert artefact.transform is not None
    chain = lineage.chain.extended(artefact.transform)
    past, known = known_vectors(past_encoder, model.split.training)
    catalogue = known["candidate"]
    # The queries of the published reading: the same seed draws the same ones.
    relevance = QueryDraw(queries, model.recipe.seed).of(known_relevance(model.split, known))
    back = {s: chain.apply(v, chain.newest, version) for s, v in model.vectors.items()}
    ranks = {
        name: target_ranks(vectors["query"], vectors["candidate"][catalogue], relevance)
        for name, vectors in (("past", past), ("chain", back), ("new", model.vectors))
    }
    counts = model.split.training.counts("candidate")[catalogue]
    metric = model.recipe.training.metric
    strata = recall_by_popularity(ranks, relevance.targets, counts, parse_metric(metric)[1])
    return float(metric_of_ranks(metric, ranks["new"], relevance).mean()), strata


def number(value: float | None, error: float | None = None) -> str:
    """Return a measure's text, with ± its standard error if it has one."""
    if value is None or math.isnan(value):
        return NONE
    known = error is not None and math.isfinite(error)
    return f"{value:.4f} ± {error:.4f}" if known else f"{value:.4f}"


def share(value: float | None, of: float | None) -> str:
    """Return a value in percent of another one; "not measured" where that is not above 0."""
    if value is None or of is None or not of > 0:
        return NONE
    return f"{value / of:.1%}"


def training_figures(metrics: Mapping[str, Any], metric: str) -> str:
    """Return the curves of the objective and of the selection metric, and what ended training."""
    training = metrics.get("training", {})
    history = training.get("history")
    if not history:
        return not_measured("The curve", "This model was not trained here.")
    chosen = training["best_epoch"]
    charts = []
    for key, title in (("objective", "Objective"), (metric, f"{metric} on the selection pairs")):
        points = [(e["epoch"], e[key]) for e in history if e.get(key) is not None]
        ends = f"{points[0][1]:.4g} at first, {points[-1][1]:.4g} at last" if points else "no point"
        alt = f"{title} by epoch: {ends}; chosen epoch {chosen}"
        axes = Axes(title, alt, "epoch", (chosen, f"chosen: {chosen}"))
        charts.append(chart(axes, [Line(title, points)]))
    refit = training.get("refit")
    again = (
        f" Then it was trained once more, on all {refit['interactions']:,} rows that are not test, "
        f"for {refit['steps']:,} steps."
        if refit
        else ""
    )
    sentence = (
        f"Epoch {chosen} of {training['epochs']} was chosen; training ended because "
        f"{_ENDED.get(training['ended'], training['ended'])}, after {training['seconds']:.1f} "
        f"seconds without evaluation.{again}"
    )
    return paragraph(sentence) + figures(*charts)


def kept_sections(metric: str, kept: Mapping[str, Kept], metrics: Mapping[str, Any]) -> list[str]:
    """Return the sections of what is kept of past versions; none for version 0."""
    if not kept:
        return []
    return [
        section("What past versions keep", *_readings(metric, kept, metrics)),
        section(
            "What past versions keep by popularity of candidates",
            *_kept_by_popularity(parse_metric(metric)[1], kept),
        ),
        section("Certificate", *_certificate(kept, metrics)),
        section("Consumers", _probes(metrics)),
    ]


def _readings(metric: str, kept: Mapping[str, Kept], metrics: Mapping[str, Any]) -> list[str]:
    rows, why = [], []
    for version, one in kept.items():
        reading = metrics.get("compatibility", {}).get(version, {})
        ranking, errors = reading.get("ranking", {}), reading.get("sampled", {}).get("errors", {})
        own, chain = (ranking.get(name, {}).get(metric) for name in ("past", "chain"))
        drift = reading.get("drift", {}).get("held_out", {})
        new = None if isinstance(one, str) else one[0]
        if isinstance(one, str):
            why.append(not_measured(f"Version {version}", one))
        rows.append(
            [
                f"version {version}",
                f"{drift['relative']:.1%}" if drift.get("objects") else NONE,
                f"{reading['queries']:,}" if "queries" in reading else NONE,
                number(own, errors.get("past", {}).get(metric)),
                number(chain, errors.get("chain", {}).get(metric)),
                share(chain, own),
                number(new),
                share(chain, new),
            ]
        )
    header = ["read as", "error", "queries", "itself", "through the chain", "of itself"]
    header += ["this version", "of this version"]
    text = (
        f"{metric} on the test queries and the candidates that each past version knew: by "
        "that version itself, by this version through the chain of backward transforms, and by "
        "this version itself. The error is on objects that alignment never saw, over the length "
        "of their past vectors."
    )
    return [paragraph(text), table(f"{metric} kept", header, rows), *why]


def _kept_by_popularity(k: int, kept: Mapping[str, Kept]) -> list[str]:
    parts = []
    for version, one in kept.items():
        if isinstance(one, str):
            parts.append(not_measured(f"Version {version}", one))
            continue
        rows = []
        for stratum in one[1]:
            own, chain, new = (stratum.values[name] for name in ("past", "chain", "new"))
            cells = [number(own), number(chain), share(chain, own), number(new)]
            if not stratum.measured:
                cells = [f"{NONE} (no test pairs)", *([NONE] * 3)]
            elif not own:
                cells[2] = f"{NONE} (version {version} finds none)"
            rows.append([stratum.name, f"{stratum.members:,}", f"{stratum.measured:,}", *cells])
        header = ["candidates", "how many", "test pairs", "itself", "through the chain", "kept"]
        caption = f"Version {version}: recall@{k} of test pairs"
        parts.append(table(caption, [*header, "this version"], rows))
    return parts


def _certificate(kept: Mapping[str, Kept], metrics: Mapping[str, Any]) -> list[str]:
    certificates = metrics.get("certificate", {})
    names = ("estimate", "bound", "relative", "relative_bound")
    rows = [
        [f"version {version}", *(number(certificates.get(version, {}).get(n)) for n in names)]
        for version in kept
    ]
    header = ["read as", "estimate", "bound", "estimate, relative", "bound, relative"]
    text = (
        "Root mean square error of reading this version as a past one: at most the bound, on "
        "objects like those that the steps were measured on; the estimate, if errors of steps are "
        "uncorrelated; relative to the length of the past vectors."
    )
    parts = [paragraph(text), table("Certificate", header, rows)]
    missing = [version for version in kept if version not in certificates]
    if missing:
        why = (
            "A step on the way is not affine, or its error was measured on too few objects or not "
            "at all; `evergram lineage check` says which."
        )
        parts.append(not_measured(f"Certificate of version {', '.join(missing)}", why))
    return parts


def _probes(metrics: Mapping[str, Any]) -> str:
    probes = metrics.get("probes")
    if not probes:
        return not_measured("Consumers", "No consumer of this lineage has a probe.")
    rows = [
        [
            *(probe[name] for name in ("consumer", "pinned", "metric")),
            number((probe["baseline"] or {}).get("value")),
            number(probe["value"]),
            number(probe["limit"]),
            *(f"{probe[name]:,}" for name in ("objects", "missing")),
            probe.get("sentence") or "within its limit",
        ]
        for probe in probes
    ]
    header = ["consumer", "pinned", "metric", "when added", "now", "limit", "objects", "missing"]
    return table("Probes, before and after", [*header, "in words"], rows, words=[1, 2, 8])


def _warnings(metric: str, metrics: Mapping[str, Any], published: Sequence[str]) -> str:
    training = metrics.get("training", {})
    sentences = [*training.get("warnings", ()), *training.get("alone", {}).get("warnings", ())]
    rankings = metrics.get("metrics", {})
    own, popular = (rankings.get(m, {}).get(metric) for m in ("model", "popularity"))
    if own is not None and popular is not None and own <= popular:
        sentences.append(
            f"It ranks no better than popularity: {metric} {own:.4f}, and {popular:.4f} by "
            "the number of pairs alone."
        )
    sentences += published
    return warning_list(list(dict.fromkeys(sentences))) if sentences else paragraph("None.")


def _data(metrics: Mapping[str, Any]) -> str:
    data = metrics.get("data", {})
    rows = [[name, f"{data[key]:,}" if key in data else NONE] for key, name in _DATA.items()]
    return table("Data", ["", "number"], rows)


def _metrics(metrics: Mapping[str, Any]) -> list[str]:
    sampled = metrics.get("sampled")
    if "untested" in metrics:
        return [not_measured("Metrics", metrics["untested"])]
    rankings = metrics.get("metrics", {})
    names = list(rankings.get("model", {}))
    errors = {} if sampled is None else sampled.get("errors", {})
    rows = []
    for model, title in _MODELS.items():
        if model in rankings:
            of_model = errors.get(model, {})
            rows.append([title, *(number(rankings[model].get(n), of_model.get(n)) for n in names)])
        elif model == "alone" and "compatibility" in metrics:
            rows.append([title, *([NONE] * len(names))])
    sentence = (
        "All test queries were ranked."
        if sampled is None
        else f"Measured on {sampled['queries']:,} of {sampled['of']:,} test queries, drawn at "
        "random; ± is a standard error. So is what is measured by query and by stratum below."
    )
    notes = [paragraph(sentence, "dim")]
    if "compatibility" in metrics and "alone" not in rankings:
        notes.append(paragraph("No model was trained without alignment (upgrade.alone = false)."))
    return [table("Metrics", ["", *names], rows), *notes]


def strata_table(strata: Sequence[Stratum], k: int, unit: str) -> str:
    """Return the recall of each stratum of "pairs" or "queries" (`unit`)."""
    first = "candidates" if unit == "pairs" else "training pairs of a query"
    members = "candidates" if unit == "pairs" else "queries"
    rows = []
    for stratum in strata:
        value = stratum.values["model"]
        shown = f"{NONE} (no test {unit})" if value is None else number(value)
        rows.append([stratum.name, f"{stratum.members:,}", f"{stratum.measured:,}", shown])
    header = [first, f"how many {members}", f"test {unit}", f"recall@{k}"]
    return table(f"Recall@{k} by {first}", header, rows)
