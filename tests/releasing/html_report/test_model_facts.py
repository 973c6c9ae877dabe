"""Names of candidates, and measures that cannot be made."""

from __future__ import annotations

import pyarrow as pa
import torch

from evergram.data.corpus import Corpus
from evergram.errors import DataError
from evergram.evaluation.reports.version_facts import NotMeasured
from evergram.releasing.html_report.model_facts import attempt, names_of


def test_candidates_have_their_title_or_else_their_id() -> None:
    table = pa.table({"query": [1, 1], "candidate": ["a", "b"]})
    titles = pa.table({"id": ["a"], "title": ["Alien"]})
    corpus = Corpus.from_tables(table, None, titles)
    assert names_of(corpus.candidates, torch.tensor([1, 0])) == ["b", "Alien"]
    assert names_of(corpus.queries, torch.tensor([0])) == ["1"]


def test_an_error_of_ours_is_a_reason() -> None:
    def refuse() -> int:
        raise DataError("Too large.")

    assert attempt(refuse) == NotMeasured("Too large.")
    assert attempt(abs, -2) == 2
