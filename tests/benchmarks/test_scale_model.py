"""The model adds up what it says: bytes by hand, exchange by counting, and an epoch's hours."""

from __future__ import annotations

import pytest
from benchmarks.scale_model import (
    Cluster,
    Size,
    StepRates,
    exchanged,
    fewest_machines,
    gathered_batch,
    memory,
    parts,
    plan,
    seconds,
    shares,
)
from hypothesis import given
from hypothesis import strategies as st

RATES = StepRates(1e-3, 1e-7, 2e-7, 3e-7, 5e-8, 4e-8, 1e-10, 1e-11)
NOTHING = StepRates(0, 0, 0, 0, 0, 0, 0, 0)
SIZE = Size(1000, 5000, 4, 16)


def test_bytes_are_those_of_the_tensors() -> None:
    kept = memory(SIZE)
    assert kept["tables"] == 1000 * 4 * 4
    assert kept["optimiser"] == 1000 * 4
    assert kept["Gramians"] == 2 * 16 * 4
    assert kept["order of an epoch"] == 5000 * 8


def test_each_rate_is_charged_for_what_it_is_of() -> None:
    work = parts(SIZE, RATES)
    assert work["calls"] == 1e-3
    assert work["rows read"] == pytest.approx(32 * 1e-7)
    assert work["rows moved"] == pytest.approx(32 * 2.5e-7)
    assert work["matrix products"] == pytest.approx(4 * 2 * 16 * 16 * 1e-11)
    assert seconds(SIZE, RATES) == pytest.approx(sum(work.values()))
    assert sum(shares(work).values()) == pytest.approx(1)


@given(st.integers(2, 64), st.integers(1, 10_000), st.integers(1, 64))
def test_the_gramians_exchange_does_not_know_the_batch(
    processes: int, batch: int, dim: int
) -> None:
    one, other = (exchanged(Size(10, 10, dim, size), processes) for size in (batch, 2 * batch))
    assert one["Gramians"] == other["Gramians"]
    assert other["rows"] == pytest.approx(2 * one["rows"])
    # A ring sends each of the P chunks of 2 D² floats P − 1 times, twice.
    chunk = 2 * dim * dim * 4 / processes
    assert one["Gramians"] == pytest.approx(2 * (processes - 1) * chunk)
    assert gathered_batch(Size(10, 10, dim, batch), processes) == pytest.approx(
        (processes - 1) * 2 * batch * dim * 4
    )


def test_one_process_exchanges_nothing_and_takes_its_steps_one_after_the_other() -> None:
    alone = Cluster(memory=1e9, processes=1, bandwidth=1e30)
    made = plan(SIZE, RATES, 1, alone)
    assert set(made.exchanged.values()) == {0}
    assert made.hours == pytest.approx(5000 / 16 * seconds(SIZE, RATES) / 3600)
    # Twice the machines halve an epoch, but for what they exchange.
    free = Cluster(memory=1e9, processes=1, bandwidth=1e30, network=1e30)
    assert plan(SIZE, RATES, 2, free).hours == pytest.approx(made.hours / 2)


def test_the_slower_of_processor_and_memory_counts() -> None:
    slow = Cluster(processes=2, bandwidth=1.0, network=1e30)
    made = plan(SIZE, NOTHING, 1, slow)
    assert made.step["processor"] == 0
    assert made.hours == pytest.approx(5000 / 32 * made.step["memory"] / 3600)


def test_machines_hold_the_tables_and_no_pairs() -> None:
    assert fewest_machines(SIZE, Cluster(memory=1e9)) == 1
    assert fewest_machines(SIZE, Cluster(memory=16_000 + 4000 + 128 + 36_000)) == 1
    assert fewest_machines(SIZE, Cluster(memory=16_000)) == 4
    more_pairs = Size(1000, 10**9, 4, 16)
    assert fewest_machines(more_pairs, Cluster(memory=1e9)) == 1
