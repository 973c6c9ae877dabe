"""A lineage whose publisher is killed, and one whose bytes are damaged."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from tests.lineage.test_lineage import artefact

from evergram.errors import EvergramError
from evergram.lineage.lineage import Lineage

# The dims of versions 0, 1, …; each leads back to the one before.
START, KILLS = 2, 200


def publish_next(lineage: Lineage) -> None:
    number = len(lineage.versions)
    before = START + number - 1 if number else None
    lineage.publish(artefact(START + number, before, seed=number))


def publish_for_ever(path: Path, pipe: int) -> None:
    """Say each version that `publish` returned."""
    # Threads do not come through a fork: LAPACK would wait for them for ever.
    torch.set_num_threads(1)
    lineage = Lineage.open(path)
    while True:
        publish_next(lineage)
        os.write(pipe, f"{lineage.newest}\n".encode())


def read(path: Path) -> dict[str, torch.Tensor]:
    """All vectors, and the newest ones as version 0 reads them."""
    lineage = Lineage.open(path)
    newest = {side: lineage.view().embeddings(side)[1] for side in ("query", "candidate")}
    oldest = {f"{side} at 0": lineage.view(0).embeddings(side)[1] for side in newest}
    return newest | oldest


@pytest.mark.long
def test_a_publisher_killed_at_200_random_moments_leaves_whole_versions(tmp_path: Path) -> None:
    path = tmp_path / "lineage"
    publish_next(Lineage.create(path))
    whole = tmp_path / "whole"
    shutil.copytree(path, whole)
    draw = random.Random(0)
    context = multiprocessing.get_context("fork")
    versions = between = 0
    for _ in range(KILLS):
        newest = Lineage.open(path).newest
        reading, writing = os.pipe()
        process = context.Process(target=publish_for_ever, args=(path, writing))
        process.start()
        os.close(writing)
        time.sleep(draw.uniform(0, 0.06))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        said = b""
        while more := os.read(reading, 4096):
            said += more
        os.close(reading)
        acknowledged = int(said.split()[-1]) if said else newest
        lineage = Lineage.open(path)
        # The last one may be there and not yet be said.
        assert lineage.newest in (acknowledged, acknowledged + 1)
        versions += lineage.newest - newest
        between += any((path / "versions").glob(".*")) or any((path / "embeddings").glob(".*"))
        lineage.check()
        published = artefact(START + lineage.newest, START + lineage.newest - 1, lineage.newest)
        for side in ("query", "candidate"):
            assert torch.equal(lineage.embeddings(side)[1], published.block(side)[1])
        # The next one succeeds and clears away what was left.
        publish_next(lineage)
        assert not list(path.rglob(".*.part"))
        if lineage.newest > 12:
            # A long chain takes long to read.
            shutil.rmtree(path)
            shutil.copytree(whole, path)
    assert versions > KILLS / 4
    assert between > KILLS / 10


@pytest.mark.long
def test_a_flipped_bit_is_noticed_before_a_vector_is_given_out(tmp_path: Path) -> None:
    path = tmp_path / "lineage"
    lineage = Lineage.create(path)
    for _ in range(3):
        publish_next(lineage)
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
                found = read(path)
            except EvergramError:
                noticed += 1
            else:
                assert found.keys() == truth.keys()
                for name, vectors in truth.items():
                    assert torch.equal(found[name], vectors), (file.name, place)
        file.write_bytes(content)
    # What is not noticed is text in JSON that no vector depends on.
    data = [file for file in files if file.suffix != ".json"]
    assert noticed >= 40 * len(data)
    assert read(path).keys() == truth.keys()
