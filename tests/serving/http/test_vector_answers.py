"""A look-up in the stores that meets a version which the service has not loaded yet."""

from __future__ import annotations

import pytest

from evergram.errors import DataError, UnknownVersionError
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.vector_answers import looked_up


def raising(error: Exception) -> object:
    raise error


def test_a_version_that_is_not_loaded_yet_is_worth_another_try() -> None:
    assert looked_up(lambda: 5) == 5
    with pytest.raises(RefusedError, match="try again") as refused:
        looked_up(lambda: raising(UnknownVersionError("There is no version 3.")))
    assert refused.value.code == "taking_up"
    with pytest.raises(DataError):
        looked_up(lambda: raising(DataError("An id is of another type.")))
