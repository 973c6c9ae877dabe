"""An object described by its features."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from evergram.serving.object_features import MOST_FEATURES, Features


def test_keys_keep_their_types() -> None:
    features = {"year": 1990, "price": 9.5, "genre": ["war", "7"], "listed": None}
    described = Features.model_validate({"features": features})
    assert described.features == features
    assert isinstance(described.features["year"], int)
    assert described.id is None
    assert Features.model_validate({"features": {}, "id": "007"}).id == "007"


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 1},
        {"features": {"year": True}},
        {"features": {"year": [[1]]}},
        {"features": {"price": float("nan")}},
        {"features": {"genre": "x" * 1025}},
        {"features": {}, "id": 1.0},
        {"features": {}, "genre": "war"},
    ],
)
def test_a_value_that_is_not_a_key_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        Features.model_validate(wrong)


def test_so_many_features_and_no_more() -> None:
    Features.model_validate({"features": {f"f{n}": n for n in range(MOST_FEATURES)}})
    with pytest.raises(ValidationError, match="at most 256 features"):
        Features.model_validate({"features": {f"f{n}": n for n in range(MOST_FEATURES + 1)}})


def test_the_first_of_many_wrong_features_is_the_only_error() -> None:
    with pytest.raises(ValidationError) as refusal:
        Features.model_validate({"features": {f"f{n}": {} for n in range(MOST_FEATURES)}})
    assert {error["loc"][1] for error in refusal.value.errors()} == {"f0"}
