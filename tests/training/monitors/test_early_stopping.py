"""The best epoch is kept, and patience ends a run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evergram.training.monitors.early_stopping import EarlyStopping, time_to_reach

METRIC = "recall@20"


def follow(values: list[float], patience: int, select_after: int = 0) -> EarlyStopping:
    """Evaluations of epochs 1, 2, … until patience runs out or there are no more values."""
    stopping = EarlyStopping(METRIC, patience, select_after)
    for epoch, value in enumerate(values, 1):
        stopping.add({"epoch": epoch, METRIC: value}, last=epoch == len(values))
        if stopping.exhausted:
            break
    return stopping


def test_patience_is_counted_from_the_best() -> None:
    stopping = follow([0.1, 0.3, 0.2, 0.2, 0.4, 0.3, 0.3, 0.3, 0.5], patience=3)
    assert (stopping.best_epoch, stopping.best, len(stopping.history)) == (5, 0.4, 8)
    # The same value again is no better.
    assert len(follow([0.3, 0.3, 0.3, 0.3], patience=2).history) == 3
    # 0 goes on to the end.
    assert len(follow([0.3, 0.1, 0.1, 0.1], patience=0).history) == 4


def test_patience_begins_where_the_best_is_looked_for() -> None:
    stopping = follow([0.9, 0.8, 0.1, 0.2, 0.1, 0.1, 0.7], patience=2, select_after=2)
    assert (stopping.best_epoch, len(stopping.history)) == (4, 6)


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_a_run_that_goes_on_ends_where_it_would_have_ended(
    values: list[float], patience: int, cut: int
) -> None:
    """All that is saved are the history and the best: what patience is left follows from them."""
    whole = follow(values, patience)
    first = follow(values[:cut], patience) if cut else EarlyStopping(METRIC, patience)
    again = EarlyStopping(METRIC, patience, 0, list(first.history), first.best, first.best_epoch)
    for epoch in range(len(first.history) + 1, len(values) + 1):
        if again.exhausted:
            break
        again.add({"epoch": epoch, METRIC: values[epoch - 1]}, last=epoch == len(values))
    assert (again.best_epoch, len(again.history)) == (whole.best_epoch, len(whole.history))


def test_the_clock_of_a_metric() -> None:
    history = [{"seconds": 2.0, "recall@20": 0.1}, {"seconds": 4.0, "recall@20": 0.3}]
    assert time_to_reach(history, "recall@20", 0.2) == 4.0
    assert time_to_reach(history, "recall@20", 0.4) is None
    assert time_to_reach(history, "recall@20", None) is None
