"""The summary says what was read, left out and written."""

from __future__ import annotations

from dataclasses import replace

from evergram.data.prepared.writing.summary import PrepareSummary

SUMMARY = PrepareSummary(
    out="corpus",
    fingerprint="ab",
    rows_read=1000,
    below_minimum=10,
    repeats_dropped=20,
    outside_core=0,
    added=970,
    interactions=970,
    parts=1,
    entities={"query": 7, "candidate": 5},
    new_entities={"query": 7, "candidate": 5},
    columns={"query": "int32", "candidate": "int32"},
    first_time=None,
    last_time=None,
    size=2_500_000,
    seconds=2.0,
    peak_memory=300 << 20,
)


def test_a_first_part_is_told_in_three_lines() -> None:
    assert str(SUMMARY).splitlines() == [
        "corpus: 970 interactions of 7 queries with 5 candidates.",
        "Read 1,000 rows; left out 10 below the minimum value, 20 repeats.",
        "2.5 MB on disk; 2.0 s, 500 rows/s, at most 300 MiB of memory.",
    ]


def test_a_later_part_tells_what_is_new() -> None:
    later = replace(SUMMARY, parts=2, interactions=5000, first_time=1, last_time=9)
    text = str(later)
    assert "970 interactions (part 2; 5,000 in all)" in text
    assert "New: 7 queries, 5 candidates.\nTimes from 1 to 9." in text
    assert later.to_json()["parts"] == 2
