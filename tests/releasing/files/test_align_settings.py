"""How two files may be aligned."""

from __future__ import annotations

import pytest

from evergram.errors import DataError
from evergram.releasing.files.align_settings import RANK, AlignSettings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transform": "truncate"}, "'truncate' cannot be fitted"),
        ({"held_out": 1.0}, r"held_out \(--held-out\) is 1.0"),
        ({"rank": 0}, "rank is 0; it is at least 1"),
        ({"rank": 3}, "rank is of the transform low_rank, not of linear; leave it out"),
        ({"scaled": True}, "scaled is of the transform orthogonal, not of linear; leave it out"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    settings: dict[str, str | float | int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        AlignSettings(**settings)  # type: ignore[arg-type]


def test_a_rank_is_no_larger_than_the_dims() -> None:
    assert AlignSettings("low_rank").rank_of(64, 48) == RANK
    assert AlignSettings("low_rank").rank_of(8, 64) == 8
    assert AlignSettings("low_rank", rank=3).rank_of(8, 64) == 3
