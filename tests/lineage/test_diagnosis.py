"""Errors of past versions: on canaries, on objects that alignment never saw, and by limits."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.command import Command, evergram
from tests.support.exact_versions import exact_lineage, exact_version
from tests.support.forging import forge
from tests.support.lineages import lineage_of, publish, vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.transforms import LinearTransform, ResidualMLPTransform, Transform
from evergram.ids import id_hashes
from evergram.lineage import publication
from evergram.lineage.artefact import Artefact
from evergram.lineage.diagnosis import (
    below_popularity,
    diagnose_lineage,
    past_limits,
    sample_sentence,
    standard_errors,
    unseen_share,
    version_warnings,
)
from evergram.lineage.lineage import Lineage
from evergram.lineage.publication import canary_rows
from evergram.lineage.record import sha256
from evergram.serving.dashboard import Live, dashboard_data
from evergram.vector_files.open_embeddings import write_vectors

__all__ = ["evergram"]


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    line = Lineage.create(tmp_path / "l")
    add_halving_version(line, {})
    return line


@pytest.mark.parametrize("share", [0.4, None])
def test_the_share_of_unseen_objects_is_that_of_the_metrics(
    lineage: Lineage, share: float | None
) -> None:
    add_halving_version(lineage, {}, share)
    assert unseen_share(lineage, 1) == share
    lineage.withdraw(1, "a fault")
    assert unseen_share(lineage, 1) == 1.0


def test_an_object_is_unseen_if_no_step_on_the_way_saw_it(lineage: Lineage) -> None:
    for share in (0.5, 0.3, 0.9):
        add_halving_version(lineage, {}, share)
    hashes = torch.from_numpy(id_hashes(IDS)) / 2**32
    readings = diagnose_lineage(lineage)
    for reading, least in zip(readings, (0.3, 0.3, 0.9), strict=True):
        assert reading.unseen is not None
        assert reading.unseen.objects == int((hashes < least).sum())
        assert reading.measured is not None
        assert reading.measured.objects == 200
        assert reading.unknown == {}


def test_the_error_that_is_shown_is_that_which_a_limit_is_held_to(
    lineage: Lineage, evergram: Command
) -> None:
    """Alignment saw most canaries, and errs five times as much on the others."""
    unseen = (torch.from_numpy(id_hashes(IDS)) < 0.2 * 2**32)[:, None]
    wrong = torch.where(unseen, 0.5 * VECTORS, 0.9 * VECTORS)
    same = LinearTransform.from_matrix(torch.eye(3))
    add_halving_version(lineage, {}, 0.2, transform=same, vectors=wrong)
    assert evergram("lineage", "check", lineage.path, "--max-error", 0.51).code == 0
    checked = evergram("lineage", "check", lineage.path, "--max-error", 0.49, "--json")
    assert checked.code == 1
    (reading,) = json.loads(checked.out)["readings"]
    assert reading["error"] == reading["unseen"]["relative"] == pytest.approx(0.5)
    assert reading["measured"]["relative"] < 0.3
    versions = dashboard_data(lineage, [], Live()).versions
    past, step = versions[0].past, versions[1].step
    assert past is not None
    assert step is not None
    assert past.error == step.error == past.history[1] == reading["error"]
    assert past.measured == reading["measured"]["relative"]


def test_a_reading_that_is_not_known_says_why(lineage: Lineage) -> None:
    add_halving_version(lineage, {}, objects=LEAST_OBJECTS - 1)
    add_halving_version(lineage, {}, 0.01, transform=ResidualMLPTransform(3, 3))
    first, second = diagnose_lineage(lineage)
    assert (first.certificate, first.unseen) == (None, None)
    assert list(first.unknown) == ["error", "certificate"]
    assert f"{LEAST_OBJECTS - 1} objects" in first.unknown["certificate"]
    assert "version 2 is not affine" in first.unknown["certificate"]
    assert "canaries in common that alignment never saw" in second.unknown["error"]
    sentences = past_limits([first], bound=1.0)
    assert len(sentences) == 1
    assert "its bound is unknown" in sentences[0]


def test_canaries_have_the_lowest_and_the_highest_hashes_and_past_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publication, "CANARIES", 40)
    hashes = torch.from_numpy(id_hashes(IDS))
    rows = canary_rows(IDS, hashes)
    share = hashes[rows] / 2**32
    assert len(set(rows.tolist())) == 40
    assert 10 < int((share < 0.2).sum()) < 30
    assert bool(((share < 0.2) | (share > 0.8)).all())
    middle = IDS[int((hashes - 2**31).abs().argmin())]
    past = pa.array(["gone", middle.as_py(), IDS[int(rows[3])].as_py()])
    again = canary_rows(IDS, hashes, past)
    assert IDS.take(pa.array(again[:2].numpy())).to_pylist() == past.to_pylist()[1:]
    assert set(again.tolist()) == {*again[:1].tolist(), *rows[:39].tolist()}


def test_an_error_longer_than_the_vectors_is_warned_of(lineage: Lineage) -> None:
    add_halving_version(
        lineage, {}, error=StepError(2 * torch.eye(3, dtype=torch.float64), 100, 3.0)
    )
    (sentence,) = version_warnings(lineage)[1]
    assert sentence.startswith("Its transform's error is 141 % of the length of the past vectors")


def test_a_model_below_popularity_is_warned_of(lineage: Lineage) -> None:
    metrics = {
        "model": {"recall@20": 0.25, "ndcg@20": 0.1},
        "popularity": {"recall@20": 0.26, "ndcg@20": 0.2},
    }
    (sentence,) = below_popularity(metrics)
    assert "(recall@20 is 0.2500, popularity's 0.2600)" in sentence
    published = Artefact(3, {"object": (IDS, VECTORS)}, None, {"metrics": metrics}, {})
    other = Lineage.create(lineage.path.parent / "other")
    publish_next(other, published)
    assert version_warnings(other) == {0: [sentence]}
    # One metric that is higher leaves it to people.
    metrics["model"]["ndcg@20"] = 0.3
    assert below_popularity(metrics) == below_popularity({"model": {}}) == []


@pytest.fixture
def line(tmp_path: Path) -> Path:
    """Versions 0 to 2, each with canaries."""
    return lineage_of(tmp_path / "line", 3, canaries=3).path


def rehashed(folder: Path, version: int, name: str) -> None:
    """Give the manifest the hash that a changed file has now."""

    def change(facts: dict[str, Any]) -> None:
        if name in facts["files"]:
            facts["files"][name] = sha256(folder / "versions" / str(version) / name)
        else:
            path = folder / "embeddings" / str(version) / name
            facts["embeddings"][path.stem] = sha256(path)

    forge(folder / "versions" / str(version) / "manifest.json", change)


def said(evergram: Command, line: Path) -> str:
    result = evergram("lineage", "check", line)
    assert result.code == 1
    return result.err


def test_a_transform_with_the_right_hash_is_another_one(line: Path, evergram: Command) -> None:
    path = line / "versions" / "1" / "transform.safetensors"
    save_file({name: 1.5 * t for name, t in load_file(path).items()}, path)
    rehashed(line, 1, path.name)
    assert "transform of version 1 has the error 0.5" in said(evergram, line)


def test_stored_vectors_that_are_not_the_canaries(line: Path, evergram: Command) -> None:
    vectors = vectors_of(2).clone()
    vectors[3] *= 2
    path = line / "embeddings" / "2" / "object.parquet"
    write_vectors(path, [(pa.array(range(300)), vectors)])
    rehashed(line, 2, path.name)
    assert "Version 2: The canary '3'" in said(evergram, line)


def test_stable_on_a_version_without_vectors(line: Path, evergram: Command) -> None:
    assert Lineage.open(line).versions_with_embeddings == [2]
    forge(line / "lineage.json", lambda facts: facts["labels"].update(stable=0))
    assert "'stable' is on version 0" in said(evergram, line)


def test_an_older_record_over_newer_files(line: Path, tmp_path: Path, evergram: Command) -> None:
    shutil.copy(line / "lineage.json", tmp_path / "older.json")
    publish(Lineage.open(line), 3, promote=False, canaries=3)
    assert evergram("lineage", "check", line).code == 0
    forge(tmp_path / "older.json", lambda facts: facts["labels"].update(stable=2))
    shutil.copy(tmp_path / "older.json", line / "lineage.json")
    assert "versions/3 holds version 3" in said(evergram, line)
    # Another number in the folder's name, or half of a version, is what a killed process left.
    shutil.rmtree(line / "versions" / "3")
    (line / "versions" / "3").mkdir()
    assert evergram("lineage", "check", line).code == 0
    assert torch.is_tensor(Lineage.open(line).embeddings("object")[1])


@pytest.mark.parametrize("sampled", [{}, {"errors": 3}, {"errors": {"model": [1]}}, {"queries": 3}])
def test_what_others_wrote_is_no_traceback(sampled: Any) -> None:
    assert standard_errors(sampled, "model") == {}
    assert sample_sentence(sampled) == (
        "Measured on a sample of the test queries; ± is a standard error."
    )


IDS = pa.array([f"id{i}" for i in range(200)])


VECTORS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))


def add_halving_version(
    lineage: Lineage,
    recipe: dict[str, Any],
    unseen: float | None = None,
    objects: int = 100,
    transform: Transform | None = None,
    error: StepError | None = None,
    vectors: torch.Tensor = VECTORS,
) -> None:
    """Publish a version whose transform halves every vector, unless it is another one."""
    number = lineage.next_version
    back = LinearTransform.from_matrix(0.5 * torch.eye(3)) if transform is None else transform
    if error is None:
        error = StepError(torch.eye(3, dtype=torch.float64) / 4, objects, 3.0)
    publish_next(
        lineage,
        Artefact(
            dim=3,
            embeddings={"object": (IDS, vectors)},
            transform=back if number else None,
            metrics={
                "metrics": {"model": {}},
                **({} if unseen is None else {"overlap": {"held_out_share": unseen}}),
            },
            recipe=recipe,
            canaries={"object": IDS},
            error=error if number else None,
        ),
        promote=False,
    )


DIMS = (2, 3, 4)


@pytest.fixture
def vectors() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(20, d, generator=draw) for d in DIMS]


@pytest.fixture
def drawn(tmp_path: Path, vectors: list[torch.Tensor]) -> Lineage:
    """Three versions of twenty objects from files; version 2 keeps fewer canaries."""
    line = Lineage.create(tmp_path / "lineage")
    ids = pa.array([f"object {i}" for i in range(20)])
    for n, z in enumerate(vectors):
        transform = LinearTransform(DIMS[n - 1], DIMS[n]) if n else None
        error = None
        if transform is not None:
            with torch.no_grad():
                error = StepError.of(transform(z), vectors[n - 1])
        kept = 20 if n < 2 else 15
        canaries = {"object": ids[:kept]}
        publish_next(line, version({"object": (ids, z)}, transform, canaries, error))
    return Lineage.open(line.path)


def version(
    sides: dict[str, Any],
    transform: LinearTransform | None,
    canaries: dict[str, Any],
    error: StepError | None = None,
) -> Artefact:
    dim = next(iter(sides.values()))[1].shape[1]
    facts: tuple[dict[str, Any], dict[str, Any]] = ({"metrics": {}}, {})
    return Artefact(dim, sides, transform, *facts, canaries=canaries, error=error)


def rms(delta: torch.Tensor) -> float:
    return math.sqrt(float(delta.double().square().sum(1).mean()))


def test_canaries_show_the_true_error(drawn: Lineage, vectors: list[torch.Tensor]) -> None:
    readings = diagnose_lineage(drawn)
    assert [r.version for r in readings] == [0, 1]
    first = readings[0]
    assert first.measured is not None
    assert first.measured.objects == 15
    back = drawn.chain.apply(vectors[2], 2, 0)[:15]
    error = rms(back - vectors[0][:15])
    assert first.measured.error == pytest.approx(error, rel=1e-5)
    assert first.measured.relative == pytest.approx(error / rms(vectors[0][:15]), rel=1e-5)
    # At version 1 all twenty were kept; version 0 reads itself without error.
    one = drawn.chain.apply(vectors[1], 1, 0)
    expected = {0: 0.0, 1: rms(one - vectors[0]) / rms(vectors[0])}
    for k, value in expected.items():
        assert first.history[k] == pytest.approx(value, rel=1e-5)


def test_the_certificate_is_made_of_the_stored_errors(
    drawn: Lineage, vectors: list[torch.Tensor]
) -> None:
    for reading in diagnose_lineage(drawn):
        assert reading.certificate is not None
        back = drawn.chain.apply(vectors[2], 2, reading.version)
        true = rms(back - vectors[reading.version])
        assert true <= reading.certificate.bound * (1 + 1e-6)


@pytest.mark.parametrize("size", [50, 8])
def test_a_certificate_of_another_transform_is_contradicted_by_seen_canaries(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says which of them alignment never saw; a limit reads what they show in any case."""
    # As it was published before publication tried transforms on canaries itself.
    monkeypatch.setattr(publication, "check_transform_on_canaries", lambda *_: None)
    lineage = Lineage.create(tmp_path / "lineage")
    ids, draw = pa.array(range(size)), torch.Generator().manual_seed(0)
    past, now = (torch.randn(size, 3, generator=draw) for _ in range(2))
    publish_next(lineage, version({"object": (ids, past)}, None, {"object": ids}))
    exact = StepError.of(past.repeat(10, 1), past.repeat(10, 1))
    block = {"object": (ids, now)}
    publish_next(lineage, version(block, LinearTransform(3, 3), {"object": ids}, exact))
    readings = diagnose_lineage(lineage)
    assert readings[0].unseen is None
    limited = past_limits(readings, error=0.1)
    assert any("its error is" in sentence for sentence in limited)
    broken = past_limits(readings, bound=0.1)
    assert (len(broken) == 1 and "on 50 canaries it is" in broken[0]) == (size == 50)


def test_the_diagnosis_goes_over_gaps(tmp_path: Path) -> None:
    lineage = exact_lineage(tmp_path / "exact")
    publish_next(lineage, exact_version(2, 1), promote=False)
    lineage.withdraw(2, "a fault")
    publish_next(lineage, exact_version(3, 1))
    publish_next(lineage, exact_version(4, 3))
    readings = {r.version: r for r in diagnose_lineage(lineage)}
    assert list(readings) == [0, 1, 3]
    for reading in readings.values():
        assert reading.measured is not None
        assert reading.certificate is not None
        assert reading.measured.relative < 1e-4
        # A length to be relative to, even where the next number is that of the gap.
        assert 0 <= reading.certificate.relative < 1e-4
        assert reading.measured.objects == 5
    assert readings[0].certificate is not None
    assert readings[0].measured is not None
    assert readings[0].certificate.terms[2] == 0
    assert set(readings[1].history) == {1, 3, 4}
    lineage.label("keep", 3)
    lineage.label("stable", 4)
    lineage.retire(1)
    assert [r.version for r in diagnose_lineage(lineage)] == [0, 3]


def test_a_side_of_which_nothing_is_in_common_is_not_known(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(30, 2, generator=draw)
    queries = pa.array([f"query {i}" for i in range(30)])
    for n in (0, 1):
        candidates = pa.array([f"candidate {i + 1000 * n}" for i in range(30)])
        both = {"query": (queries, z), "candidate": (candidates, z)}
        error = StepError.of(z, z) if n else None
        transform = LinearTransform.from_matrix(torch.eye(2)) if n else None
        kept = {side: ids for side, (ids, _) in both.items()}
        publish_next(lineage, version(both, transform, kept, error))
    readings = diagnose_lineage(lineage)
    assert list(readings[0].unknown) == ["error", "side candidate"]
    assert past_limits(readings) == []
    (said,) = past_limits(readings, bound=1.0)
    assert "its side candidate is unknown, so it cannot be compared" in said
