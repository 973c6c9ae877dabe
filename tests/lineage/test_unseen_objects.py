"""Objects that the alignment of a version never saw, by its metrics or its recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.command import Command, evergram
from tests.support.halving_versions import IDS, VECTORS, add_halving_version

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.transforms import LinearTransform, ResidualMLPTransform
from evergram.data.corpus import Vocabulary
from evergram.lineage import unseen_objects
from evergram.lineage.canary_check import CompatibilityLimits, diagnose_lineage, past_limits
from evergram.lineage.lineage import Lineage
from evergram.lineage.unseen_objects import canary_rows, id_hash, unseen_share
from evergram.serving.dashboard.data import dashboard_data
from evergram.serving.dashboard.schemas import Live

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
