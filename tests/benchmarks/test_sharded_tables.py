"""Processes with divided tables hold a part of the rows each, and exchange what the docs say."""

from __future__ import annotations

import pytest
from benchmarks.sharded_tables import Size, measure, table


@pytest.mark.long
def test_each_process_holds_a_part() -> None:
    size = Size(3000, 2000, 6000, 8, 3, 64)
    whole, divided = measure(size, ((1, "memory"), (2, "sharded")))
    # Rows of 8 floats, and one of their optimiser.
    assert whole.rows == 4 * 9 * (3000 + 2000)
    assert divided.rows == whole.rows // 2
    assert whole.received == 0
    # At most 32 distinct rows of each side: ids, rows and gradients.
    assert 0 < divided.received <= 2 * 32 * (8 + 2 * 4 * 8)
    assert table([whole, divided]).count("\n") == 3
