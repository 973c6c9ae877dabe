"""A note in the storage of a remote lineage that its next version is being trained."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from evergram.lineage.remote.lock import describe_process, this_process
from evergram.lineage.remote.storage import RemoteStorage

TRAINING = "training.json"


@contextmanager
def training_note(storage: RemoteStorage) -> Iterator[None]:
    """Leave a note in the storage that a version is being trained, and warn of another's note.

    It is not a lock, as a process that is killed leaves it behind; a storage that cannot be reached
    is no error.
    """
    mine = json.dumps(this_process()).encode()
    with suppress(Exception):
        others = storage.content(TRAINING)
        if others is not None:
            logging.getLogger(__name__).warning(
                f"Another process began to train the next version of {storage.address}: "
                f"{describe_process(others)}. If it still runs, only the first to publish will "
                "succeed."
            )
        storage.write(TRAINING, mine)
    try:
        yield
    finally:
        with suppress(Exception):
            if storage.content(TRAINING) == mine:
                storage.remove_file(TRAINING)
