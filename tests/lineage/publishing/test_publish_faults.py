"""A lineage whose publisher is killed, and one whose bytes are damaged."""

from __future__ import annotations

import os
import random
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.support.artefacts import artefact
from tests.support.dying import is_alone, run_until
from tests.support.publishing import publish_next

from evergram.errors import EvergramError
from evergram.lineage.lineage import Lineage

# The dim of version 0; each later one has one more, and leads back to the one before.
START, NEWEST = 2, 1


def publish_random(lineage: Lineage) -> None:
    number = len(lineage.versions)
    before = START + number - 1 if number else None
    publish_next(lineage, artefact(START + number, before, seed=number))


def publish_one(path: Path, pipe: int) -> None:
    """Publish, and say that it was done."""
    publish_random(Lineage.open(path))
    os.write(pipe, b"done")


def check_whole(path: Path) -> int:
    """Every file is as it was published. Returns: the newest version."""
    lineage = Lineage.open(path)
    lineage.check()
    newest = lineage.newest
    published = artefact(START + newest, START + newest - 1, newest)
    for side in ("query", "candidate"):
        assert torch.equal(lineage.embeddings(side)[1], published.block(side)[1])
    return newest


def read(path: Path) -> dict[str, torch.Tensor]:
    """All vectors, and the newest ones as version 0 reads them."""
    lineage = Lineage.open(path)
    newest = {side: lineage.view().embeddings(side)[1] for side in ("query", "candidate")}
    oldest = {f"{side} at 0": lineage.view(0).embeddings(side)[1] for side in newest}
    return newest | oldest


@pytest.mark.long
def test_a_publisher_killed_after_each_of_its_operations_leaves_whole_versions(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed there, then somewhere else on top of what that left; the next publication succeeds."""
    if not is_alone(request):
        return
    whole, path = tmp_path / "whole", tmp_path / "lineage"
    lineage = Lineage.create(whole)
    for _ in range(NEWEST + 1):
        publish_random(lineage)
    # A version whose embeddings go with the next publication, and one whose stay.
    lineage.label("kept", NEWEST)
    publish_random(lineage)
    draw = random.Random(0)
    before = after = left_over = operation = 0
    killed = True
    while killed:
        operation += 1
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        work = partial(publish_one, path)
        killed, answer = run_until(operation, work, path)
        assert answer == (b"" if killed else b"done")
        newest = check_whole(path)
        # Once it is there it stays: all that is killed later has published.
        assert newest == NEWEST + 2 if after else newest in (NEWEST + 1, NEWEST + 2)
        before += newest == NEWEST + 1
        after += newest == NEWEST + 2
        left_over += any(path.rglob(".*.part"))
        run_until(draw.randrange(1, 60), work, path)
        assert check_whole(path) in (newest, newest + 1)
        # The next one succeeds and clears away what was left.
        lineage = Lineage.open(path)
        publish_random(lineage)
        assert not list(path.rglob(".*.part"))
        assert {p.name for p in (path / "versions").iterdir()} == set(
            map(str, range(lineage.newest + 1))
        )
    # It dies on both sides of the one rename that publishes, and with half of a version there.
    assert before > 30
    assert after > 3
    assert left_over > 20


@pytest.mark.long
def test_a_flipped_bit_is_noticed_before_a_vector_is_given_out(tmp_path: Path) -> None:
    path = tmp_path / "lineage"
    lineage = Lineage.create(path)
    for _ in range(3):
        publish_random(lineage)
    truth = read(path)
    draw = random.Random(0)
    noticed = 0
    files = [p for p in path.rglob("*") if p.is_file() and p.name != ".lock"]
    for file in files:
        content = file.read_bytes()
        for place in draw.sample(range(len(content)), min(40, len(content))):
            flipped = bytearray(content)
            flipped[place] ^= 1 << draw.randrange(8)
            file.write_bytes(flipped)
            try:
                Lineage.open(path).check()
                vectors_read = read(path)
            except EvergramError:
                noticed += 1
            else:
                assert vectors_read.keys() == truth.keys()
                for name, vectors in truth.items():
                    assert torch.equal(vectors_read[name], vectors), (file.name, place)
        file.write_bytes(content)
    # What is not noticed is text in JSON that no vector depends on.
    data = [file for file in files if file.suffix != ".json"]
    assert noticed >= 40 * len(data)
    assert read(path).keys() == truth.keys()
