"""New queries of a lineage, at its newest version and read as a past one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.folding import folding_lineage, solved, weight

from evergram.errors import DataError, LineageError, ShapeError
from evergram.lineage.fold_in import stored_lookup
from evergram.lineage.id_lists import as_lists
from evergram.lineage.lineage import Lineage


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return folding_lineage(tmp_path / "films")


def test_a_query_is_the_minimum_of_its_version_s_form(lineage: Lineage) -> None:
    folded = lineage.fold_in([["c1", "c5"], ["c7"]], [[2.0, 0.5], [1]])
    assert folded.dtype == torch.float32
    expected = torch.stack([solved([1, 5], [2.0, 0.5]), solved([7], [1.0])])
    assert torch.allclose(folded.double(), expected, atol=1e-6)
    assert torch.allclose(lineage.fold_in(["c7"])[0], folded[1])


def test_at_a_past_version_it_is_read_through_the_chain(lineage: Lineage) -> None:
    lists = [["c1", "c5"], ["c7"]]
    past = lineage.fold_in(lists, version=0)
    assert torch.allclose(past, lineage.fold_in(lists) @ weight().T, atol=1e-5)
    assert torch.equal(past, lineage.view(0).fold_in(lists))


@pytest.mark.parametrize(
    "form", [list, tuple, np.array, pa.array], ids=["list", "tuple", "NumPy", "Arrow"]
)
def test_lists_may_be_of_any_kind(tmp_path: Path, form: Any) -> None:
    lineage = folding_lineage(tmp_path / "numbers", ids="numbers")
    folded = lineage.fold_in([form([1, 5]), form([7])], [form([1.0, 2.0]), form([1.0])])
    expected = torch.stack([solved([1, 5], [1.0, 2.0]), solved([7], [1.0])])
    assert torch.allclose(folded.double(), expected, atol=1e-6)


ids = st.lists(st.integers(0, 19), min_size=1, max_size=6)


@given(ids, st.randoms(use_true_random=False))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_order_is_nothing_and_an_id_twice_is_weight_two(
    lineage: Lineage, rows: list[int], random: Any
) -> None:
    folded = lineage.fold_in([f"c{i}" for i in rows])
    turned = sorted(rows, key=lambda _: random.random())
    once = sorted(set(rows))
    weighted = lineage.fold_in([f"c{i}" for i in once], [rows.count(i) for i in once])
    assert torch.allclose(lineage.fold_in([f"c{i}" for i in turned]), folded, atol=1e-6)
    assert torch.allclose(weighted, folded, atol=1e-6)


def test_unknown_candidates_are_named_or_left_out(lineage: Lineage) -> None:
    with pytest.raises(DataError, match="2 of 3 candidates are not stored: 'x', 'y'; leave"):
        lineage.fold_in([["c1", "x"], ["y"]])
    skipped = lineage.fold_in([["x", "c1", "y"]], [[9.0, 1.0, 4.0]], missing="skip")
    assert torch.allclose(skipped, lineage.fold_in(["c1"]))
    with pytest.raises(DataError, match="Query 2 of 2 has no candidate that is stored"):
        lineage.fold_in([["c1"], ["x"]], missing="skip")


@pytest.mark.parametrize(
    ("candidates", "options", "kind", "words"),
    [
        ([], {}, DataError, "Query 1 of 1 has no candidates"),
        ([["c1"], []], {}, DataError, "Query 2 of 2 has no candidates"),
        ("c1", {}, DataError, "candidates is of type str"),
        ([["c1"], "c2"], {}, DataError, "lists beside single ids"),
        ([7], {}, DataError, "Ids of candidates are texts here"),
        (["c1"], {"weights": [0.0]}, DataError, "weight of 'c1' is 0; weights must be above 0"),
        (["c1"], {"weights": [-1.0]}, DataError, "weight of 'c1' is -1"),
        (["c1"], {"weights": [float("nan")]}, DataError, "weights has nan; give finite numbers"),
        (["c1"], {"weights": ["a"]}, DataError, "weights has 'a'"),
        (["c1"], {"weights": [1.0, 2.0]}, ShapeError, "weights are not as long"),
        (["c1"], {"values": [3.0]}, DataError, "target 1 for every pair; leave values out"),
        (["c1"], {"missing": "zeros"}, DataError, "missing is 'zeros'"),
        (["c1", "c2"], {"weights": [1e308, 1e308]}, DataError, "give smaller weights"),
    ],
)
def test_it_refuses_in_one_sentence(
    lineage: Lineage, candidates: Any, options: dict[str, Any], kind: type, words: str
) -> None:
    with pytest.raises(kind, match=words):
        lineage.fold_in(candidates, **options)


def test_values_are_the_targets_of_a_version_that_was_trained_on_them(tmp_path: Path) -> None:
    lineage = folding_lineage(tmp_path / "films", values=True)
    folded = lineage.fold_in(["c1", "c5"], values=[3.0, 3.0])[0].double()
    assert torch.allclose(folded, solved([1, 5], [1.0, 1.0], target=3.0), atol=1e-5)
    with pytest.raises(DataError, match="trained on the values of pairs; give values="):
        lineage.fold_in(["c1"])


def test_a_version_without_a_form_says_so(tmp_path: Path) -> None:
    lineage = folding_lineage(tmp_path / "films", forms=False)
    with pytest.raises(LineageError, match=r"without what folding in needs.*next version"):
        lineage.fold_in(["c1"])


@pytest.mark.parametrize("wrong", [2.9, 2.0, True, float("nan")])
def test_a_number_that_is_no_id_is_not_cut_to_one(wrong: object) -> None:
    lookup = stored_lookup(lambda: (pa.array([1, 2, 3]), torch.eye(3)))
    known, vectors = lookup([2, 9])
    assert known.tolist() == [True, False]
    assert torch.equal(vectors[0], torch.eye(3)[1])
    with pytest.raises(DataError, match=r"whole numbers here, and .+ is none"):
        lookup([2, wrong])


@pytest.mark.parametrize("form", [list, tuple, np.array, pa.array, torch.tensor])
def test_one_list_or_a_list_of_lists(form: Any) -> None:
    assert as_lists(form([1, 5]), "candidates") == [[1, 5]]
    assert as_lists([form([1, 5]), form([7])], "candidates") == [[1, 5], [7]]
    matrix: Any = np.array([[1, 2], [3, 4]])
    assert as_lists(matrix, "candidates") == [[1, 2], [3, 4]]
    assert as_lists(pa.chunked_array([["a"], ["b"]]), "candidates") == [["a", "b"]]


@pytest.mark.parametrize("given", ["ab", b"ab", 7, None, np.array(7), {"a": 1}])
def test_one_thing_by_itself_is_no_list(given: Any) -> None:
    with pytest.raises(DataError, match=r"candidates is of type .* give a list of"):
        as_lists(given, "candidates")
