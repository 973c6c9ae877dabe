"""A note of a training is left in the storage, removed at its end, and never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.buckets import PLACE, bucket_files

from evergram.lineage.lineage import Lineage
from evergram.lineage.remote.storage import RemoteStorage
from evergram.lineage.remote.training_note import training_note

OTHER = json.dumps({"owner": "eve", "host": "h", "process": 1, "since": "now"}).encode()


def test_a_training_is_noted_in_the_storage_while_it_runs(
    lineage: Lineage, caplog: pytest.LogCaptureFixture
) -> None:
    with lineage.training():
        assert "training.json" in bucket_files()
    assert "training.json" not in bucket_files()
    assert caplog.text == ""


def test_the_note_of_another_process_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    storage = RemoteStorage(PLACE)
    storage.write("training.json", OTHER)
    with training_note(storage):
        # Another process that begins later takes the note over, and removes it itself.
        storage.write("training.json", OTHER)
    assert f"of {PLACE}: eve on h (process 1) since now. If it still runs" in caplog.text
    assert bucket_files() == {"training.json": OTHER}


def test_a_storage_that_cannot_be_reached_does_not_keep_from_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    trained = []
    with training_note(RemoteStorage(PLACE)):
        trained.append(True)
    assert trained
