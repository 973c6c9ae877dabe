"""How much of a past version remains when a new one is read as it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.lineages import lineage_of

from evergram.data.corpus import Corpus
from evergram.data.row_pairs import RowPairs
from evergram.data.split import Split
from evergram.encoders.features import SIDES
from evergram.releasing.past_models import StoredModel
from evergram.releasing.past_version_report import (
    PastReading,
    held_out_rows,
    known_relevance,
    reading_report,
)
from evergram.training.checkpoint import held_out

ROWS = 40


def split_of(pairs: list[tuple[int, int]], test: list[tuple[int, int]]) -> Split:
    """Training and test pairs of rows; no selection."""
    query, candidate = zip(*pairs, strict=True)
    corpus = Corpus.from_tables(pa.table({"query": query, "candidate": candidate}))
    tested = RowPairs(*(torch.tensor(rows) for rows in zip(*test, strict=True)))
    return Split(corpus, RowPairs.none(), tested, 0)


def test_only_queries_and_candidates_that_the_past_version_knew_are_ranked() -> None:
    training = [(0, 0), (1, 1), (2, 2), (0, 3), (2, 1)]
    split = split_of(training, [(0, 1), (0, 2), (1, 3), (2, -1), (2, 0)])
    known = {
        "query": torch.tensor([True, False, True]),
        "candidate": torch.tensor([True, False, True, True]),
    }
    relevance = known_relevance(split, known)
    # Query 1 and candidate 1 were not known; -1 is in no catalogue. Rows 0, 2, 3 become 0, 1, 2.
    assert relevance.queries.tolist() == [0, 2]
    assert relevance.targets.tolist() == [1, 0]
    assert relevance.seen.tolist() == [0, 2, 1]


def test_held_out_rows_are_those_of_each_side() -> None:
    corpus = split_of([(i, i) for i in range(ROWS)], [(0, 1)]).training
    rows = held_out_rows(corpus, 0.3)
    assert torch.equal(rows["query"], held_out(corpus.queries, 0.3))
    assert torch.equal(rows["candidate"], held_out(corpus.candidates, 0.3))


@pytest.mark.parametrize("drifts", [False, True])
def test_a_chain_that_leads_back_exactly_keeps_everything(tmp_path: Path, drifts: bool) -> None:
    """The chain shifts by 0.1: the new vectors either allow for that or do not."""
    chain = lineage_of(tmp_path / "l", 2).chain
    draw = torch.Generator().manual_seed(0)
    corpus = split_of([(i, (3 * i + 1) % ROWS) for i in range(ROWS)], [(0, 1)]).training
    past, new = {}, {}
    stored = {}
    for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True):
        past[side] = torch.randn(len(entities), chain.dim(0), generator=draw)
        # The inverse of version 1's transform: half of the first coordinates, and 0.1.
        exact = 2 * (past[side] - 0.1)
        more = torch.randn(len(entities), chain.dim(1) - chain.dim(0), generator=draw)
        new[side] = torch.cat([exact + (0.5 if drifts else 0.0), more], dim=1)
        stored[side] = (entities.vocabulary.keys, past[side])
    rows = torch.arange(ROWS)
    split = Split(corpus, RowPairs.none(), RowPairs(rows, (rows + 7) % ROWS), 0)
    reading = PastReading(chain, 0, StoredModel(chain.dim(0), stored))
    report = reading_report(reading, new, split, 0.5, ["recall@5"])
    held = held_out_rows(corpus, 0.5)
    assert report["drift"]["held_out"]["objects"] == sum(int(held[s].sum()) for s in SIDES)
    assert report["drift"]["known"]["objects"] == 2 * ROWS
    ranking = report["ranking"]
    if drifts:
        shift = 0.25 * chain.dim(0) ** 0.5
        assert report["drift"]["known"]["l2"] == pytest.approx(shift, rel=1e-4)
        assert ranking["raw"] != ranking["past"]
    else:
        assert report["drift"]["known"]["l2"] == pytest.approx(0, abs=1e-5)
        assert report["overlap@10"] == 1
        assert ranking["chain"] == ranking["chain_candidates"] == ranking["past"]
