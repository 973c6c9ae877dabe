"""Canaries beside the vectors of their version, block by block."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.errors import DataError
from evergram.lineage.publishing.canary_check import CanaryCheck

IDS = [5, 3, 8, 1, 9, 2]
Z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def blocks(cut: int, texts: bool) -> list[tuple[pa.Array, torch.Tensor]]:
    ids = pa.array(IDS).cast(pa.string()) if texts else pa.array(IDS)
    return [(ids[:cut], Z[:cut]), (ids[cut:], Z[cut:])]


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(0, 5), min_size=1, unique=True),
    cut=st.integers(0, 6),
    texts=st.tuples(st.booleans(), st.booleans()),
)
def test_the_vectors_of_the_version_pass_wherever_they_are(
    rows: list[int], cut: int, texts: tuple[bool, bool]
) -> None:
    own = [str(IDS[row]) if texts[0] else IDS[row] for row in rows]
    check = CanaryCheck(own, Z[rows] * (1 + 1e-5), "shop", 3)
    passed = list(check.through(blocks(cut, texts[1])))
    assert torch.equal(torch.cat([z for _, z in passed]), Z)


@pytest.mark.parametrize("factor", [-1.0, 1.01, float("nan")])
def test_another_vector_is_refused(factor: float) -> None:
    check = CanaryCheck([8], Z[2:3] * factor, "shop", 3)
    with pytest.raises(DataError, match="The canary 8 of the side shop is not the vector"):
        list(check.through(blocks(4, False)))


def test_an_id_that_the_version_lacks_is_refused() -> None:
    for name in (7, "x", "²", "9" * 30):
        check = CanaryCheck([name], Z[:1], "shop", 3)
        with pytest.raises(DataError, match=f"The canary {name!r} of the side shop is not among"):
            list(check.through(blocks(3, False)))
