"""The summary says what was read, left out and written."""

from __future__ import annotations

from dataclasses import replace

from evergram.data.prepared.writing.summary import PrepareSummary

SUMMARY = PrepareSummary(
    out="corpus",
    fingerprint="ab",
    rows_read=1000,
    bad_rows={"count": 0, "reasons": []},
    below_minimum=10,
    repeats_dropped=20,
    outside_core=0,
    added=970,
    interactions=970,
    parts=1,
    entities={"query": 7, "candidate": 5},
    new_entities={"query": 7, "candidate": 5},
    columns={"query": "int32", "candidate": "int32"},
    unread=[],
    first_time=None,
    last_time=None,
    size=2_500_000,
    seconds=2.0,
    peak_memory=300 << 20,
)


def test_a_first_part_is_told_in_four_lines() -> None:
    assert str(SUMMARY).splitlines() == [
        "corpus: 970 interactions of 7 queries with 5 candidates.",
        "Read 1,000 rows; left out 10 below the minimum value, 20 repeats.",
        "There are no times.",
        "2.5 MB on disk; 2.0 s, 500 rows/s, at most 300 MiB of memory.",
    ]


def test_a_later_part_tells_what_is_new() -> None:
    later = replace(SUMMARY, parts=2, interactions=5000, first_time=1, last_time=9)
    text = str(later)
    assert "970 interactions (part 2; 5,000 in all)" in text
    assert "New: 7 queries, 5 candidates.\nTimes from 1 to 9." in text
    assert later.to_json()["parts"] == 2


def test_columns_that_were_not_read_are_named_with_the_options_that_read_them() -> None:
    text = str(replace(SUMMARY, unread=["played_at", "note"]))
    options = "--column time=NAME or --column value=NAME or --column weight=NAME"
    assert f"There are no times.\nNot read: played_at, note; {options} reads one.\n" in text
    columns = dict.fromkeys(("query", "candidate", "time", "value", "weight"), "int32")
    text = str(replace(SUMMARY, columns=columns, unread=["note"], first_time=1, last_time=9))
    assert "Times from 1 to 9.\nNot read: note.\n" in text


def test_times_that_are_dates_are_told_as_dates() -> None:
    dated = replace(SUMMARY, first_time=1_748_736_206_000_000, last_time=1_764_460_600_000_000)
    assert "Times from 2025-06-01 00:03 to 2025-11-29 23:56." in str(dated)
