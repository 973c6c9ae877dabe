"""The promises that nothing is silent and nothing fatal: each has a test, by its number.

The tests drive the command. They stand in `test_nothing_silent_<subject>.py` beside this file. The
name of each begins with the number of its promise, as in `test_13_a_batch_…`. Here stands what
each promise is, and that none is without a test.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROMISES = {
    1: "A pair that any version was trained on is never tested by a later one.",
    2: "A split by time may be the last part of the data, at every upgrade anew.",
    3: "A store knows which side it holds, and refuses the other.",
    4: "What was not measured has no certificate and passes no gate.",
    5: "Rows without ids are not paired with ids; an alignment by chance is refused.",
    6: "An export is what its suffix says, and writes over nothing unasked.",
    7: "A test masks all known pairs; a published split is trained on whole.",
    8: "No option and no key is accepted and ignored.",
    9: "No input ends in a traceback.",
    10: "A missing column is named beside those that are there.",
    11: "Training ends when it no longer helps, and says when it ended too early.",
    12: "Two upgrades at once are noticed, and the one that loses keeps its model.",
    13: "No Arrow body takes the service down.",
    14: "No JSON body exhausts memory or stalls others.",
    15: "An open service on this machine is not open to web pages.",
    16: "Silent connections are closed.",
    17: "A search sees a store as it is at one moment.",
    18: "A probe runs in a process of its own, within limits.",
    19: "No name or link in a lineage's files leads out of its folder.",
    20: "Foreign files and requests are bounded, secrets are kept, and readers learn no more.",
}


def numbers() -> set[str]:
    """Return the numbers that the names of the tests beside this file begin with."""
    files = Path(__file__).parent.glob("test_nothing_silent_*.py")
    names = [n for file in files for n in re.findall(r"^def test_(\w+)\(", file.read_text(), re.M)]
    return {name.split("_")[0] for name in names}


@pytest.mark.parametrize("number", PROMISES)
def test_every_promise_has_a_test(number: int) -> None:
    assert str(number) in numbers()


def test_every_test_is_of_a_promise() -> None:
    assert numbers() == {*map(str, PROMISES), "also"}
