"""Small lineages of vectors that came from files, with maps that are known."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.publishing import copy_of, publish_next
from torch import Tensor

from evergram.compatibility.transforms import AffineTransform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage

TRAINED = Path(__file__).parents[1] / "golden" / "lineage-1" / "trained"


@pytest.fixture
def trained_lineage(tmp_path: Path) -> Path:
    """A copy of a lineage of three trained versions; ids of both sides are numbers from 0 on."""
    shutil.copytree(TRAINED, tmp_path / "shop")
    return tmp_path / "shop"


DIMS = (6, 8, 10, 12)


def vectors_of(version: int, rows: int = 300) -> Tensor:
    """z of ids 0 … rows - 1: the first coordinates of one draw, so that maps between are exact."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(rows, DIMS[-1], generator=draw)[:, : DIMS[version]] * (version + 1.0)


def publish(
    lineage: Lineage,
    version: int,
    rows: int = 300,
    text: bool = False,
    promote: bool = True,
    canaries: int = 0,
) -> Lineage:
    """Add a version. Its transform takes the first coordinates, scales and shifts them, which gives
    z of the version before plus 0.1 · version.

    Args:
        canaries: one in so many rows is kept for ever; none by default.
    """
    back = None
    if version:
        old = DIMS[version - 1]
        back = AffineTransform.from_matrix(
            torch.eye(old, DIMS[version]) * version / (version + 1),
            torch.full((old,), 0.1 * version),
        )
    ids = pa.array(range(rows))
    artefact = Artefact(
        DIMS[version],
        {"object": (ids.cast(pa.string()) if text else ids, vectors_of(version, rows))},
        back,
        {"metrics": {"model": {}}, "version": version},
        {},
        canaries={"object": list(range(0, rows, canaries))} if canaries else {},
    )
    publish_next(lineage, artefact, promote=promote)
    return lineage


def lineage_of(
    folder: Path, versions: int = 3, rows: int = 300, text: bool = False, canaries: int = 0
) -> Lineage:
    """A lineage of `versions` versions."""

    def publish_all(made: Path) -> None:
        lineage = Lineage.create(made, "line")
        for version in range(versions):
            publish(lineage, version, rows, text, canaries=canaries)

    return copy_of(f"{versions}-{rows}-{text}-{canaries}", publish_all, folder)


def read_as(version: int, target: int, rows: int = 300) -> Tensor:
    """z of `version` read as version `target`, step by step."""
    vectors = vectors_of(version, rows)
    for step in range(version, target, -1):
        vectors = vectors[:, : DIMS[step - 1]] * step / (step + 1) + 0.1 * step
    return vectors
