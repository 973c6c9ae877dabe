"""Lists of ids in the forms that people have, and what is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from evergram.errors import DataError
from evergram.lineage.new_queries.id_lists import as_lists


@pytest.mark.parametrize("form", [list, tuple, np.array, pa.array, torch.tensor])
def test_one_list_or_a_list_of_lists(form: Any) -> None:
    assert as_lists(form([1, 5]), "candidates") == [[1, 5]]
    assert as_lists([form([1, 5]), form([7])], "candidates") == [[1, 5], [7]]


def test_chunks_and_a_matrix_are_lists() -> None:
    assert as_lists(pa.chunked_array([["a"], ["b"]]), "candidates") == [["a", "b"]]
    matrix: Any = np.array([[1, 2], [3, 4]])
    assert as_lists(matrix, "candidates") == [[1, 2], [3, 4]]


@pytest.mark.parametrize("given", ["ab", b"ab", 7, None, np.array(7), {"a": 1}])
def test_one_thing_by_itself_is_no_list(given: Any) -> None:
    with pytest.raises(DataError, match=r"candidates is of type .* give a list of"):
        as_lists(given, "candidates")


def test_a_list_without_ids_is_named_by_its_place() -> None:
    with pytest.raises(DataError, match="Query 2 of 3 has no candidates"):
        as_lists([[1], [], [2]], "candidates")
    with pytest.raises(DataError, match="lists beside single ids"):
        as_lists([[1], 2], "candidates")
