"""Two files that several processes align together, by the command in real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.support.embedding_files import file_of
from tests.support.several_processes import ended, start

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.shared_alignment import take_part_in_alignment

# Several blocks of 16,384 pairs.
ROWS = 40_000


def aligned(processes: int, *arguments: object) -> dict[str, object]:
    """Return what `evergram vectors align … --json` prints in so many processes."""
    command = ("-m", "evergram", "align", *map(str, arguments), "--json")
    outputs = ended(start(processes, *command))
    assert [code for code, _ in outputs] == [0] * processes, outputs
    assert not any(output for _, output in outputs[1:])
    facts: dict[str, object] = json.loads(outputs[0][1][outputs[0][1].index("{") :])
    return facts


@pytest.mark.long
def test_two_processes_align_files_as_one_does(tmp_path: Path) -> None:
    """A new lineage, and then its next version, by the number of the newest."""
    draw = torch.Generator().manual_seed(1)
    vectors = [torch.randn(ROWS, 6, generator=draw) + 2]
    for dim in (8, 5):
        mixed = vectors[-1] @ torch.randn(vectors[-1].shape[1], dim, generator=draw)
        vectors.append(mixed + torch.randn(ROWS, dim, generator=draw) / 4)
    for number, each in enumerate(vectors):
        file_of(tmp_path / f"{number}.parquet", each)
    facts: dict[int, list[dict[str, object]]] = {}
    for count in (1, 2):
        place = ("--lineage", tmp_path / f"by{count}")
        files = [tmp_path / f"{number}.parquet" for number in range(3)]
        facts[count] = [aligned(count, *files[:2], *place), aligned(count, 1, files[2], *place)]
    alone, together = (Lineage.open(tmp_path / f"by{count}") for count in (1, 2))
    for version in (1, 2):
        matrices = [lineage.chain.matrix(version, version - 1) for lineage in (alone, together)]
        torch.testing.assert_close(*matrices, rtol=1e-6, atol=1e-7)  # published in float32
        errors = [lineage.step_errors[version] for lineage in (alone, together)]
        torch.testing.assert_close(errors[0].sigma, errors[1].sigma, rtol=1e-6, atol=1e-7)
        mine, yours = (facts[count][version - 1]["alignment"] for count in (1, 2))
        assert isinstance(mine, dict)
        assert isinstance(yours, dict)
        assert mine["pairs"] == yours["pairs"]
        for name, reading in mine["held_out"].items():
            assert reading == pytest.approx(yours["held_out"][name], rel=1e-6)


def test_a_version_needs_its_lineage(tmp_path: Path) -> None:
    new = file_of(tmp_path / "new.parquet", torch.eye(3))
    with pytest.raises(DataError, match="those of version 2, and no lineage is given"):
        take_part_in_alignment(2, new)
