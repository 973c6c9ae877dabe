"""Vectors that no map can be fitted to are named with the reason."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.planted_maps import planted_map

from evergram.compatibility import Aligner
from evergram.compatibility.degenerate import degenerate_side
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError


def test_an_aligner_refuses_degenerate_vectors_of_either_side() -> None:
    new, old, _ = planted_map(200, 3, 5)
    line = np.outer(np.arange(200.0), np.ones(5))
    mostly_zero = np.where(np.arange(200)[:, None] < 120, 0.0, new)
    cases = [
        (new * 0, old, "The new vectors cannot be aligned: 200 of 200 are zero"),
        (mostly_zero, old, "The new vectors cannot be aligned: 120 of 200 are zero"),
        (new, old * 0 + 1, "The old vectors cannot be aligned: all of them are the same"),
        (line, old, "The new vectors cannot be aligned: all of them lie on one line"),
    ]
    for one, other, message in cases:
        aligner = Aligner().fit(one, other)
        for use in (aligner.report, aligner.as_transform, lambda a=aligner: a.transform(new)):
            with pytest.raises(DataError, match=message):
                use()


def test_vectors_of_one_dim_are_not_a_line() -> None:
    moments = SecondMoments(1, 1)
    values = torch.arange(5.0)[:, None]
    moments.add(values, values)
    assert degenerate_side(moments, (0, 0)) is None
    assert degenerate_side(moments, (0, 0), 0.5) is None
    assert degenerate_side(moments, (1, 0), 0.2) is None
    assert degenerate_side(moments, (1, 0)) == ("old", "1 of 5 are zero, and 5% may be")
