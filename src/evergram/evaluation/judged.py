"""Rankings compared with people's judgements: which texts answer which query.

Judgements are read from BEIR's and TREC's files; nDCG@10 and Recall@100 of each query are measured
by them; means over queries have intervals by a bootstrap, and a bound that a verdict rests on.

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

# By query, then by text: the grade, an integer; one that is above 0 is relevant.
Judgements = dict[str, dict[str, int]]


def read_judgements(path: Path) -> Judgements:
    """Return the grades of a file of judgements: three columns with tabs between them (query, text,
    grade) and a header, as BEIR has it, or four without a header (query, 0, text, grade), as TREC
    has it. A folder stands for its `qrels/test.tsv`, or its `test.tsv`."""
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
    for place, (number, line) in enumerate(numbered):
        columns = line.split("\t") if "\t" in line else line.split()
        if len(columns) == 4:
            del columns[1]
        if len(columns) == 3 and re.fullmatch(r"\s*-?\d{1,9}\s*", columns[2]):
            query, text, grade = columns[0].strip(), columns[1].strip(), int(columns[2])
        elif place == 0 and len(columns) == 3 and re.search("[a-zA-Z_]", columns[2]):
            continue  # the header
        else:
            raise DataError(
                f"{path} line {number} is {line[:80]!r}; query, text and an integer grade (of at "
                "most 9 digits) are needed, with tabs between them."
            )
        if grades.setdefault(query, {}).setdefault(text, grade) != grade:
            raise DataError(
                f"{path} line {number} grades query {query!r} and text {text!r} again, and "
                "otherwise; leave one of them."
            )
    if not grades:
        raise DataError(f"{path} has no judgements; it needs one a line.")
    return grades


NDCG_DEPTH, RECALL_DEPTH = 10, 100


@dataclass(frozen=True)
class JudgedQueries:
    """The queries that have a relevant text, and the grades of their texts as rows.

    Args:
        rows: of the queries among all queries, int64 [Q].
        places: for each query the rows of its graded texts, int64 [n], ascending, and
        gains: their grades, float64 [n]; a grade below 0 counts as 0.
        ideals: the grades of all relevant texts, the missing ones included, float64 [m], largest
            first.
        absent: how many relevant pairs are of texts that are not in the catalogue.
    """

    rows: Tensor
    places: Sequence[Tensor]
    gains: Sequence[Tensor]
    ideals: Sequence[Tensor]
    absent: int

    def __len__(self) -> int:
        return len(self.places)

    @property
    def complete(self) -> JudgedQueries:
        """The queries whose relevant texts are all in the catalogue; of the others, every ranking
        misses what is absent."""
        kept = [
            q
            for q, (gains, ideal) in enumerate(zip(self.gains, self.ideals, strict=True))
            if int((gains > 0).sum()) == len(ideal)
        ]
        places, gains, ideals = (
            [part[q] for q in kept] for part in (self.places, self.gains, self.ideals)
        )
        return JudgedQueries(self.rows[kept], places, gains, ideals, 0)

    @classmethod
    def of(
        cls, judgements: Judgements, queries: Sequence[str], texts: Sequence[str]
    ) -> JudgedQueries:
        """Return the judged ones of these queries, ids in the order of the rows, without those that
        have no relevant text; a relevant text that is missing from the catalogue counts as one that
        was not retrieved."""
        judged = {text for grades in judgements.values() for text in grades}
        for ids, others, what in (
            (list(judgements), queries, "the queries"),
            (list(judged), texts, "the texts"),
        ):
            given, known = pa.array(ids, pa.string()), pa.array(others, pa.string())
            refuse_other_form(given, known, "the judgements", what)
        place = {text: row for row, text in enumerate(texts)}
        rows, places, gains, ideals = [], [], [], []
        absent = 0
        for row, query in enumerate(queries):
            grades = judgements.get(query, {})
            relevant = {text: grade for text, grade in grades.items() if grade > 0}
            if not relevant:
                continue
            present = sorted(
                (place[text], grade) for text, grade in relevant.items() if text in place
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
                f"text in the judgements, whose queries are such as {_some(list(judgements))}; "
                "give the judgements of these queries, with the same ids and a grade above 0."
            )
        if not any(len(present) for present in places):
            named = next(text for grades in judgements.values() for text in grades)
            raise DataError(
                f"None of the {absent} relevant texts in the judgements (such as {named!r}) is "
                f"among the {len(texts)} texts (such as {_some(texts)}); nothing would be "
                "measured. Give the judgements of these texts, with the same ids."
            )
        return cls(torch.tensor(rows), places, gains, ideals, absent)


def judged_metrics(ranked: Tensor, judged: JudgedQueries) -> Mapping[str, Tensor]:
    """Return nDCG@10 and Recall@100 of each judged query.

    DCG@k = Σ_{i ≤ k} grade_i / log₂(i + 1); nDCG divides by that of the best order of all relevant
    texts. Recall@k is the share of the relevant texts among the first k. These are the measures of
    trec_eval (`ndcg_cut.10`, `recall.100`) and so of BEIR.

    Args:
        ranked: rows of texts, best first, int64 [Q, k] for the Q judged queries; −1 stands for no
            text. No text occurs twice.
    Returns: "ndcg@10" and "recall@100", float64 [Q].
    Raises: ShapeError: there are not Q rankings.
    """
    if ranked.dim() != 2 or len(ranked) != len(judged):
        raise ShapeError(
            f"The rankings are {list(ranked.shape)}; one for each of the {len(judged)} judged "
            "queries is needed, [Q, k]."
        )
    discount = 1 / torch.arange(2, NDCG_DEPTH + 2, dtype=torch.float64).log2()
    ndcg = torch.zeros(len(judged), dtype=torch.float64)
    recall = torch.zeros(len(judged), dtype=torch.float64)
    parts = zip(ranked.cpu(), judged.places, judged.gains, judged.ideals, strict=True)
    for q, (row, places, gains, ideal) in enumerate(parts):
        top = row[:NDCG_DEPTH]
        same = top[:, None] == places
        gained = (same * gains).sum(1)
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
    """A mean over queries, with the ends of its interval of `LEVEL`."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f} to {self.high:.4f})"


def bootstrap(values: Tensor, seed: int = 0) -> BootstrapInterval:
    """Return the mean of a value of each query, [Q], with the percentile interval of `DRAWS`
    bootstrap samples of the queries. Source: Efron, "Bootstrap methods: another look at the
    jackknife", 1979."""
    if not len(values):
        raise DataError("There are no queries to take a mean over; give at least one.")
    values = values.double()
    draw, size = torch.Generator().manual_seed(seed), len(values)
    means = _drawn(size, lambda n: values[torch.randint(size, (n, size), generator=draw)].mean(1))
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = means.quantile(ends).tolist()
    return BootstrapInterval(float(values.mean()), low, high)


def paired_bootstrap(values: Tensor, others: Tensor, seed: int = 0) -> BootstrapInterval:
    """Return the mean of `values` − `others`, both [Q] of the same queries, with its interval.
    Query by query, as hard queries are hard for every method, it is far narrower than the intervals
    of the two means."""
    return bootstrap(values.double() - others.double(), seed)


def mean_bound(values: Tensor, seed: int = 0) -> float:
    """Return a value that the true mean is below in at most 5 % of samples, 1 − `LEVEL`.

    It is a quantile of the Bayesian bootstrap (weights uniform on the simplex) of the queries and
    one more, whose value is −1, the least there can be. The weight of that query stands for those
    that were not drawn: where no value differs from 0, the bound is that of Clopper and Pearson for
    losses of 1, and where many differ, it is near the end of a normal interval. Each weight is at
    least 0 and the same for all values, so the bound never falls where a value rises.

    That it holds for every distribution is Gaffke's conjecture, of which no exception is known; a
    test sums over all samples of distributions of two values, rare large losses included.

    Args:
        values: [Q], each of a query, from -1 to 1, drawn independently.
    Raises: DataError: a value is beyond these, or there are none.
    Source: Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a
        nonnegative variable", 2005; Learned-Miller and Thomas, "A New Confidence Interval for the
        Mean of a Bounded Random Variable", 2019.
    """
    if not len(values) or not bool((values.abs() <= 1).all()):
        between = f"{float(values.min()):g} to {float(values.max()):g}" if len(values) else "absent"
        raise DataError(f"The values are {between}; give at least one, all from -1 to 1.")
    worst = torch.cat([values.double(), torch.tensor([-1.0], dtype=torch.float64)])
    draw = torch.Generator().manual_seed(seed)

    def weighted(number: int) -> Tensor:
        weights = torch.empty(number, len(worst), dtype=torch.float64)
        weights.exponential_(generator=draw)
        return weights @ worst / weights.sum(1)

    return float(_drawn(len(worst), weighted).quantile(1 - LEVEL))


def _drawn(size: int, means: Callable[[int], Tensor]) -> Tensor:
    """Return `DRAWS` means over so many values; some at a time, so that memory stays small."""
    step = max(1, (1 << 20) // size)
    return torch.cat([means(min(step, DRAWS - start)) for start in range(0, DRAWS, step)])
