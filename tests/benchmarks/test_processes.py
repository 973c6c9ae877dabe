"""Two processes end where one does, and what Gramians exchange does not grow with the batch."""

from __future__ import annotations

import pytest
from benchmarks.processes import Size, measure, table


@pytest.mark.long
def test_the_bytes_of_gramians_do_not_depend_on_the_batch() -> None:
    dim = 8
    results = measure(Size(300, 200, 5000, dim, 3, (64, 256), 100), ("factorization",))
    small, large = results
    assert all(shared.difference < 1e-5 for shared in results)
    # Of each side D × D floats and a float64, by a ring of two.
    assert small.received["Gramians"] == large.received["Gramians"] == 2 * 4 * dim * dim
    assert small.received["tables"] < large.received["tables"]
    assert all(shared.ranking[count] > 0 for shared in results for count in (1, 2))
    assert table(results).count("\n") == 3
