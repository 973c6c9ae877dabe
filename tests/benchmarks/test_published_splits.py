"""The table of public splits keeps the rows that a run did not measure."""

from __future__ import annotations

from benchmarks.published_splits import Row, table

METRICS = ("recall@20", "ndcg@20")


def row(data: str, method: str, dim: int | None, value: float) -> Row:
    return Row(data, method, dim, {m: [value, value] for m in METRICS}, [3.0, 5.0])


def test_rows_that_were_not_measured_stay_and_measured_ones_replace() -> None:
    before = table([row("gowalla", "a", 64, 0.1), row("gowalla", "b", 64, 0.2)])
    after = table([row("gowalla", "a", 64, 0.3), row("yelp2018", "a", 64, 0.9)], before)
    cells = [line.split(" | ") for line in after.splitlines()[2:-2]]
    assert [(line[0], line[1], line[3][:6]) for line in cells] == [
        ("| gowalla", "a", "0.3000"),
        ("| gowalla", "b", "0.2000"),
        ("| yelp2018", "a", "0.9000"),
    ]


def test_a_table_laid_over_itself_is_the_same() -> None:
    rows = [
        row("gowalla", "a", 256, 0.1),
        row("gowalla", "a", 64, 0.2),
        row("gowalla", "p", None, 0.01),
    ]
    once = table(rows)
    assert table(rows, once) == table([], once) == once


def test_seconds_are_told_apart_by_threads() -> None:
    both = {m: [0.1, 0.2, 0.3] for m in METRICS}
    line = table([Row("gowalla", "a", 64, both, [10.0, 4.0, 6.0], [1, 2, 2])]).splitlines()[2]
    assert line.endswith("| 3 | 10, 5 | 1, 2 |")
