"""Rankings of texts, measured with human judgements of which texts answer which query.

Judgements come from BEIR or TREC files. nDCG@10 and Recall@100 are computed per query; means over
queries have bootstrap intervals, and a lower bound on which verdicts are based.

Source: Thakur et al., *BEIR: A heterogeneous benchmark for zero-shot evaluation of information
retrieval models*, NeurIPS 2021 (Datasets and Benchmarks).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError
from evergram.ids import refuse_other_form

# Grades by query and text; a text with a grade above 0 is relevant.
Judgements = dict[str, dict[str, int]]


def read_judgements(path: Path) -> Judgements:
    """Read a file of judgements: BEIR's three tab-separated columns (query, text, grade) with a
    header, or TREC's four columns (query, 0, text, grade) without one. For a folder, read its
    `test.tsv` or `qrels/test.tsv`."""
    if path.is_dir():
        inner = path / "test.tsv"
        path = inner if inner.is_file() else path / "qrels" / "test.tsv"
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"{path} cannot be read: {reason.rstrip('.')}; correct the path or the file."
        ) from error
    grades: Judgements = {}
    numbered = [(number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line.strip()]
    for index, (number, line) in enumerate(numbered):
        columns = line.split("\t") if "\t" in line else line.split()
        if len(columns) == 4:
            del columns[1]
        if len(columns) == 3 and re.fullmatch(r"\s*-?\d{1,9}\s*", columns[2]):
            query, text, grade = columns[0].strip(), columns[1].strip(), int(columns[2])
        elif index == 0 and len(columns) == 3 and re.search("[a-zA-Z_]", columns[2]):
            continue  # the header
        else:
            raise DataError(
                f"{path} line {number} is {line[:80]!r}; it must be query, text and an integer "
                "grade (at most 9 digits), separated by tabs."
            )
        if grades.setdefault(query, {}).setdefault(text, grade) != grade:
            raise DataError(
                f"{path} line {number} grades query {query!r} and text {text!r} again, with a "
                "different grade; keep one of them."
            )
    if not grades:
        raise DataError(f"{path} has no judgements; it must have one per line.")
    return grades


NDCG_DEPTH, RECALL_DEPTH = 10, 100


@dataclass(frozen=True)
class JudgedQueries:
    """The queries that have a relevant text, with the rows and grades of these texts."""

    rows: Tensor  # the rows of these queries among all queries, int64 [Q]
    places: Sequence[Tensor]  # for each query, the rows of its relevant texts, int64 [n], ascending
    gains: Sequence[Tensor]  # for each query, the grades of these texts, float64 [n]
    # For each query, the grades of all relevant texts, including those missing from the catalogue,
    # float64 [m], largest first.
    ideals: Sequence[Tensor]
    absent: int  # number of relevant pairs whose text is missing from the catalogue

    def __len__(self) -> int:
        return len(self.places)

    @property
    def complete(self) -> JudgedQueries:
        """The queries whose relevant texts are all in the catalogue; for other queries, no ranking
        can be perfect."""
        complete = [
            q
            for q, (gains, ideal) in enumerate(zip(self.gains, self.ideals, strict=True))
            if int((gains > 0).sum()) == len(ideal)
        ]
        places, gains, ideals = (
            [values[q] for q in complete] for values in (self.places, self.gains, self.ideals)
        )
        return JudgedQueries(self.rows[complete], places, gains, ideals, 0)

    @classmethod
    def of(
        cls, judgements: Judgements, queries: Sequence[str], texts: Sequence[str]
    ) -> JudgedQueries:
        """Match judgements with the ids of queries and texts, in the order of their rows, keeping
        the queries that have a relevant text. A relevant text that is missing from the catalogue
        counts as not retrieved."""
        judged = {text for grades in judgements.values() for text in grades}
        for ids, catalogue_ids, what in (
            (list(judgements), queries, "the queries"),
            (list(judged), texts, "the texts"),
        ):
            given, known = pa.array(ids, pa.string()), pa.array(catalogue_ids, pa.string())
            refuse_other_form(given, known, "the judgements", what)
        row_of = {text: row for row, text in enumerate(texts)}
        rows, places, gains, ideals = [], [], [], []
        absent = 0
        for row, query in enumerate(queries):
            grades = judgements.get(query, {})
            relevant = {text: grade for text, grade in grades.items() if grade > 0}
            if not relevant:
                continue
            present = sorted(
                (row_of[text], grade) for text, grade in relevant.items() if text in row_of
            )
            absent += len(relevant) - len(present)
            rows.append(row)
            places.append(torch.tensor([p for p, _ in present], dtype=torch.int64))
            gains.append(torch.tensor([g for _, g in present], dtype=torch.float64))
            ideal = torch.tensor(list(relevant.values()), dtype=torch.float64)
            ideals.append(ideal.sort(descending=True).values)
        if not rows:
            raise DataError(
                f"None of the {len(queries)} queries (such as {_some(queries)}) has a relevant "
                f"text in the judgements (of queries such as {_some(list(judgements))}); give "
                "judgements of these queries, with the same ids and a grade above 0."
            )
        if not any(len(present) for present in places):
            example = next(text for grades in judgements.values() for text in grades)
            raise DataError(
                f"None of the {absent} relevant texts in the judgements (such as {example!r}) is "
                f"among the {len(texts)} texts (such as {_some(texts)}), so nothing can be "
                "measured. Give judgements of these texts, with the same ids."
            )
        return cls(torch.tensor(rows), places, gains, ideals, absent)


def judged_metrics(ranked: Tensor, judged: JudgedQueries) -> Mapping[str, Tensor]:
    """Return nDCG@10 and Recall@100 for each judged query.

    DCG@k = Σ_{i ≤ k} grade_i / log₂(i + 1); nDCG divides it by the DCG of the ideal order of all
    relevant texts. Recall@k is the share of relevant texts among the first k. These are the
    measures of trec_eval (`ndcg_cut.10`, `recall.100`), as used by BEIR.

    Args:
        ranked: rows of texts, best first, int64 [Q, k] for the Q judged queries; −1 for no text.
            No text occurs twice.
    Returns: "ndcg@10" and "recall@100", float64 [Q].
    Raises: ShapeError: there are not Q rankings.
    """
    if ranked.dim() != 2 or len(ranked) != len(judged):
        raise ShapeError(
            f"The rankings are {list(ranked.shape)}; they must be [{len(judged)}, k], one per "
            "judged query."
        )
    discount = 1 / torch.arange(2, NDCG_DEPTH + 2, dtype=torch.float64).log2()
    ndcg = torch.zeros(len(judged), dtype=torch.float64)
    recall = torch.zeros(len(judged), dtype=torch.float64)
    by_query = zip(ranked.cpu(), judged.places, judged.gains, judged.ideals, strict=True)
    for q, (row, places, gains, ideal) in enumerate(by_query):
        top = row[:NDCG_DEPTH]
        is_text = top[:, None] == places
        gained = (is_text * gains).sum(1)
        best = ideal[:NDCG_DEPTH]
        ndcg[q] = (gained @ discount[: len(gained)]) / (best @ discount[: len(best)])
        recall[q] = int(torch.isin(places, row[:RECALL_DEPTH]).sum()) / len(ideal)
    return {f"ndcg@{NDCG_DEPTH}": ndcg, f"recall@{RECALL_DEPTH}": recall}


def _some(ids: Sequence[str]) -> str:
    return ", ".join(repr(id_) for id_ in ids[:3]) or "none"


DRAWS = 4000
LEVEL = 0.95


@dataclass(frozen=True)
class BootstrapInterval:
    """A mean over queries and its confidence interval of level `LEVEL`."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f} to {self.high:.4f})"


def bootstrap(values: Tensor, seed: int = 0) -> BootstrapInterval:
    """Return the mean of one value per query, [Q], with the percentile interval of `DRAWS`
    bootstrap samples of the queries. Source: Efron, "Bootstrap methods: another look at the
    jackknife", 1979."""
    if not len(values):
        raise DataError("There are no queries to average over; give at least one.")
    values = values.double()
    draw, size = torch.Generator().manual_seed(seed), len(values)
    means = _drawn(size, lambda n: values[torch.randint(size, (n, size), generator=draw)].mean(1))
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = means.quantile(ends).tolist()
    return BootstrapInterval(float(values.mean()), low, high)


def paired_bootstrap(values: Tensor, others: Tensor, seed: int = 0) -> BootstrapInterval:
    """Return the mean of `values` − `others`, both [Q] for the same queries, with its interval.
    As hard queries are hard for every method, this interval is far narrower than the intervals of
    the two means."""
    return bootstrap(values.double() - others.double(), seed)


def mean_bound(values: Tensor, seed: int = 0) -> float:
    """Return a lower confidence bound for the mean, of level `LEVEL` (95 %).

    It is a quantile of the Bayesian bootstrap (weights uniform on the simplex) over the queries and
    one additional query with the lowest possible value, −1, which stands for queries that were not
    drawn. If all values are 0, it is the Clopper–Pearson bound for losses of 1; if many differ, it
    is close to the end of a normal interval. Weights are nonnegative and do not depend on the
    values, so the bound never falls when a value rises.

    Its validity for every distribution is Gaffke's conjecture, without a known counterexample; a
    test enumerates all samples of two-valued distributions, including rare large losses.

    Args:
        values: [Q], one per query, from -1 to 1, drawn independently.
    Raises: DataError: a value is outside this range, or there are none.
    Source: Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a
        nonnegative variable", 2005; Learned-Miller and Thomas, "A New Confidence Interval for the
        Mean of a Bounded Random Variable", 2019.
    """
    if not len(values) or not bool((values.abs() <= 1).all()):
        found = f"{float(values.min()):g} to {float(values.max()):g}" if len(values) else "missing"
        raise DataError(f"The values are {found}; give at least one, all from -1 to 1.")
    extended = torch.cat([values.double(), torch.tensor([-1.0], dtype=torch.float64)])
    draw = torch.Generator().manual_seed(seed)

    def weighted(number: int) -> Tensor:
        weights = torch.empty(number, len(extended), dtype=torch.float64)
        weights.exponential_(generator=draw)
        return weights @ extended / weights.sum(1)

    return float(_drawn(len(extended), weighted).quantile(1 - LEVEL))


def _drawn(size: int, means: Callable[[int], Tensor]) -> Tensor:
    """Return `DRAWS` means over `size` values each, drawn in batches to save memory."""
    step = max(1, (1 << 20) // size)
    return torch.cat([means(min(step, DRAWS - start)) for start in range(0, DRAWS, step)])
