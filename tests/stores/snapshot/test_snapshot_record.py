"""`store.json`: whole, of a known format, and naming only files of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.snapshot_rows import rows

from evergram.errors import FormatError
from evergram.stores.snapshot import snapshot_record
from evergram.stores.snapshot.snapshot_store import SnapshotStore


def test_a_later_format_is_refused(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_record, "FORMAT_VERSION", 9)
    monkeypatch.setattr(snapshot_record, "READABLE", (9,))
    store.upsert(rows(0, 1))
    monkeypatch.undo()
    with pytest.raises(FormatError, match="format_version 9; this Evergram reads 1 to 2"):
        SnapshotStore.open(str(tmp_path / "store"))
