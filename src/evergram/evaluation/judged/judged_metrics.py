"""nDCG@10 and Recall@100 of rankings, by the grades that people gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError
from evergram.evaluation.judged.beir_files import Judgements
from evergram.ids import refuse_other_form

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
        """Return the judged ones of these queries.

        A query without a relevant text is left out, as are judged queries that are not here. A
        relevant text that is missing from the catalogue counts as one that was not retrieved.

        Args:
            queries, texts: ids in the order of the rows.
        Raises: DataError: no query has a relevant text, or none of these is in the catalogue.
        """
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
