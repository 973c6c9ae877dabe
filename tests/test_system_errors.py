"""What the system refused is said with what to do."""

from __future__ import annotations

import errno

import pytest

from evergram.system_errors import reason_and_remedy


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "No space left on device; free some space, or name a place on another disk",
        ),
        (
            OSError("Error writing bytes to file. Detail: [errno 30] Read-only file system"),
            "Read-only file system; name a place that can be written to",
        ),
        (OSError(errno.EIO, "Input/output error"), "Input/output error; see that this file"),
        (OSError("torn."), "torn; see that this file"),
    ],
)
def test_the_reason_and_the_remedy(error: OSError, sentence: str) -> None:
    assert reason_and_remedy(error).startswith(sentence)


def test_the_state_of_things_stands_in_between() -> None:
    error = OSError(errno.EROFS, "Read-only file system")
    assert reason_and_remedy(error, "it is as it was") == (
        "Read-only file system; it is as it was. Name a place that can be written to"
    )
