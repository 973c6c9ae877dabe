"""Can the ways of `vectors plan-migration` be told apart without judgements?

A cell is a corpus and an ordered pair of encoders, those of `migrations`. For each way, a line is
fitted to its nDCG@10 less reindexing's, of what needs no judgements: the same difference in search
for a text by ten of its own words ("known items"), and the way's agreement with reindexing's first
ten hits. Each corpus is predicted from all others. Intervals of 90 % are conformal: the errors of
the corpora that were fitted to, each predicted from the rest of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import judged_corpora, migrations
from benchmarks.judged_corpora import Texts
from benchmarks.verdicts import CHOICES
from evergram.evaluation.judged import JudgedQueries, Judgements, judged_metrics
from evergram.migration.ways import MigrationVectors, WaySettings, measure_ways

KNOWN_ITEMS, WORDS = 300, 10
COVERAGE = 0.9
# The bars for a prediction that may be shown to people: covered intervals, and regret in nDCG@10.
LEAST_COVERED, MOST_REGRET = 0.85, 0.01
OTHERS = tuple(way for way in CHOICES if way != "reindex")
# By name: which of the two quantities are looked at. "As it is" fits nothing.
PREDICTORS = {
    "agreement@10": ("agreement",),
    "known items": ("known",),
    "known items and agreement@10": ("known", "agreement"),
    "known items, as it is": None,
}


@dataclass(frozen=True)
class Cell:
    """A migration by people's judgements, and what is known without them; by way.

    Args:
        ndcg: nDCG@10 by judgements.
        known: nDCG@10 of finding a text by ten of its words.
        agreement: agreement@10 with reindexing, of people's queries.
    """

    corpus: str
    pair: str
    ndcg: Mapping[str, float]
    known: Mapping[str, float]
    agreement: Mapping[str, float]

    def gain(self, way: str) -> float:
        """Return what a way has more than reindexing, by judgements."""
        return self.ndcg[way] - self.ndcg["reindex"]

    def seen(self, way: str, names: Sequence[str]) -> list[float]:
        """Return 1 and what a predictor looks at."""
        known = self.known[way] - self.known["reindex"]
        values = {"known": known, "agreement": self.agreement[way]}
        return [1.0, *(values[name] for name in names)]


@dataclass(frozen=True)
class Predicted:
    """A cell's ways less reindexing as predicted, with half the width of each 90 % interval."""

    cell: Cell
    gains: Mapping[str, float]
    widths: Mapping[str, float]

    @property
    def regret(self) -> float:
        """What the way of the largest prediction lacks to the best way, in nDCG@10."""
        chosen = max(CHOICES, key=lambda way: self.gains.get(way, 0.0))
        return max(self.cell.ndcg[way] for way in CHOICES) - self.cell.ndcg[chosen]

    def covers(self, way: str) -> bool:
        return abs(self.gains[way] - self.cell.gain(way)) <= self.widths[way]


def measure() -> list[Cell]:
    cells = []
    encoders = migrations.installed()
    for corpus, read in judged_corpora.available().items():
        texts, queries, judgements = read()
        words, answers = known_items(texts)
        vectors = {e: migrations.vectors_of(corpus, e, texts, queries) for e in encoders}
        of_words = {e: migrations.kept_vectors(corpus, e, "known", words) for e in encoders}
        for old, new in permutations(encoders, 2):
            sides = vectors[old][0], vectors[new][0]
            by_people = vectors[old][1], vectors[new][1]
            by_words = of_words[old], of_words[new]
            asked = (
                MigrationVectors(list(texts), list(queries), *sides, *by_people),
                MigrationVectors(list(texts), list(words), *sides, *by_words),
            )
            cells.append(cell_of(corpus, f"{old} → {new}", asked, (judgements, answers)))
    return cells


def cell_of(
    corpus: str,
    pair: str,
    asked: tuple[MigrationVectors, MigrationVectors],
    judgements: tuple[Judgements, Judgements],
) -> Cell:
    """Return a cell.

    Args:
        asked: people's queries, and words of texts; with judgements of each.
    """
    ranked, by_people = _ndcg(asked[0], judgements[0])
    _, by_words = _ndcg(asked[1], judgements[1])
    first = {way: ranked[way][:, :10] for way in CHOICES}
    newest = first["reindex"]
    shared = {
        way: float((rows[:, :, None] == newest[:, None, :]).any(2).double().mean())
        for way, rows in first.items()
    }
    return Cell(corpus, pair, by_people, by_words, shared)


def _ndcg(
    vectors: MigrationVectors, judgements: Judgements
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the ways' hits [Q, k] of judged queries, and their mean nDCG@10."""
    judged = JudgedQueries.of(judgements, vectors.queries, vectors.texts)
    asked = MigrationVectors(
        *(vectors.texts, [vectors.queries[row] for row in judged.rows.tolist()]),
        *(vectors.old, vectors.new),
        *(vectors.old_queries[judged.rows], vectors.new_queries[judged.rows]),
    )
    ways = measure_ways(asked, WaySettings())
    means = {
        way: float(judged_metrics(ways[way].ranked, judged)["ndcg@10"].double().mean())
        for way in CHOICES
    }
    return {way: ways[way].ranked for way in CHOICES}, means


def known_items(texts: Texts) -> tuple[Texts, Judgements]:
    """Return `WORDS` words in a row of each of `KNOWN_ITEMS` texts, and the text of each."""
    draw = np.random.default_rng(0)
    long = [name for name, text in texts.items() if len(text.split()) >= 2 * WORDS]
    words, answers = {}, {}
    for name in [long[place] for place in draw.permutation(len(long))[:KNOWN_ITEMS]]:
        split = texts[name].split()
        start = int(draw.integers(0, len(split) - WORDS + 1))
        words[f"k{name}"] = " ".join(split[start : start + WORDS])
        answers[f"k{name}"] = {name: 1}
    return words, answers


def tiny() -> list[Cell]:
    pair, judgements = migrations.made_up()
    asked, judged = (pair, pair), (judgements, judgements)
    return [cell_of(name, "a → b", asked, judged) for name in ("x", "y", "z")]


def predicted(cells: Sequence[Cell], names: Sequence[str] | None) -> list[Predicted]:
    """Return every cell's prediction from the cells of all other corpora.

    Args:
        names: of the quantities that are fitted to; None takes the known items' difference itself.
    """
    results = []
    for corpus in dict.fromkeys(cell.corpus for cell in cells):
        others = [cell for cell in cells if cell.corpus != corpus]
        lines = {way: _line(others, way, names) for way in OTHERS}
        widths = {way: _half_width(others, way, names) for way in OTHERS}
        for cell in cells:
            if cell.corpus == corpus:
                gains = {way: _along(lines[way], cell, way, names) for way in OTHERS}
                results.append(Predicted(cell, gains, widths))
    return results


def _line(cells: Sequence[Cell], way: str, names: Sequence[str] | None) -> NDArray[np.float64]:
    if names is None:
        return np.array([0.0, 1.0])
    seen = np.array([cell.seen(way, names) for cell in cells])
    gains = np.array([cell.gain(way) for cell in cells])
    return np.asarray(np.linalg.lstsq(seen, gains, rcond=None)[0], dtype=np.float64)


def _along(line: NDArray[np.float64], cell: Cell, way: str, names: Sequence[str] | None) -> float:
    return float(np.dot(cell.seen(way, ("known",) if names is None else names), line))


def _half_width(cells: Sequence[Cell], way: str, names: Sequence[str] | None) -> float:
    """Return the conformal quantile of errors; infinite where cells are too few for one."""
    errors = []
    for corpus in dict.fromkeys(cell.corpus for cell in cells):
        line = _line([c for c in cells if c.corpus != corpus] or cells, way, names)
        own = [c for c in cells if c.corpus == corpus]
        errors += [abs(_along(line, c, way, names) - c.gain(way)) for c in own]
    place = int(np.ceil(COVERAGE * (len(errors) + 1)))
    return float("inf") if place > len(errors) else sorted(errors)[place - 1]


def rank_correlation(results: Sequence[Predicted], way: str = "stay") -> float:
    """Return Spearman's correlation of predicted and real gains of a way."""
    made, real = [r.gains[way] for r in results], [r.cell.gain(way) for r in results]
    ranks = [np.unique(values, return_inverse=True)[1] for values in (made, real)]
    if any(len(np.unique(rank)) < 2 for rank in ranks):
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def table(cells: Sequence[Cell]) -> str:
    """Return each predictor's coverage, regret, rank correlation, and whether it may be shown."""
    lines = [
        f"{len(cells)} cells of {len({c.corpus for c in cells})} corpora.",
        "",
        "| looked at | intervals that cover: staying, every way | mean half width: staying "
        "| mean regret | rank correlation: staying | passes both bars |",
        "|---" * 6 + "|",
    ]
    for name, quantities in PREDICTORS.items():
        made = predicted(cells, quantities)
        covered = sum(r.covers("stay") for r in made)
        every = sum(r.covers(way) for r in made for way in OTHERS)
        regret = sum(r.regret for r in made) / len(made)
        # An interval without an end covers everything and says nothing.
        finite = all(np.isfinite(width) for r in made for width in r.widths.values())
        passes = finite and covered >= LEAST_COVERED * len(made) and regret <= MOST_REGRET
        cells_of_row = [
            name,
            f"{covered} of {len(made)}, {every} of {len(made) * len(OTHERS)}",
            f"{sum(r.widths['stay'] for r in made) / len(made):.3f}",
            f"{regret:.3f}",
            f"{rank_correlation(made):z.2f}",
            "yes" if passes else "no",
        ]
        lines.append(f"| {' | '.join(cells_of_row)} |")
    for name, way in (("always reindex", "reindex"), ("never", "stay")):
        lost = [max(c.ndcg[w] for w in CHOICES) - c.ndcg[way] for c in cells]
        lines.append(f"| {name} | – | – | {sum(lost) / len(lost):.3f} | – | – |")
    lines += ["", "| corpus | encoder | nDCG@10 by judgements | known items |", "|---" * 4 + "|"]
    shown = set()
    for cell in cells:
        encoder = cell.pair.split(" → ")[0]
        if (cell.corpus, encoder) not in shown:
            shown.add((cell.corpus, encoder))
            figures = f"{cell.ndcg['stay']:.3f} | {cell.known['stay']:.3f}"
            lines.append(f"| {cell.corpus} | {encoder} | {figures} |")
    return "\n".join(lines)
