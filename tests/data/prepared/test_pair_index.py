"""The pairs of a corpus by query, against sets of pairs in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.prepared import prepared
from tests.support.streamed import generated

from evergram.data.corpus import Corpus
from evergram.data.prepared import mapped_corpus, pair_index
from evergram.data.prepared.pair_index import PairIndex, write_index
from evergram.data.prepared.prepared_corpus import load_prepared
from evergram.errors import DataError


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), min_size=2, max_size=80),
    bucket=st.integers(1, 100),
    block=st.integers(1, 100),
)
def test_it_knows_every_pair_and_no_other(
    pairs: list[tuple[int, int]],
    bucket: int,
    block: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setattr(pair_index, "BUCKET", bucket)
    monkeypatch.setattr(mapped_corpus, "PAIRS_AT_ONCE", block)
    corpus = Corpus.of(pairs)
    folder = tmp_path_factory.mktemp("index")
    mapped = prepared(corpus, folder / "p", 0.5)
    (folder / "index").mkdir()
    write_index(mapped, folder / "index")
    index = PairIndex.open(mapped, folder / "index")
    rows = list(
        zip(corpus.column("query").tolist(), corpus.column("candidate").tolist(), strict=True)
    )
    assert index.distinct == len(set(rows))
    queries, candidates = len(corpus.queries), len(corpus.candidates)
    every = torch.cartesian_prod(torch.arange(queries), torch.arange(candidates))
    has = index.has(every[:, 0], every[:, 1]).tolist()
    assert has == [tuple(pair) in set(rows) for pair in every.tolist()]
    some = torch.arange(0, queries, 2)
    query, candidate = index.pairs_of(some)
    assert list(zip(query.tolist(), candidate.tolist(), strict=True)) == sorted(
        r for r in rows if r[0] % 2 == 0
    )
    assert sorted(p.name for p in (folder / "index").iterdir()) == ["candidate.npy", "index.json"]


def test_values_and_weights_stay_with_their_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_index, "BUCKET", 50)
    corpus = generated(600)
    index = prepared(corpus, tmp_path / "p").index
    own = torch.repeat_interleave(torch.arange(len(corpus.queries)), index.offsets.diff())
    columns = (own, *(index.columns[n] for n in ("candidate", "value", "weight")))
    names = ("query", "candidate", "value", "weight")
    there = {tuple(row) for row in zip(*(corpus.column(n).tolist() for n in names), strict=True)}
    assert {tuple(row) for row in zip(*(c.tolist() for c in columns), strict=True)} == there


@pytest.mark.parametrize(
    "summary", ["", "[]", "{}", '{"distinct": 1.5}', '{"distinct": 0}', '{"distinct": 601}']
)
def test_a_damaged_summary_is_written_anew(
    summary: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mapped = prepared(generated(600), tmp_path / "p")
    distinct = mapped.index.distinct
    (mapped.index.folder / "index.json").write_text(summary)
    with pytest.raises(DataError, match=r"index\.json"):
        PairIndex.open(mapped, mapped.index.folder)
    assert load_prepared(tmp_path / "p").index.distinct == distinct
    assert "written anew" in caplog.text


def damaged(path: Path) -> None:
    rows = np.load(path)
    rows[0] = 0x7FFFFFFF
    np.save(path, rows)


def test_a_damaged_column_is_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mapped = prepared(generated(600), tmp_path / "p")
    path = mapped.index.folder / "candidate.npy"
    content = path.read_bytes()
    damaged(path)
    with pytest.raises(DataError, match=r"candidate\.npy is not as it was written"):
        PairIndex.open(mapped, path.parent)
    assert load_prepared(tmp_path / "p").index.distinct == mapped.index.distinct
    assert path.read_bytes() == content
    assert caplog.text.count("written anew") == 1


def test_rows_outside_of_their_side_are_refused(tmp_path: Path) -> None:
    mapped = prepared(generated(600), tmp_path / "p")
    index = mapped.index
    # Damage that is there when the index is opened is noticed then, see below.
    damaged(index.folder / "candidate.npy")
    query = torch.nonzero(index.offsets.diff()).flatten()[:1]
    with pytest.raises(DataError, match=r"names the rows .*2147483647 and there are .* Remove"):
        index.pairs_of(query)
    with pytest.raises(DataError, match=r"Remove .*by-query"):
        index.at("candidate", torch.tensor([0]))
