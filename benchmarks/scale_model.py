"""A model of a training step's bytes and seconds, from measured rates; and internet scale by it."""

from __future__ import annotations

import math
from dataclasses import dataclass

FLOAT, INTEGER = 4, 8  # bytes
SIDES = 2
# Elementwise passes over [B, D] of a step; a copy is one, what only reads is half of one, and what
# reads two is one and a half. u∘v and its sum: 2. Of each side the penalty's slope times its
# weights, its dot product (½) and its gradient, the task's gradient, the sum of both (1½), squares
# and their mean (½) in row-wise Adagrad, the scaled rows, and the weighted rows of S_B: 8½.
PASSES = 2 + SIDES * 8.5
# Products of [B, D] by [D, D] of a step: S_B and Ĝ u of both sides.
PRODUCTS = 2 * SIDES
# float64 and float32 columns of each entity beside its row: rate, measure and weight of the
# sampler (8, 8, 4), and the id of the scene and of the vocabulary (8, 8).
COLUMNS = 36


@dataclass(frozen=True)
class Size:
    """A training.

    Args:
        entities: N, both sides together, half of them each.
        pairs: n.
        dim, batch: D and B.
    """

    entities: int
    pairs: int
    dim: int
    batch: int

    def __str__(self) -> str:
        return f"N = {self.entities:,}, D = {self.dim}, B = {self.batch:,}"


@dataclass(frozen=True)
class StepRates:
    """Seconds, each measured alone, on one thread.

    Args:
        fixed: of a step of so few pairs that only its calls cost.
        gather, scatter, coalesce, state: a row: read from the table, moved in it, summed over the
            batch, and its number of Adagrad's read and written.
        pair: a pair: its two ids and their weights.
        copied: a byte of a copy of [B, D].
        flop: an operation of [B, D] by [D, D].
    """

    fixed: float
    gather: float
    scatter: float
    coalesce: float
    state: float
    pair: float
    copied: float
    flop: float


def parts(size: Size, rates: StepRates) -> dict[str, float]:
    """Return the seconds of a step of a factorization with the penalty, by what takes them."""
    rows = SIDES * size.batch
    return {
        "calls": rates.fixed,
        "pairs and weights": size.batch * rates.pair,
        "rows read": rows * rates.gather,
        "rows moved": rows * (rates.scatter + rates.state),
        "rows summed": rows * rates.coalesce,
        "passes over [B, D]": PASSES * size.batch * size.dim * FLOAT * rates.copied,
        "matrix products": PRODUCTS * 2 * size.batch * size.dim**2 * rates.flop,
    }


def seconds(size: Size, rates: StepRates) -> float:
    return sum(parts(size, rates).values())


def memory(size: Size) -> dict[str, int]:
    """Return the bytes that a training keeps, by what they are of."""
    return {
        "tables": size.entities * size.dim * FLOAT,
        "optimiser": size.entities * FLOAT,
        "Gramians": SIDES * size.dim**2 * FLOAT,
        "entities": size.entities * COLUMNS,
        # In the corpus, and in the sampler, which reads them in another order.
        "pairs": 2 * size.pairs * SIDES * INTEGER,
        "order of an epoch": size.pairs * INTEGER,
    }


@dataclass(frozen=True)
class Cluster:
    """Machines that are assumed, not measured.

    Args:
        memory: bytes of a machine that tables may fill.
        processes: a machine, each on a core of its own.
        bandwidth: bytes a second of a machine's memory, shared by its processes.
        network: bytes a second of a machine, each way.
    """

    memory: float = 0.75 * 512 * 2**30
    processes: int = 64
    bandwidth: float = 200e9
    network: float = 100e9 / 8


@dataclass(frozen=True)
class Plan:
    """A training spread over machines, tables sharded by rows.

    Args:
        exchanged: bytes that a process sends in a step, by what they are of.
        step: seconds by what bounds it; they are added up, as if nothing overlapped.
    """

    machines: int
    processes: int
    exchanged: dict[str, float]
    step: dict[str, float]
    hours: float


def fewest_machines(size: Size, cluster: Cluster) -> int:
    """Return how many machines hold tables, optimiser and columns; pairs stay on disk."""
    kept = memory(size)
    held = sum(kept[name] for name in ("tables", "optimiser", "Gramians", "entities"))
    return math.ceil(held / cluster.memory)


def exchanged(size: Size, processes: int) -> dict[str, float]:
    """Return the bytes that one process sends in a step.

    Rows and their gradients go between the shards: that grows with the batch of a process. The
    Gramians' all-reduce is D² floats a side, whatever the batch and however many processes.
    """
    away = (processes - 1) / processes
    rows = SIDES * size.batch * away
    return {
        "ids of rows": rows * INTEGER,
        "rows": rows * size.dim * FLOAT,
        "gradients": rows * size.dim * FLOAT,
        "Gramians": 2 * away * SIDES * size.dim**2 * FLOAT,
    }


def gathered_batch(size: Size, processes: int) -> float:
    """Return the bytes that a process would receive if each saw every embedding of the batch."""
    return (processes - 1) * SIDES * size.batch * size.dim * FLOAT


def traffic(size: Size) -> float:
    """Return the bytes that a step moves through memory: passes, and rows read, moved, summed."""
    row = size.dim * FLOAT
    return 2 * PASSES * size.batch * row + SIDES * size.batch * row * (2 + 3 + 4)


def plan(size: Size, rates: StepRates, machines: int) -> Plan:
    """Return an epoch over all pairs; `size.batch` is the batch of one process."""
    cluster = Cluster()
    processes = machines * cluster.processes
    sent = exchanged(size, processes)
    crossing = 1 - cluster.processes / processes  # the share that leaves the machine
    step = {
        "processor": seconds(size, rates),
        "memory": cluster.processes * traffic(size) / cluster.bandwidth,
        "network": cluster.processes * sum(sent.values()) * crossing / cluster.network,
    }
    # A processor waits for its memory in the measured rates already: the slower of the two counts.
    taken = max(step["processor"], step["memory"]) + step["network"]
    steps = size.pairs / (size.batch * processes)
    return Plan(machines, processes, sent, step, steps * taken / 3600)
