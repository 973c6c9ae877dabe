"""The settings of an aligner: what is refused, and the rank between two dims."""

from __future__ import annotations

import math
from typing import Any

import pytest

from evergram.compatibility import Aligner
from evergram.compatibility.aligner.settings import AlignerSettings
from evergram.compatibility.closed_form_fit import KINDS
from evergram.compatibility.kinds import TRANSFORMS
from evergram.errors import DataError


def test_settings_that_are_not_allowed_are_refused_in_a_sentence() -> None:
    for kind in set(TRANSFORMS) - set(KINDS):
        with pytest.raises(DataError, match=rf"'{kind}' has no closed form \(it is trained"):
            Aligner(kind)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("one of linear, affine, orthogonal, low_rank", {"transform": "procrustes"}),
        ("ridge is -1", {"ridge": -1}),
        ("ridge is nan", {"ridge": math.nan}),
        ("ridge is 'none'", {"ridge": "none"}),
        ("has no ridge", {"transform": "orthogonal", "ridge": 0.1}),
        ("held_out is 1", {"held_out": 1}),
        ("rank is of low_rank", {"rank": 4}),
        ("rank is 0", {"transform": "low_rank", "rank": 0}),
        ("rank is 2.5", {"transform": "low_rank", "rank": 2.5}),
        ("scaled is of orthogonal", {"scaled": True}),
    ]
    for message, arguments in cases:
        with pytest.raises(DataError, match=message):
            Aligner(**arguments)


def test_the_rank_is_32_or_the_smaller_dim() -> None:
    settings = AlignerSettings("low_rank")
    assert settings.rank_of(40, 300) == 32
    assert settings.rank_of(300, 20) == 20
    assert AlignerSettings("low_rank", rank=5).rank_of(5, 9) == 5
    with pytest.raises(DataError, match="rank is 6; between 9 and 5 dims it is at most 5"):
        AlignerSettings("low_rank", rank=6).rank_of(5, 9)
