"""Requests that wait together are encoded together, and each gets its own vectors or error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from evergram.errors import DataError, ServiceError
from evergram.serving.texts.batcher import Batcher, CrowdedError
from evergram.texts.text_encoder import Role, Vectors


class Encoder:
    """Encodes a text as its number; waits in its first call until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def encode(self, texts: list[str], role: Role) -> Vectors:
        self.calls.append(texts)
        if len(self.calls) == 1:
            self.entered.set()
            assert self.go.wait(30)
        if "poison" in texts:
            raise DataError("poison")
        if "down" in texts:
            raise ServiceError("down")
        sign = -1 if role == "query" else 1
        return np.array([[sign * float(text)] for text in texts], dtype=np.float32)


def gathered(
    encoder: Encoder, batcher: Batcher, jobs: list[tuple[list[str], Role]]
) -> list[object]:
    """Return what each job gets, all but the first having waited while the first was encoded."""

    def run(job: tuple[list[str], Role]) -> object:
        try:
            return batcher.encode(*job).ravel().tolist()
        except (DataError, ServiceError) as error:
            return str(error)

    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(run, jobs[0])]
        assert encoder.entered.wait(30)
        for number, job in enumerate(jobs[1:], 1):
            futures.append(pool.submit(run, job))
            while len(batcher._waiting) < number:
                threading.Event().wait(0.001)
        encoder.go.set()
        return [future.result() for future in futures]


def test_those_that_wait_are_one_batch_each_with_its_own_rows() -> None:
    encoder = Encoder()
    jobs: list[tuple[list[str], Role]] = [
        (["0"], "document"),
        (["1", "2"], "document"),
        (["3"], "document"),
        (["4"], "query"),
        (["5"], "document"),
    ]
    results = gathered(encoder, Batcher(encoder.encode, 100), jobs)
    assert results == [[0], [1, 2], [3], [-4], [5]]
    assert encoder.calls == [["0"], ["1", "2", "3"], ["4"], ["5"]]


def test_a_batch_has_no_more_than_it_may_but_for_one_long_request() -> None:
    encoder = Encoder()
    jobs: list[tuple[list[str], Role]] = [
        ([str(i)] * n, "document") for i, n in enumerate((1, 2, 2, 5, 1))
    ]
    gathered(encoder, Batcher(encoder.encode, 3), jobs)
    assert [len(call) for call in encoder.calls] == [1, 2, 2, 5, 1]


def test_a_bad_text_fails_its_own_request_alone() -> None:
    encoder = Encoder()
    jobs: list[tuple[list[str], Role]] = [
        (["0"], "document"),
        (["1"], "document"),
        (["poison"], "document"),
        (["2"], "document"),
    ]
    assert gathered(encoder, Batcher(encoder.encode, 100), jobs) == [[0], [1], "poison", [2]]


def test_a_failure_of_the_encoder_is_not_repeated_for_each_request() -> None:
    encoder = Encoder()
    jobs: list[tuple[list[str], Role]] = [([text], "document") for text in ("0", "1", "down", "2")]
    assert gathered(encoder, Batcher(encoder.encode, 100), jobs) == [[0], "down", "down", "down"]
    assert encoder.calls == [["0"], ["1", "down", "2"]]


def test_a_request_whose_turn_does_not_come_gives_up_and_leaves_the_queue() -> None:
    encoder = Encoder()
    batcher = Batcher(encoder.encode, 10, patience=0.01)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(batcher.encode, ["0"], "document")
        assert encoder.entered.wait(30)
        with pytest.raises(CrowdedError, match="at work on other texts"):
            batcher.encode(["1"], "document")
        encoder.go.set()
        assert first.result().tolist() == [[0]]
    assert encoder.calls == [["0"]]


def test_the_next_request_after_an_error_is_encoded() -> None:
    encoder = Encoder()
    encoder.go.set()
    batcher = Batcher(encoder.encode, 10)
    with pytest.raises(ValueError, match="poison"):
        batcher.encode(["poison"], "document")
    assert batcher.encode(["7"], "document").tolist() == [[7]]
