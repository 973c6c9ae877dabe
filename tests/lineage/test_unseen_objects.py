"""Which canaries count as never seen, and what is told of how a version was published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.transforms import LinearTransform, ResidualMLPTransform, Transform
from evergram.data.corpus import Vocabulary
from evergram.lineage.artefact import Artefact
from evergram.lineage.canary_check import CompatibilityLimits, diagnose_lineage, past_limits
from evergram.lineage.lineage import Lineage
from evergram.lineage.unseen_objects import id_hash, unseen_share
from evergram.lineage.version_warnings import version_warnings

IDS = pa.array([f"id{i}" for i in range(200)])
VECTORS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))


def add(
    lineage: Lineage,
    recipe: dict[str, Any],
    overlap: dict[str, Any] | None = None,
    objects: int = 100,
    transform: Transform | None = None,
) -> None:
    """A version whose way back halves: exact on nothing, half as long on all."""
    number = lineage.next_version
    back = LinearTransform.from_matrix(0.5 * torch.eye(3)) if transform is None else transform
    error = StepError(torch.eye(3, dtype=torch.float64) / 4, objects, 3.0)
    lineage.publish(
        Artefact(
            dim=3,
            embeddings={"object": (IDS, VECTORS)},
            transform=back if number else None,
            metrics={
                "metrics": {"model": {}},
                **({} if overlap is None else {"overlap": overlap}),
            },
            recipe=recipe,
            canaries={"object": (IDS, VECTORS)},
            error=error if number else None,
        ),
        promote=False,
    )


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    found = Lineage.create(tmp_path / "l")
    add(found, {})
    return found


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
def test_the_share_is_what_metrics_or_recipe_say(
    lineage: Lineage, recipe: dict[str, Any], overlap: dict[str, Any] | None, share: float | None
) -> None:
    add(lineage, recipe, overlap)
    assert unseen_share(lineage, 1) == share
    lineage.withdraw(1, "a fault")
    assert unseen_share(lineage, 1) == 1.0


def test_an_object_is_unseen_if_no_step_on_the_way_saw_it(lineage: Lineage) -> None:
    for share in (0.5, 0.3, 0.9):
        add(lineage, {"align": {"held_out": share}})
    hashes = id_hash(Vocabulary(IDS)) / 2**32
    readings = diagnose_lineage(lineage)
    for reading, least in zip(readings, (0.3, 0.3, 0.9), strict=True):
        assert reading.unseen is not None
        assert reading.unseen.objects == int((hashes < least).sum())
        assert reading.measured is not None
        assert reading.measured.objects == 200
        assert reading.unknown == {}
        assert reading.amplification == pytest.approx(0.5 ** (3 - reading.version))


def test_what_is_not_known_says_why(lineage: Lineage) -> None:
    add(lineage, {}, objects=LEAST_OBJECTS - 1)
    add(lineage, {"align": {"held_out": 0.01}}, transform=ResidualMLPTransform(3, 3))
    first, second = diagnose_lineage(lineage)
    assert (first.certificate, first.unseen, first.amplification) == (None, None, None)
    assert first.unknown == {
        "error": "which objects alignment never saw is not recorded of version 1",
        "certificate": f"the transform of version 1 was measured on {LEAST_OBJECTS - 1} objects, "
        f"and {LEAST_OBJECTS} are needed; the transform of version 2 is not affine",
        "amplification": first.unknown["certificate"],
    }
    assert "canaries in common that alignment never saw" in second.unknown["error"]
    told = past_limits([first], CompatibilityLimits(bound=1.0, amplification=1.0))
    assert len(told) == 2
    assert told[0].startswith("Version 0: nothing is known of its bound, and the limit is 1: the")


def test_a_limit_needs_something_to_hold_to_it(lineage: Lineage) -> None:
    readings = diagnose_lineage(lineage)
    assert readings == []
    assert past_limits(readings, CompatibilityLimits()) == []
    assert "No past version is read" in past_limits(readings, CompatibilityLimits(error=1.0))[0]


def test_what_is_told_of_a_version(lineage: Lineage) -> None:
    add(lineage, {}, {"small": True, "common": 3, "held_out_share": 0.1}, objects=1)
    few, unmeasured = version_warnings(lineage)[1]
    assert few == "It has only 3 objects in common with the version before it."
    measured = f"The error of its transform was measured on 1 objects, and {LEAST_OBJECTS} are"
    assert unmeasured.startswith(measured)
    add(lineage, {})
    # A version that came since is told of, too.
    assert version_warnings(lineage) == {0: [], 1: version_warnings(lineage)[1], 2: []}
    assert version_warnings(Lineage.open(lineage.path)) == version_warnings(lineage)
