"""The steps of a run: their record, and their lines of progress."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from evergram.data.prepared.prepared_record import PreparedRecord
from evergram.data.prepared.writing.preparation import Preparation
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.reading.interaction_source import source_of
from evergram.data.reading.table_stream import MemoryTable

TABLE = pa.table({"query": [1, 1, 2, 2, 2], "candidate": [5, 6, 5, 6, 6], "time": [3, 1, 2, 4, 5]})


def test_a_run_fills_its_folder_and_says_what_it_does(tmp_path: Path) -> None:
    lines: list[str] = []
    settings = PrepareSettings(unique=True, k_core=2, name="shop")
    run = Preparation(tmp_path / "out", tmp_path, settings, None, lines.append)
    facts = run.run([source_of(MemoryTable(TABLE, "The table"), {})], {})
    assert facts["added"] == 4
    assert facts["repeats_dropped"] == 1
    assert lines == [
        "reading 1 source",
        "sorting 5 interactions by time",
        "looking for repeated pairs",
        "looking for the 2-core",
        "numbering ids",
        "writing interactions",
        "writing entities",
    ]
    record = PreparedRecord.load(tmp_path)
    assert (record.name, record.fingerprint) == ("shop", facts["fingerprint"])
    assert record.columns == {"query": "int32", "candidate": "int32", "time": "int64"}
    assert record.times == "numbers"
    assert (record.choices.unique, record.choices.k_core) == (True, 2)
    assert record.parts[0].sources == ["The table"]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["candidate.arrow", "parts", "prepared.json", "query.arrow"]
