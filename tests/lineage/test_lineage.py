"""A lineage: published, opened again, read, and damaged; and one that was published earlier."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.support.artefacts import artefact, shop_of_three
from tests.support.folding import folding_lineage, solved
from tests.support.forging import forge
from tests.support.lineages import TRAINED, lineage_of, vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.data.split import TrainedPairs
from evergram.errors import (
    DataError,
    EvergramError,
    IntegrityError,
    LineageError,
    ShapeError,
    UnknownVersionError,
)
from evergram.ids import as_lists
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage, PairHistory
from evergram.lineage.view import stored_lookup


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")


def test_a_published_version_is_read_back(lineage: Lineage) -> None:
    again = Lineage.open(lineage.path)
    assert [(m.version, m.dim, m.name) for m in again.versions] == [
        (0, 2, "shop@v0"),
        (1, 3, "shop@v1"),
        (2, 4, "shop@v2"),
    ]
    published = artefact(4, 3, seed=2)
    ids, vectors = again.embeddings("candidate")
    assert ids.equals(published.block("candidate")[0])
    assert torch.equal(vectors, published.block("candidate")[1])
    record, state, vocabularies = again.reader(1).encoder()
    assert record.kind == "factorization"
    assert torch.equal(state["query.weight"], artefact(3, 2, seed=1).block("query")[1])
    assert vocabularies["candidate.id"].keys.equals(pa.array([10, 20]))
    assert again.metrics(0) == {"metrics": {"model": {"recall@20": 0.5}}}
    canary = pq.read_table(again.path / "versions" / "0" / "canary.parquet")
    assert canary["id"].to_pylist() == ["a", "10"]


def test_a_version_or_side_that_is_not_there_is_named(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(UnknownVersionError, match="its versions are: 0, 1, 2"):
        lineage.view(3)
    with pytest.raises(LineageError, match="no side 'item'"):
        lineage.embeddings("item")
    with pytest.raises(LineageError, match="not a lineage"):
        Lineage.open(tmp_path)
    with pytest.raises(LineageError, match="already holds"):
        Lineage.create(lineage.path)
    with pytest.raises(UnknownVersionError, match="no version yet"):
        _ = Lineage.create(tmp_path / "new").newest
    assert not (tmp_path / "new").exists()


def test_a_view_is_the_product_of_the_transforms(lineage: Lineage) -> None:
    steps = []
    for published in (artefact(3, 2, seed=1), artefact(4, 3, seed=2)):
        assert isinstance(published.transform, LinearTransform)
        steps.append(published.transform.weight.detach())
    z = artefact(4, 3, seed=2).block("query")[1]
    expected = {2: z, 1: z @ steps[1].T, 0: z @ steps[1].T @ steps[0].T}
    for version, vectors in expected.items():
        view = lineage.view(version)
        ids, read = view.embeddings("query")
        assert ids.to_pylist() == ["a", "b", "c"]
        torch.testing.assert_close(read, vectors)
        assert (view.version, view.source, view.dim) == (version, 2, vectors.shape[1])
    assert torch.equal(lineage.view().embeddings("query")[1], z)
    torch.testing.assert_close(lineage.view(0).transform(z[0]), expected[0][0])
    backwards = lineage.view(0).transform(z.numpy()[::-1])
    np.testing.assert_allclose(backwards, expected[0].numpy()[::-1], rtol=1e-5, atol=1e-6)


def test_a_version_in_the_place_of_another_is_refused(lineage: Lineage) -> None:
    versions = lineage.path / "versions"
    shutil.rmtree(versions / "1")
    shutil.copytree(versions / "2", versions / "1")
    with pytest.raises(IntegrityError, match="another version"):
        Lineage.open(lineage.path)


def tensors(**changed: torch.Tensor | None) -> Callable[[Path], object]:
    """A file of tensors with some others in their place, or without them."""

    def write(path: Path) -> None:
        changed_tensors = {**load_file(path), **changed}
        save_file({k: v for k, v in changed_tensors.items() if v is not None}, path)

    return write


def column(name: str, values: list[Any] | None) -> Callable[[Path], object]:
    """A Parquet file with another column in its place, or without it."""

    def write(path: Path) -> None:
        table = pq.read_table(path).drop_columns([name])
        if values is not None:
            table = table.append_column(name, pa.array(values * len(table)))
        pq.write_table(table, path)

    return write


def of(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


# For each file of a version: how it is read, and contents that do not fit.
FORGED: dict[str, tuple[Callable[[Lineage], Any], *tuple[Callable[[Path], object], ...]]] = {
    "transform.safetensors": (
        *(lambda line: line.chain, tensors(weight=torch.full((6, 8), torch.nan))),
        *(tensors(weight=None), of(b"x")),
    ),
    "forward.safetensors": (
        *(lambda line: line.forward(0, 1), tensors(offset=None), tensors(weight=torch.ones(3))),
    ),
    "moments.safetensors": (
        *(lambda line: line.moments(1), tensors(**{"object.count": torch.ones(2)})),
        tensors(**{"object.mean": None}),
    ),
    "canary.parquet": (
        *(lambda line: line.canaries(1), column("side", None), column("side", [[1]])),
        *(column("id", [[1]]), column("vector", [[1.0]]), of(b"x")),
    ),
    "trained_pairs.parquet": (
        *(lambda line: line.pair_history, column("pair", None), column("pair", [[1]])),
        column("pair", ["5"]),
    ),
    "metrics.json": (
        *(lambda line: line.metrics(1), of(b"[]"), of(b"{"), of(b"\xff")),
        *(of(b'{"metrics": {"model": {"a": []}}}'), of(b'{"probes": [1]}')),
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_contents_that_do_not_fit_are_an_error_though_their_hash_is_right(
    tmp_path: Path, name: str
) -> None:
    lineage = Lineage.create(tmp_path / "line")
    ids = pa.array(range(300))
    for version in range(2):
        back = None if not version else LinearTransform.from_matrix(torch.eye(6, 8))
        vectors = vectors_of(version)
        artefact = Artefact(
            dim=vectors.shape[1],
            embeddings={"object": (ids, vectors)},
            transform=back,
            metrics={"metrics": {"model": {}}},
            recipe={},
            canaries={"object": ids[:20]},
            trained=("line", TrainedPairs(np.array([7 + version], np.uint32))),
        )
        publish_next(lineage, artefact)
    read, *contents = FORGED[name]
    read(Lineage.open(lineage.path))
    path = lineage.path / "versions/1" / name
    published = path.read_bytes()
    for write in contents:
        path.write_bytes(published)
        write(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        forge(path.with_name("manifest.json"), lambda f, d=digest: f["files"].update({name: d}))  # type: ignore[misc]
        with pytest.raises(EvergramError, match=name):
            read(Lineage.open(lineage.path))


def test_a_file_is_checked_when_it_is_read(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line", versions=2)
    assert Lineage.open(tmp_path / "line").check() == sum(
        path.name != ".lock" for path in (tmp_path / "line").rglob("*") if path.is_file()
    )
    (tmp_path / "line/versions/1/transform.safetensors").write_bytes(b"damaged")
    again = Lineage.open(tmp_path / "line")
    with pytest.raises(IntegrityError):
        again.view(0)
    with pytest.raises(IntegrityError):
        again.check()


def pairs(*marks: int) -> TrainedPairs:
    return TrainedPairs(np.array(marks, np.uint32))


def add(lineage: Lineage, number: int, trained: tuple[str, TrainedPairs] | None) -> None:
    version = artefact(number + 2, number + 1 if number else None)
    publish_next(lineage, dataclasses.replace(version, trained=trained), promote=False)


def test_all_versions_but_the_withdrawn_count(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "shop")
    assert (lineage.pair_history.salt, len(lineage.pair_history.trained)) == (None, 0)
    for number, marks in enumerate([(1, 5), (5, 7), (9,)]):
        add(lineage, number, ("salt", pairs(*marks)))
        lineage.label("kept", number if number < 2 else 1)
    history = lineage.pair_history
    assert (history.salt, history.untested) == ("salt", None)
    assert history.trained.marks.tolist() == [1, 5, 7, 9]
    lineage.withdraw(2, "a fault")
    assert Lineage.open(lineage.path).pair_history.trained.marks.tolist() == [1, 5, 7]


def test_one_version_without_its_pairs_leaves_nothing_to_test_on(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "shop")
    add(lineage, 0, ("salt", pairs(1)))
    add(lineage, 1, None)
    untested = lineage.pair_history.untested
    assert untested is not None
    assert untested.startswith(f"No test metrics: the training pairs of version 1 of {lineage}")


def test_only_new_pairs_of_the_same_salt_are_recorded() -> None:
    history = PairHistory("salt", pairs(1, 5))
    new = history.new(("salt", pairs(1, 2, 5, 9)))
    assert new is not None
    assert new.marks.tolist() == [2, 9]
    assert history.new(("another", pairs(2))) is None
    assert history.new(None) is None
    assert PairHistory("salt", untested="Not known.").new(("salt", pairs(2))) is None
    first = PairHistory().new(("any", pairs(2)))
    assert first is not None
    assert first.marks.tolist() == [2]


EXPECTED: dict[str, Any] = json.loads(TRAINED.with_name("expected.json").read_text())
# What a manifest says for people alone.
NAMES_ONLY = {"created", "evergram", "name"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TRAINED, tmp_path / "lineage"))


def test_every_view_is_what_it_was() -> None:
    lineage = Lineage.open(TRAINED)
    assert [m.fingerprint for m in lineage.versions] == EXPECTED["fingerprints"]
    for name, vectors in load_file(TRAINED.with_name("expected.safetensors")).items():
        version, side = name.split("/")
        ids, read = lineage.view(int(version)).embeddings(side)
        assert ids.to_pylist() == EXPECTED["ids"][side]
        torch.testing.assert_close(read, vectors, rtol=1e-5, atol=1e-6)


def test_every_file_is_read() -> None:
    lineage = Lineage.open(TRAINED)
    lineage.check()
    for n, manifest in enumerate(lineage.versions):
        assert "metrics" in lineage.metrics(n)
        assert set(lineage.canaries(n)) == set(lineage.moments(n)) == set(manifest.embeddings)
        assert lineage.reader(n).query_form() is not None
        lineage.reader(n).encoder()
    assert all(lineage.step_errors[n].objects > 0 for n in (1, 2))
    assert lineage.forward(0, 2) is not None
    assert lineage.pair_history.untested is None


def test_any_file_that_is_damaged_is_noticed(copy: Path) -> None:
    for file in sorted(p for p in copy.rglob("*") if p.is_file()):
        whole = file.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 3] ^= 4
        # Of a flipped bit in JSON, see the next test.
        damaged = [] if file.name in ("manifest.json", "lineage.json") else [bytes(flipped)]
        for content in (*damaged, whole[: len(whole) // 2], None):
            file.unlink()
            if content is not None:
                file.write_bytes(content)
            with pytest.raises(LineageError, match=file.name):
                Lineage.open(copy).check()
            file.write_bytes(whole)


@pytest.mark.long
def test_a_flipped_bit_in_json_is_noticed_or_changes_nothing_that_is_read(copy: Path) -> None:
    opened = Lineage.open(copy)
    opened.label("canary", 1)
    opened.retire(0)
    expected = opened.labels, opened.readable, opened.withdrawn.keys()
    manifests = {m.version: m.model_dump(exclude=NAMES_ONLY) for m in opened.versions}
    for file in (copy / "lineage.json", copy / "versions" / "1" / "manifest.json"):
        content = file.read_bytes()
        noticed = 0
        for place in range(len(content)):
            flipped = bytearray(content)
            flipped[place] ^= 1
            file.write_bytes(flipped)
            try:
                lineage = Lineage.open(copy)
                lineage.check()
                read = {m.version: m.model_dump(exclude=NAMES_ONLY) for m in lineage.versions}
                _ = lineage.chain
            except LineageError:
                noticed += 1
                continue
            assert (lineage.labels, lineage.readable, lineage.withdrawn.keys()) == expected
            assert read == manifests, (file.name, place)
        file.write_bytes(content)
        assert noticed > len(content) / 2


@pytest.fixture
def films(tmp_path: Path) -> Lineage:
    return folding_lineage(tmp_path / "films")


def test_a_query_is_the_minimum_of_its_version_s_form(films: Lineage) -> None:
    folded = films.view().fold_in([["c1", "c5"], ["c7"]], [[2.0, 0.5], [1]])
    assert folded.dtype == torch.float32
    expected = torch.stack([solved([1, 5], [2.0, 0.5]), solved([7], [1.0])])
    assert torch.allclose(folded.double(), expected, atol=1e-6)
    assert torch.allclose(films.view().fold_in(["c7"])[0], folded[1])


@pytest.mark.parametrize(
    "form", [list, tuple, np.array, pa.array], ids=["list", "tuple", "NumPy", "Arrow"]
)
def test_lists_may_be_of_any_kind(tmp_path: Path, form: Any) -> None:
    lineage = folding_lineage(tmp_path / "numbers", ids="numbers")
    folded = lineage.view().fold_in([form([1, 5]), form([7])], [form([1.0, 2.0]), form([1.0])])
    expected = torch.stack([solved([1, 5], [1.0, 2.0]), solved([7], [1.0])])
    assert torch.allclose(folded.double(), expected, atol=1e-6)


ids = st.lists(st.integers(0, 19), min_size=1, max_size=6)


@given(ids, st.randoms(use_true_random=False))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_order_is_nothing_and_an_id_twice_is_weight_two(
    films: Lineage, rows: list[int], random: Any
) -> None:
    folded = films.view().fold_in([f"c{i}" for i in rows])
    turned = sorted(rows, key=lambda _: random.random())
    once = sorted(set(rows))
    weighted = films.view().fold_in([f"c{i}" for i in once], [rows.count(i) for i in once])
    assert torch.allclose(films.view().fold_in([f"c{i}" for i in turned]), folded, atol=1e-6)
    assert torch.allclose(weighted, folded, atol=1e-6)


def test_unknown_candidates_are_named_or_left_out(films: Lineage) -> None:
    with pytest.raises(DataError, match="2 of 3 candidates are not stored: 'x', 'y'; leave"):
        films.view().fold_in([["c1", "x"], ["y"]])
    skipped = films.view().fold_in([["x", "c1", "y"]], [[9.0, 1.0, 4.0]], missing="skip")
    assert torch.allclose(skipped, films.view().fold_in(["c1"]))
    with pytest.raises(DataError, match="Query 2 of 2 has no stored candidates"):
        films.view().fold_in([["c1"], ["x"]], missing="skip")


@pytest.mark.parametrize(
    ("candidates", "options", "kind", "words"),
    [
        ([], {}, DataError, "Query 1 of 1 has no candidates"),
        ([["c1"], []], {}, DataError, "Query 2 of 2 has no candidates"),
        ("c1", {}, DataError, "candidates is of type str"),
        ([["c1"], "c2"], {}, DataError, "both lists and single ids"),
        ([7], {}, DataError, "Ids of candidates must be strings here"),
        (["c1"], {"weights": [0.0]}, DataError, "weight of 'c1' is 0; weights must be above 0"),
        (["c1"], {"weights": [-1.0]}, DataError, "weight of 'c1' is -1"),
        (["c1"], {"weights": [float("nan")]}, DataError, "weights has nan; give finite numbers"),
        (["c1"], {"weights": ["a"]}, DataError, "weights has 'a'"),
        (["c1"], {"weights": [1.0, 2.0]}, ShapeError, "weights must be as long"),
        (["c1"], {"values": [3.0]}, DataError, "target 1 for every pair; leave values out"),
        (["c1"], {"missing": "zeros"}, DataError, "missing is 'zeros'"),
        (["c1", "c2"], {"weights": [1e308, 1e308]}, DataError, "give smaller weights"),
    ],
)
def test_it_refuses_in_one_sentence(
    films: Lineage, candidates: Any, options: dict[str, Any], kind: type, words: str
) -> None:
    with pytest.raises(kind, match=words):
        films.view().fold_in(candidates, **options)


def test_values_are_the_targets_of_a_version_that_was_trained_on_them(tmp_path: Path) -> None:
    lineage = folding_lineage(tmp_path / "films", values=True)
    folded = lineage.view().fold_in(["c1", "c5"], values=[3.0, 3.0])[0].double()
    assert torch.allclose(folded, solved([1, 5], [1.0, 1.0], target=3.0), atol=1e-5)
    with pytest.raises(DataError, match="trained on values; give values="):
        lineage.view().fold_in(["c1"])


def test_a_version_without_a_form_says_so(tmp_path: Path) -> None:
    lineage = folding_lineage(tmp_path / "films", forms=False)
    with pytest.raises(LineageError, match=r"without a query form.*next version"):
        lineage.view().fold_in(["c1"])


@pytest.mark.parametrize("wrong", [2.9, 2.0, True, float("nan")])
def test_a_number_that_is_no_id_is_not_cut_to_one(wrong: object) -> None:
    lookup = stored_lookup(lambda: (pa.array([1, 2, 3]), torch.eye(3)))
    known, vectors = lookup([2, 9])
    assert known.tolist() == [True, False]
    assert torch.equal(vectors[0], torch.eye(3)[1])
    with pytest.raises(DataError, match=r"must be integers here, not"):
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
