"""Which objects of two files are fitted to, measured on, looked up and kept."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from tests.support.embedding_files import id_names

from evergram.compatibility.row_groups import Groups
from evergram.data.corpus import Side, Vocabulary
from evergram.errors import DataError
from evergram.lineage.unseen_objects import id_hash
from evergram.releasing.files.pair_split import (
    canary_rows,
    id_hashes,
    pair_groups,
    refuse_few,
    sampled_rows,
)
from evergram.training.checkpoint import held_out

ROWS = 400
IDS = id_names(ROWS)


def test_groups_are_apart_and_the_held_out_one_is_that_of_training() -> None:
    hashes = id_hashes(IDS, size=7)  # in parts
    vocabulary = Vocabulary(IDS)
    assert torch.equal(hashes, id_hash(vocabulary))
    groups = pair_groups(hashes, 0.2)
    assert torch.equal(groups.held, held_out(Side(vocabulary), 0.2))
    sizes = [int(g.sum()) for g in (groups.seen, groups.chosen, groups.held)]
    assert sum(sizes) == ROWS
    assert bool((groups.seen | groups.chosen | groups.held).all())
    assert 0.1 < sizes[2] / ROWS < 0.3
    assert 0.03 < sizes[1] / ROWS < 0.15


def test_queries_and_canaries_are_held_out_and_no_query_is_its_own_neighbour() -> None:
    hashes = id_hashes(IDS)
    held = pair_groups(hashes, 0.2).held
    queries, catalogue = sampled_rows(hashes, held, seed=3)
    assert bool(held[queries].all())
    assert len(queries) == int(held.sum())
    assert not bool(torch.isin(catalogue, queries).any())
    assert len(catalogue) == ROWS - len(queries)
    assert torch.equal(catalogue, sampled_rows(hashes, held, seed=3)[1])
    assert not torch.equal(catalogue, sampled_rows(hashes, held, seed=4)[1])
    canaries = canary_rows(IDS, hashes, held)
    assert sorted(canaries.tolist()) == held.nonzero().squeeze(1).tolist()
    # Past canaries come first; what is gone, or no longer held out, is not among them.
    last, seen = int(canaries[-1]), int((~held).nonzero()[0])
    past = pa.array([IDS[seen].as_py(), "gone", IDS[last].as_py()])
    assert canary_rows(IDS, hashes, held, past)[0] == last
    assert set(canary_rows(IDS, hashes, held, past).tolist()) == set(canaries.tolist())


def groups_of(seen: int, chosen: int, held: int) -> Groups:
    """Groups of so many rows each."""
    place = torch.repeat_interleave(torch.arange(3), torch.tensor([seen, chosen, held]))
    return Groups(place == 0, place == 1, place == 2)


def test_enough_pairs_are_not_few() -> None:
    assert refuse_few(groups_of(50, 10, 60), (4, 6), "linear", 32) is False


@pytest.mark.parametrize(
    ("sizes", "kind", "message"),
    [
        ((10, 2, 60), "linear", r"12 common objects are there to fit to \(60 more are held out\)"),
        ((10, 2, 60), "linear", "a linear transform from 6 to 4 dims needs 18"),
        (
            (10, 2, 60),
            "linear",
            "or use --transform low_rank --rank 2 or --transform orthogonal",
        ),
        (
            (50, 10, 3),
            "linear",
            r"Only 3 of 63 common objects are held .* raise --held-out, or go",
        ),
        ((50, 10, 0), "linear", r"Only 0 of 60 common objects .* raise --held-out\.$"),
    ],
)
def test_few_pairs_are_refused_with_what_they_are_enough_for(
    sizes: tuple[int, int, int], kind: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        refuse_few(groups_of(*sizes), (4, 6), kind, 32)


def test_few_pairs_may_be_allowed_but_not_next_to_none() -> None:
    assert refuse_few(groups_of(10, 2, 3), (4, 6), "linear", 32, allow_small=True) is True
    with pytest.raises(DataError, match="Only 0 of 60"):
        refuse_few(groups_of(50, 10, 0), (4, 6), "linear", 32, allow_small=True)
