"""Objects that the alignment of a version never saw, by its metrics or its recipe."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.command import Command, evergram
from tests.support.forging import forge
from tests.support.lineages import lineage_of, publish, vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.transforms import LinearTransform, ResidualMLPTransform, Transform
from evergram.data.corpus import Vocabulary
from evergram.lineage import unseen_objects
from evergram.lineage.artefact import Artefact
from evergram.lineage.canary_check import CompatibilityLimits, diagnose_lineage, past_limits
from evergram.lineage.lineage import Lineage
from evergram.lineage.manifest import sha256
from evergram.lineage.unseen_objects import canary_rows, id_hash, unseen_share
from evergram.lineage.version_warnings import (
    LEAST_QUERIES,
    below_popularity,
    few_test_queries,
    objects_without_vectors,
    sample_sentence,
    standard_errors,
    version_warnings,
    with_error,
)
from evergram.serving.dashboard.data import dashboard_data
from evergram.serving.dashboard.schemas import Live
from evergram.vector_files.writers import write_embeddings

__all__ = ["evergram"]


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    line = Lineage.create(tmp_path / "l")
    add_halving_version(line, {})
    return line


@pytest.mark.parametrize(
    ("recipe", "overlap", "share"),
    [
        ({"upgrade": {"fit": "joint", "held_out": 0.2}}, None, 0.2),
        ({"upgrade": {"fit": "none", "held_out": 0.2}}, None, 1.0),
        ({"align": {"held_out": 0.3}}, None, 0.3),
        ({"align": {"held_out": 0.3}}, {"held_out_share": 0.4}, 0.4),
        ({}, None, None),
        ({"upgrade": {"fit": "joint"}}, None, None),
    ],
)
def test_the_share_is_that_of_the_metrics_else_of_the_recipe(
    lineage: Lineage, recipe: dict[str, Any], overlap: dict[str, Any] | None, share: float | None
) -> None:
    add_halving_version(lineage, recipe, overlap)
    assert unseen_share(lineage, 1) == share
    lineage.withdraw(1, "a fault")
    assert unseen_share(lineage, 1) == 1.0


def test_an_object_is_unseen_if_no_step_on_the_way_saw_it(lineage: Lineage) -> None:
    for share in (0.5, 0.3, 0.9):
        add_halving_version(lineage, {"align": {"held_out": share}})
    hashes = id_hash(Vocabulary(IDS)) / 2**32
    readings = diagnose_lineage(lineage)
    for reading, least in zip(readings, (0.3, 0.3, 0.9), strict=True):
        assert reading.unseen is not None
        assert reading.unseen.objects == int((hashes < least).sum())
        assert reading.measured is not None
        assert reading.measured.objects == 200
        assert reading.unknown == {}
        assert reading.amplification == pytest.approx(0.5 ** (3 - reading.version))


def test_the_error_that_is_shown_is_that_which_a_limit_is_held_to(
    lineage: Lineage, evergram: Command
) -> None:
    """Alignment saw most canaries, and errs five times as much on the others."""
    unseen = (id_hash(Vocabulary(IDS)) < 0.2 * 2**32)[:, None]
    wrong = torch.where(unseen, 0.5 * VECTORS, 0.9 * VECTORS)
    same = LinearTransform.from_matrix(torch.eye(3))
    add_halving_version(lineage, {"align": {"held_out": 0.2}}, transform=same, vectors=wrong)
    shown = evergram("lineage", "check", lineage.path, "--max-error", 0.51)
    assert shown.code == 0
    lines = [re.split("[│┃]", line) for line in shown.out.splitlines()]
    header, row = ([cell.strip() for cell in line[1:4]] for line in lines if len(line) == 11)
    assert header == ["as", "error", "unseen"]
    assert row[:2] == ["0", "0.5000"]
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
    add_halving_version(
        lineage, {"align": {"held_out": 0.01}}, transform=ResidualMLPTransform(3, 3)
    )
    first, second = diagnose_lineage(lineage)
    assert (first.certificate, first.unseen, first.amplification) == (None, None, None)
    assert first.unknown == {
        "error": "which objects alignment never saw is not recorded of version 1",
        "certificate": f"the transform of version 1 was measured on {LEAST_OBJECTS - 1} objects, "
        f"and {LEAST_OBJECTS} are needed; the transform of version 2 is not affine",
        "amplification": first.unknown["certificate"],
    }
    assert "canaries in common that alignment never saw" in second.unknown["error"]
    sentences = past_limits([first], CompatibilityLimits(bound=1.0, amplification=1.0))
    assert len(sentences) == 2
    assert sentences[0].startswith(
        "Version 0: nothing is known of its bound, and the limit is 1: the"
    )


def test_canaries_have_the_lowest_and_the_highest_hashes_and_past_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unseen_objects, "CANARIES", 40)
    hashes = id_hash(Vocabulary(IDS))
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


def test_a_limit_needs_something_to_hold_to_it(lineage: Lineage) -> None:
    readings = diagnose_lineage(lineage)
    assert readings == []
    assert past_limits(readings, CompatibilityLimits()) == []
    assert "No past version is read" in past_limits(readings, CompatibilityLimits(error=1.0))[0]


def test_few_common_objects_and_a_transform_without_certificate_are_warned_of(
    lineage: Lineage,
) -> None:
    add_halving_version(lineage, {}, {"small": True, "common": 3, "held_out_share": 0.1}, objects=1)
    few, unmeasured = version_warnings(lineage)[1]
    assert few == "It has only 3 objects in common with the version before it."
    measured = f"The error of its transform was measured on 1 objects, and {LEAST_OBJECTS} are"
    assert unmeasured.startswith(measured)
    add_halving_version(lineage, {})
    # A version that came since has warnings too.
    assert version_warnings(lineage) == {0: [], 1: version_warnings(lineage)[1], 2: []}
    assert version_warnings(Lineage.open(lineage.path)) == version_warnings(lineage)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, None),
        ({"test_queries": LEAST_QUERIES}, None),
        ({"test_queries": 3}, "It was tested on 3 queries only; its metrics say little below 30."),
        (
            {"test_queries": 0, "in_training": 5, "trained_before": 2},
            "It was tested on 0 queries only (of the held-out pairs, 5 are in the training data too"
            " and 2 were trained on by an earlier version); its metrics say little below 30.",
        ),
    ],
)
def test_a_test_on_few_queries_is_warned_of(data: dict[str, int], sentence: str | None) -> None:
    assert few_test_queries(data) == sentence


def test_a_version_is_warned_of_once_for_each_thing(lineage: Lineage) -> None:
    published = Artefact(
        3,
        {"object": (IDS, VECTORS)},
        LinearTransform.from_matrix(torch.eye(3)),
        {
            "metrics": {"model": {}},
            "untested": "No test figure: nothing was held out.",
            "alignment": {"chance": {"beaten": False}},
        },
        {},
    )
    publish_next(lineage, published)
    assert version_warnings(lineage)[1] == [
        "No test figure: nothing was held out.",
        "Its transform is no better than chance: it errs as much with the objects mixed up.",
        "Its transform was published without a measured error, and has no certificate.",
    ]


def test_an_error_longer_than_the_vectors_is_warned_of(lineage: Lineage) -> None:
    add_halving_version(
        lineage,
        {"upgrade": {"fit": "posthoc", "solver": "gradient", "transform": {"kind": "linear"}}},
        error=StepError(2 * torch.eye(3, dtype=torch.float64), 100, 3.0),
    )
    (sentence,) = version_warnings(lineage)[1]
    assert sentence.startswith("Its transform errs by 141 % of the length of the past vectors")
    assert "upgrade.solver = 'closed'" in sentence


def test_a_model_below_popularity_is_warned_of(lineage: Lineage) -> None:
    metrics = {
        "model": {"recall@20": 0.25, "ndcg@20": 0.1},
        "popularity": {"recall@20": 0.26, "ndcg@20": 0.2},
    }
    (sentence,) = below_popularity(metrics)
    assert "(recall@20 is 0.2500, and 0.2600 by popularity)" in sentence
    published = Artefact(3, {"object": (IDS, VECTORS)}, None, {"metrics": metrics}, {})
    other = Lineage.create(lineage.path.parent / "other")
    publish_next(other, published)
    assert version_warnings(other) == {0: [sentence]}
    # One metric that is higher leaves it to people.
    metrics["model"]["ndcg@20"] = 0.3
    assert below_popularity(metrics) == below_popularity({"model": {}}) == []


def test_objects_that_a_kept_model_does_not_know_are_counted() -> None:
    assert objects_without_vectors({"queries": 3}) is None
    sentence = objects_without_vectors({"unknown_to_model": {"query": 1200, "candidate": 7}})
    assert sentence is not None
    assert sentence.startswith("It has no vectors of 1,200 queries and 7 candidates of its data")


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
    assert "transform of version 1 errs by 0.5" in said(evergram, line)


def test_stored_vectors_that_are_not_the_canaries(line: Path, evergram: Command) -> None:
    vectors = vectors_of(2).clone()
    vectors[3] *= 2
    path = line / "embeddings" / "2" / "object.parquet"
    write_embeddings(path, [(pa.array(range(300)), vectors)])
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


def test_errors_and_sizes_are_read() -> None:
    sampled = {"queries": 5000, "of": 606_000, "errors": {"model": {"recall@20": 0.0012}}}
    assert standard_errors(sampled, "model") == {"recall@20": 0.0012}
    assert standard_errors(sampled, "alone") == {}
    assert sample_sentence(sampled) == (
        "Measured on 5,000 of 606,000 test queries, drawn at random; ± is a standard error."
    )
    assert with_error("0.1234", 0.0012) == "0.1234 ±0.0012"
    assert with_error("0.1234", None) == "0.1234"


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
    overlap: dict[str, Any] | None = None,
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
                **({} if overlap is None else {"overlap": overlap}),
            },
            recipe=recipe,
            canaries={"object": (IDS, vectors)},
            error=error if number else None,
        ),
        promote=False,
    )
