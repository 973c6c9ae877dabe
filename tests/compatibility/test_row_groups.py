"""A vector's numbers alone decide its group, evenly and for ever."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.compatibility.row_groups import CHOOSING, pair_groups, vector_hashes


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_a_hash_is_of_the_row_alone(dim: int, seed: int) -> None:
    rows = torch.randn(50, dim, generator=torch.Generator().manual_seed(seed))
    hashes = vector_hashes(rows.double())
    order = torch.randperm(50)
    assert torch.equal(vector_hashes(rows[order].double()), hashes[order])
    assert int(hashes.min()) >= 0
    assert int(hashes.max()) < 2**32
    assert len(set(hashes.tolist())) == 50


def test_the_hashes_never_change() -> None:
    """A saved aligner goes on with it, so no row may change its group."""
    rows = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0], [0.1, 0.2]], dtype=torch.float64)
    assert vector_hashes(rows).tolist() == [1789990018, 1789990018, 1090463486, 439451484]


def test_groups_have_their_shares_whatever_the_vectors_look_like() -> None:
    draw = torch.Generator().manual_seed(0)
    number = 40_000
    of_kinds = {
        "gaussian": torch.randn(number, 16, generator=draw),
        "half": torch.randn(number, 16, generator=draw).half(),
        "counted": torch.arange(number).double()[:, None],
        "binary": torch.arange(number)[:, None] >> torch.arange(16) & 1,
        "one place": torch.eye(200).repeat_interleave(200, 0)
        * torch.arange(1, number + 1)[:, None],
    }
    for name, rows in of_kinds.items():
        groups = pair_groups(vector_hashes(rows.double()), 0.2)
        for mask, share in ((groups.held, 0.2), (groups.chosen, 0.8 * CHOOSING)):
            # Five standard deviations of a binomial.
            allowed = 5 * (share * (1 - share) / number) ** 0.5
            assert abs(float(mask.double().mean()) - share) < allowed, name
        together = torch.stack([groups.seen, groups.chosen, groups.held]).sum(0)
        assert bool((together == 1).all())


def test_a_row_that_is_there_twice_is_in_one_group() -> None:
    rows = torch.randn(500, 8).double().repeat(2, 1)
    held = pair_groups(vector_hashes(rows), 0.3).held
    assert torch.equal(held[:500], held[500:])
